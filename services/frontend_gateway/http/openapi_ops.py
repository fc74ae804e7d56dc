"""The operators' operations, for the table that the OpenAPI document is built from."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from services.frontend_gateway.http import ops_models

T = TypeVar("T")

PREFIX = "/v1/ops"

EXAMPLES: Mapping[str, Any] = MappingProxyType(
    {
        "OpsEndBody": {"dry_run": True, "reason": "internal"},
        "OpsReapBody": {"dry_run": True},
        "OpsRedriveBody": {"dry_run": True, "service": "ingestion"},
    }
)
PARAMETERS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "q": {
            "in": "query",
            "description": "An id of a turn, a conversation, a request or a dead letter, or an "
            "idempotency key.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 255},
        },
        "status": {
            "in": "query",
            "description": "open for all that have not ended, queued for those that wait.",
            "schema": {"type": "string", "enum": [
                "open", "queued", "pending", "generating", "waiting_for_tool", "completed",
                "partial", "failed", "cancelled",
            ]},
        },
        "reason": {
            "in": "query",
            "description": "Why a turn ended.",
            "schema": {"type": "string", "pattern": "^[a-z_]{1,40}$"},
        },
    }
)  # fmt: skip

_LISTS = (
    ("services", "list_services", "List the processes of every service", ops_models.OpsList),
    ("outbox", "list_outbox", "List events that wait for the broker", ops_models.OpsOutbox),
    ("dead-letters", "list_dead_letters", "List records set aside", ops_models.OpsList),
    ("leases", "list_leases", "List workers and their calls", ops_models.OpsLeases),
    ("acts", "list_acts", "List what operators did", ops_models.OpsList),
    ("overview", "get_overview", "Read the figures of the deployment", ops_models.OpsOverview),
)
_BODY = ("unsupported-media", "payload-too-large", "validation-error", "not-found")


def operations(make: Callable[..., T]) -> tuple[T, ...]:
    """All of them, made by the class of the table."""
    turn, letter = f"{PREFIX}/turns/{{turn_id}}", f"{PREFIX}/dead-letters/{{dead_letter_id}}"
    lists = [
        make("get", f"{PREFIX}/{name}", id_, summary, "ops", {200: model},
             problems=("validation-error",))
        for name, id_, summary, model in _LISTS
    ]  # fmt: skip
    return (
        *lists,
        make("get", f"{PREFIX}/turns", "list_ops_turns",
             "List open turns, or ended ones of the last day", "ops", {200: ops_models.OpsList},
             parameters=("status", "reason"), problems=("validation-error",)),
        make("get", f"{PREFIX}/search", "search", "Find what an id or a key means", "ops",
             {200: ops_models.OpsSearch}, parameters=("q!",), problems=("validation-error",)),
        make("get", turn, "get_story", "Read the whole story of a turn", "ops",
             {200: ops_models.TurnStory}, problems=("validation-error", "not-found")),
        make("post", f"{turn}/end", "end_turn", "End a turn without an answer", "ops",
             {200: ops_models.OpsAct}, body=ops_models.OpsEndBody,
             problems=(*_BODY, "turn-already-terminal")),
        make("post", f"{turn}/reap", "reap_turn", "Let the reaper end a turn now", "ops",
             {200: ops_models.OpsAct}, body=ops_models.OpsReapBody,
             problems=(*_BODY, "turn-already-terminal", "not-possible")),
        make("get", letter, "get_dead_letter", "Read where a record stood, and why it is here",
             "ops", {200: ops_models.OpsDeadLetter}, problems=("validation-error", "not-found")),
        make("post", f"{letter}/redrive", "redrive_dead_letter",
             "Let its service handle a dead letter again", "ops", {200: ops_models.OpsAct},
             body=ops_models.OpsRedriveBody, problems=(*_BODY, "not-possible")),
    )  # fmt: skip
