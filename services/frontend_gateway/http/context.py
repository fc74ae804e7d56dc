"""What every route needs, made once per process and handed to each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import orjson
from starlette.requests import Request
from starlette.responses import Response

from libs.catalogue import Catalogue
from libs.clock import Clock
from libs.telemetry.metrics import Metrics
from libs.telemetry.names import (
    HTTP_METHOD,
    HTTP_ROUTE,
    TENANT_ID,
    TURN_ID,
    Attributes,
    request_span,
)
from libs.telemetry.tracing import Tracing
from libs.traceparents import given_or_turns
from schemas.envelope import Event
from services.frontend_gateway.core.answers import refusal
from services.frontend_gateway.core.asking import Origin
from services.frontend_gateway.core.cursors import uuid_of
from services.frontend_gateway.core.problems import FieldError, Problem, not_found
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.door import Door
from services.frontend_gateway.http.edge import taken_id
from services.frontend_gateway.http.rights import Doorkeeper
from services.frontend_gateway.hub import Hub
from services.frontend_gateway.operators import Operators
from services.frontend_gateway.ports import Caller, ConversationView, Outcome, Store
from services.frontend_gateway.watching import Watchers


@dataclass(frozen=True, slots=True)
class SettingsPolicy:
    """The system policy of tenants that set none, as context_assembly has it from the settings."""

    text: str
    version: str


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that routes work with.

    Attributes:
        catalogue: Bounds instructions by the sections of the models.
        max_streams_per_key: Open streams that one API key may have.
        random_bytes: For session tokens.
    """

    store: Store
    door: Door
    hub: Hub
    watchers: Watchers
    catalogue: Catalogue
    policy: SettingsPolicy
    doorkeeper: Doorkeeper
    clock: Clock
    metrics: Metrics
    tracing: Tracing
    max_streams_per_key: int
    session_lifetime_s: int
    random_bytes: Callable[[int], bytes]
    operators: Operators

    async def visible_turn(self, caller: Caller, text: str) -> TurnView:
        """The turn that a path names, if it belongs to the caller's principal.

        Raises:
            Problem: ``not-found``, the same for unknown and foreign.
        """
        turn_id = id_in_path(text, "turn_id")
        turn = await self.store.turn(caller.tenant_id, turn_id)
        if turn is None or turn.principal_id != caller.principal_id:
            raise not_found()
        return turn

    async def visible_conversation(self, caller: Caller, text: str) -> ConversationView:
        """The conversation that a path names, if it belongs to the caller's principal.

        Raises:
            Problem: ``not-found``, the same for unknown, foreign and deleted.
        """
        wanted = id_in_path(text, "conversation_id")
        found = await self.store.conversation(caller.tenant_id, caller.principal_id, wanted)
        if found is None:
            raise not_found()
        return found

    def origin(self, request: Request, caller: Caller, traceparent: str | None = None) -> Origin:
        """Who asks, with the request's id if it was made here, else with a fresh one."""
        return Origin(
            tenant_id=caller.tenant_id,
            principal_id=caller.principal_id,
            request_id=taken_id(request) or self.clock.new_id(),
            at=self.clock.now(),
            traceparent=traceparent,
        )

    def parent_of(self, request: Request, turn_id: UUID | None) -> str | None:
        """What the span of a request hangs below: what came along, else its turn's own span."""
        given = request.headers.get("traceparent")
        if turn_id is None or not self.tracing.is_kept:
            return given
        return given_or_turns(given, turn_id)

    def told_of(
        self, caller: Caller, method: str, route: str, *, turn_id: UUID | None = None
    ) -> Attributes | None:
        """Attributes of the span of a request; None where nobody keeps it."""
        if not self.tracing.is_kept:
            return None
        told: Attributes = {
            HTTP_METHOD: method,
            HTTP_ROUTE: route,
            TENANT_ID: str(caller.tenant_id),
            **self.tracing.conventions.person(str(caller.principal_id)),
        }
        return told if turn_id is None else {**told, TURN_ID: str(turn_id)}

    async def ask(
        self,
        request: Request,
        caller: Caller,
        *,
        about: tuple[str, UUID],
        make: Callable[[Origin], Event[Any]],
        of_turn: bool = True,
    ) -> Outcome:
        """Ask ingestion for something, inside a span of this request.

        Args:
            about: The route's template, and the turn or conversation whose trace it joins.
            make: Builds what is asked from who asks.
            of_turn: It joins a turn's trace, below the turn's own span.

        Raises:
            Problem: It was refused, or nothing was decided in time.
        """
        route, joins = about
        with self.tracing.span(
            request_span(request.method, route),
            kind="server",
            parent_traceparent=self.parent_of(request, joins if of_turn else None),
            turn_id=joins,
            attributes=self.told_of(caller, request.method, route),
        ) as span:
            outcome = await self.door.ask(make(self.origin(request, caller, span.traceparent)))
        check_accepted(outcome)
        return outcome


def check_accepted(outcome: Outcome) -> bool:
    """Whether the request was a repeat; raises where it was refused.

    Raises:
        Problem: What the refusal means for the client.
    """
    problem = refusal(outcome.decision, outcome.problem)
    if problem is not None:
        raise problem
    return outcome.decision == "replayed"


def id_in_path(text: str, name: Literal["turn_id", "conversation_id", "message_id"]) -> UUID:
    """An id that stands in a path.

    Raises:
        Problem: ``validation-error`` where a client put no id at all (empty, ``null``,
            ``undefined``): its bug must not look like a thing that is gone. ``not-found`` for
            anything else that names nothing.
    """
    if text.strip() in ("", "null", "undefined", "None"):
        detail = f"The path holds no {name}. Create a conversation first, or use its id."
        raise Problem("validation-error", detail, errors=(FieldError(name, "is not an id"),))
    found = uuid_of(text)
    if found is None:
        raise not_found()
    return found


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer that nobody may store."""
    return Response(
        orjson.dumps(body),
        status_code=status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def wants_stream(request: Request) -> bool:
    """Whether the client asks for the turn's stream in the same response."""
    return "text/event-stream" in request.headers.get("accept", "").lower()
