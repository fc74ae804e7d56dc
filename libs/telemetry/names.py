"""Names of spans and attributes, in one place, since the conventions for models still move.

``OTEL_SEMCONV_STABILITY_OPT_IN`` may hold ``gen_ai_latest_experimental``; that is what we emit in
any case. ``gen_ai_v1_36`` asks for the names that older back ends know.
"""

from dataclasses import dataclass
from typing import Final, Literal

Semconv = Literal["latest", "v1_36"]


TURN_ID: Final = "turnwire.turn.id"
TURN_STATUS: Final = "turnwire.turn.status"
TURN_REASON: Final = "turnwire.turn.reason"
TENANT_ID: Final = "turnwire.tenant.id"
STEP_ID: Final = "turnwire.step.id"
ATTEMPT: Final = "turnwire.attempt"
PLAN_FINGERPRINT: Final = "turnwire.plan.fingerprint"
BATCH_SIZE: Final = "messaging.batch.message_count"

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_DESTINATION: Final = "messaging.destination.name"
MESSAGING_PARTITION: Final = "messaging.destination.partition.id"
MESSAGING_KEY: Final = "messaging.kafka.message.key"
MESSAGING_OFFSET: Final = "messaging.kafka.offset"
MESSAGING_CONVERSATION: Final = "messaging.message.conversation_id"

SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
HTTP_METHOD: Final = "http.request.method"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"


@dataclass(frozen=True, slots=True)
class GenAiNames:
    """Attributes of model calls."""

    provider_name: str = "gen_ai.provider.name"
    operation_name: str = "gen_ai.operation.name"
    agent_name: str = "gen_ai.agent.name"
    conversation_id: str = "gen_ai.conversation.id"
    request_model: str = "gen_ai.request.model"
    request_max_tokens: str = "gen_ai.request.max_tokens"
    request_temperature: str = "gen_ai.request.temperature"
    request_top_p: str = "gen_ai.request.top_p"
    request_stream: str = "gen_ai.request.stream"
    response_model: str = "gen_ai.response.model"
    response_id: str = "gen_ai.response.id"
    response_finish_reasons: str = "gen_ai.response.finish_reasons"
    response_first_chunk: str = "gen_ai.response.time_to_first_chunk"
    usage_input: str = "gen_ai.usage.input_tokens"
    usage_output: str = "gen_ai.usage.output_tokens"
    usage_cache_read: str = "gen_ai.usage.cache_read.input_tokens"


LATEST: Final = GenAiNames()
V1_36: Final = GenAiNames(provider_name="gen_ai.system")

_BY_VERSION: Final[dict[Semconv, GenAiNames]] = {"latest": LATEST, "v1_36": V1_36}


def gen_ai_names(opt_in: str) -> GenAiNames:
    """The names that a comma-separated ``OTEL_SEMCONV_STABILITY_OPT_IN`` asks for."""
    asked = {part.strip() for part in opt_in.split(",")}
    old = "gen_ai_v1_36" in asked and "gen_ai_latest_experimental" not in asked
    return _BY_VERSION["v1_36" if old else "latest"]


def model_call_span(model: str) -> str:
    """Span of one call of a model."""
    return f"chat {model}"


def process_span(topic: str) -> str:
    """Span of handling a record."""
    return f"process {topic}"


def request_span(method: str, route: str) -> str:
    """Span of an HTTP request; the route's template, never its path."""
    return f"{method} {route}"
