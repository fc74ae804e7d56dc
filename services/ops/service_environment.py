"""Which variables each service process gets from a local stack: its own, and no other's secrets."""

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

SERVICES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway")
HOST = "127.0.0.1"
ROLE_URLS = tuple(f"TURNWIRE_{name.upper()}__DATABASE_URL" for name in (*SERVICES, "ops"))

# Read by every service; the rest of the unprefixed names only by who needs it.
_SHARED = ("KAFKA_BOOTSTRAP_SERVERS", "REDIS_URL")
_PASSED_ON = ("OTEL_", "TURNWIRE_FAILPOINT", "TURNWIRE_MODELS_FILE")
_EXTRA: Mapping[str, tuple[str, ...]] = {
    "frontend_gateway": ("TURNWIRE_DOOR_MASTER_KEY", "LLM_MODEL"),
    "ingestion": ("TURNWIRE_DOOR_MASTER_KEY", "LLM_MODEL"),
    "context_assembly": ("LLM_MODEL",),
    "llm_gateway": ("LLM_BASE_URL", "LLM_API_KEY"),
}
_OF_ANOTHER: Mapping[str, str] = {  # so that the gateway can make a payload again
    "frontend_gateway": "TURNWIRE_CONTEXT_ASSEMBLY__SYSTEM_POLICY_",
}


def service_environment(
    service: str, stack: Mapping[str, str], *, given: Mapping[str, str], port: int
) -> dict[str, str]:
    """Settings of one service process.

    Args:
        stack: The variables that reach the stack's parts.
        given: The environment of the command line; a service's own variables in it win, apart
            from the port.
        port: Of the gateway's HTTP interface.
    """
    prefix = f"TURNWIRE_{service.upper()}__"
    wanted = (*_SHARED, *_EXTRA[service], f"{prefix}DATABASE_URL")
    own = {
        **{name: stack[name] for name in wanted if name in stack},
        f"{prefix}PROFILE": "local",
        f"{prefix}TOPICS_PROFILE": "local",
    }
    beginnings = (prefix, _OF_ANOTHER.get(service, prefix), *_PASSED_ON)
    passed = {name: value for name, value in given.items() if name.startswith(beginnings)}
    environment = {**own, **passed}
    if service == "frontend_gateway":
        environment[f"{prefix}PORT"] = str(port)
    return environment


def role_passwords(environ: Mapping[str, str]) -> dict[str, str]:
    """Database role -> password, from the services' URLs where they hold one.

    Only roles of ours: a URL with another user is a login that somebody else keeps.
    """
    found: dict[str, str] = {}
    for service in (*SERVICES, "ops"):
        url = urlsplit(environ.get(f"TURNWIRE_{service.upper()}__DATABASE_URL", ""))
        if url.username == f"turnwire_{service}" and url.password:
            found[url.username] = unquote(url.password)
    return found
