"""Names of the environment variables that the tracing library reads, beside those we document."""

from opentelemetry.sdk import environment_variables

READ_BY_LIBRARY = frozenset(
    name for name in vars(environment_variables) if name.startswith("OTEL_")
)
