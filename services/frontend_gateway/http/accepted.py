"""What is read from and answered to requests that are owed an answer of a model."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from services.frontend_gateway.core import turns
from services.frontend_gateway.core.keys import idempotency_key
from services.frontend_gateway.core.problems import Problem
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http.context import json_response
from services.frontend_gateway.http.models import Options
from services.frontend_gateway.ports import Caller, Outcome

REPLAYED = {"Idempotent-Replayed": "true"}


def key_of(request: Request, *, required: bool) -> str | None:
    """The idempotency key in a request's headers.

    Raises:
        Problem: It is malformed, or missing where there has to be one.
    """
    return idempotency_key(request.headers.getlist("idempotency-key"), required=required)


def options_of(options: Options | None) -> Mapping[str, Any] | None:
    """The options as an event carries them."""
    return None if options is None else options.model_dump(mode="json", exclude_none=True)


def turn_of(outcome: Outcome, caller: Caller, options: Mapping[str, Any] | None) -> TurnView:
    """The turn as its outcome row shows it.

    Raises:
        Problem: The row names no turn, so somebody else decided about another kind of request.
    """
    if outcome.turn_id is None or outcome.conversation_id is None or outcome.seq is None:
        raise Problem("internal-error", "The request was decided, but its turn cannot be read.")
    return TurnView(
        id=outcome.turn_id,
        tenant_id=caller.tenant_id,
        conversation_id=outcome.conversation_id,
        principal_id=caller.principal_id,
        status=outcome.status or "pending",
        seq=outcome.seq,
        options=options,
        kind=outcome.kind or "message",
        question_id=outcome.user_message_id,
        branch_id=outcome.branch_id,
        queue_position=outcome.queue_position,
    )


def turn_headers(turn: TurnView, outcome: Outcome) -> dict[str, str]:
    """Where the turn is, and whether it was asked for before."""
    replayed = REPLAYED if outcome.decision == "replayed" else {}
    return {"Location": f"/v1/turns/{turn.id}", **replayed}


def accepted_response(turn: TurnView, outcome: Outcome) -> Response:
    """The identity of a turn that is durable: 202, or 200 where it was before."""
    status = 200 if outcome.decision == "replayed" else 202
    body = turns.accepted(turn, outcome.request_id)
    return json_response(body, status, turn_headers(turn, outcome))
