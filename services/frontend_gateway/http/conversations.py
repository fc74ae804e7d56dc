"""Routes of conversations and their messages."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from libs import ids
from libs.telemetry.names import TENANT_ID, TURN_ID, request_span
from services.frontend_gateway.core import turns
from services.frontend_gateway.core.answers import cut, iso, listed, refusal
from services.frontend_gateway.core.asking import (
    Origin,
    Said,
    Wanted,
    conversation_of,
    create_requested,
    turn_requested,
)
from services.frontend_gateway.core.cursors import page
from services.frontend_gateway.core.keys import idempotency_key
from services.frontend_gateway.core.problems import Problem, not_found
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http.bodies import check_text, read_counted
from services.frontend_gateway.http.context import Context, id_in_path, json_response, wants_stream
from services.frontend_gateway.http.models import ConversationBody, MessageBody, Options
from services.frontend_gateway.http.streams import check_room, serve
from services.frontend_gateway.ports import Caller, ConversationView, MessageView, Outcome

REPLAYED = {"Idempotent-Replayed": "true"}
POST_MESSAGE = "/v1/conversations/{conversation_id}/messages"


class ConversationRoutes:
    """``/v1/conversations``, without posting messages."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Make a conversation, and ask for the answer to its first message."""
        context = self._context
        caller, _ = await context.doorkeeper.admit(request, "chat")
        key = _key(request, required=False)
        body, nul_removed = await read_counted(request, ConversationBody)
        first = None
        if body.message is not None:
            key = _key(request, required=True)
            check_text(body.message.content, "/message/content")
            options = _options(body.message.options)
            first = Said(body.message.content, options=options, nul_removed=nul_removed)
        wanted = Wanted(body.title, body.policy, body.model, body.time_zone, first)
        origin = _origin(context, caller)
        conversation = conversation_of(origin, key)
        turn_id = None
        if first is not None and key is not None:
            turn_id = ids.turn_id(caller.tenant_id, conversation, key)
        with context.tracing.span(
            request_span("POST", "/v1/conversations"),
            kind="server",
            parent_traceparent=request.headers.get("traceparent"),
            turn_id=turn_id or conversation,
            attributes={TENANT_ID: str(caller.tenant_id)},
        ) as span:
            origin = replace(origin, traceparent=span.traceparent)
            outcome = await context.door.ask(create_requested(origin, key, wanted))
        return _created(_decided(outcome), outcome, caller)

    async def all(self, request: Request) -> Response:
        """A page of the caller's conversations."""
        caller, _ = await self._context.doorkeeper.admit(request, "read")
        wanted = page(request.query_params, default_order="desc")
        rows = await self._context.store.conversations(
            caller.tenant_id, caller.principal_id, wanted
        )
        shown, has_more = cut(rows, wanted)
        return json_response(listed([_conversation(row) for row in shown], has_more=has_more))

    async def one(self, request: Request) -> Response:
        """One conversation."""
        caller, _ = await self._context.doorkeeper.admit(request, "read")
        return json_response(_conversation(await self._visible(request, caller)))

    async def messages(self, request: Request) -> Response:
        """A page of a conversation's messages; a running answer with what is stored of it."""
        caller, _ = await self._context.doorkeeper.admit(request, "read")
        wanted = page(request.query_params, default_order="asc")
        conversation = await self._visible(request, caller)
        rows = await self._context.store.messages(
            caller.tenant_id, caller.principal_id, conversation.id, wanted
        )
        shown, has_more = cut(rows, wanted)
        running = [row.turn_id for row in shown if _is_running(row)]
        stored = await self._context.store.checkpoints(caller.tenant_id, running) if running else {}
        data = []
        for row in shown:
            checkpoint = stored.get(row.turn_id) if _is_running(row) else None
            data.append(_message(row, checkpoint.text if checkpoint else row.content))
        return json_response(listed(data, has_more=has_more))

    async def nameless(self, request: Request) -> Response:
        """A path whose id is empty: the client has a bug, so it is told, and nothing is made."""
        await self._context.doorkeeper.admit(request, "read")
        id_in_path("", "conversation_id")
        raise not_found()

    async def _visible(self, request: Request, caller: Caller) -> ConversationView:
        wanted = id_in_path(request.path_params["conversation_id"], "conversation_id")
        found = await self._context.store.conversation(
            caller.tenant_id, caller.principal_id, wanted
        )
        if found is None:
            raise not_found()
        return found


class PostMessage:
    """``POST /v1/conversations/{conversation_id}/messages``: the hot path, over raw ASGI."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask for an answer; 202 with the turn's identity, or the turn's stream."""
        context = self._context
        request = Request(scope, receive)
        caller, proof = await context.doorkeeper.admit(request, "chat")
        conversation = id_in_path(request.path_params["conversation_id"], "conversation_id")
        key = _key(request, required=True) or ""
        body, nul_removed = await read_counted(request, MessageBody)
        check_text(body.content, "/content")
        is_streamed = wants_stream(request)
        if is_streamed:
            check_room(context, caller)  # before anything is asked for
        said = _said(body, nul_removed)
        outcome = await self._ask(request, caller, conversation, (key, said))
        is_replay = _decided(outcome)
        turn = _turn_of(outcome, caller, said.options)
        headers = {"Location": f"/v1/turns/{turn.id}", **(REPLAYED if is_replay else {})}
        if is_streamed:
            if is_replay or turn.has_ended:  # its end stands in its row, not in the outcome
                turn = await context.visible_turn(caller, str(turn.id))
            connection = (scope, receive, send)
            await serve(
                context, turn, None, by=(caller, proof), connection=connection, headers=headers
            )
            return
        answer = turns.accepted(turn, outcome.request_id)
        await json_response(answer, 200 if is_replay else 202, headers)(scope, receive, send)

    async def _ask(
        self, request: Request, caller: Caller, conversation: UUID, asked: tuple[str, Said]
    ) -> Outcome:
        context = self._context
        key, said = asked
        turn_id = ids.turn_id(caller.tenant_id, conversation, key)
        with context.tracing.span(
            request_span("POST", POST_MESSAGE),
            kind="server",
            parent_traceparent=request.headers.get("traceparent"),
            turn_id=turn_id,
            attributes={TENANT_ID: str(caller.tenant_id), TURN_ID: str(turn_id)},
        ) as span:
            origin = replace(_origin(context, caller), traceparent=span.traceparent)
            return await context.door.ask(turn_requested(origin, conversation, key, said))


def _key(request: Request, *, required: bool) -> str | None:
    return idempotency_key(request.headers.getlist("idempotency-key"), required=required)


def _origin(context: Context, caller: Caller) -> Origin:
    return Origin(
        tenant_id=caller.tenant_id,
        principal_id=caller.principal_id,
        request_id=context.clock.new_id(),
        at=context.clock.now(),
        traceparent=None,
    )


def _said(body: MessageBody, nul_removed: int) -> Said:
    return Said(
        content=body.content,
        policy=body.policy,
        parent=body.parent,
        model=body.model,
        options=_options(body.options),
        time_zone=body.time_zone,
        nul_removed=nul_removed,
    )


def _options(options: Options | None) -> Mapping[str, Any] | None:
    return None if options is None else options.model_dump(mode="json", exclude_none=True)


def _decided(outcome: Outcome) -> bool:
    """Whether the request was a repeat; raises where it was refused."""
    problem = refusal(outcome.decision, outcome.problem)
    if problem is not None:
        raise problem
    return outcome.decision == "replayed"


def _turn_of(outcome: Outcome, caller: Caller, options: Mapping[str, Any] | None) -> TurnView:
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
    )


def _created(is_replay: bool, outcome: Outcome, caller: Caller) -> Response:  # noqa: FBT001 -- two ways to be answered
    body: dict[str, Any] = {
        "id": str(outcome.conversation_id),
        "title": outcome.title,
        "policy": outcome.policy,
        "created_at": None if outcome.created_at is None else iso(outcome.created_at),
    }
    if outcome.turn_id is not None:
        body["turn"] = turns.accepted(_turn_of(outcome, caller, None), outcome.request_id)
    headers = {"Location": f"/v1/conversations/{outcome.conversation_id}"}
    if is_replay:
        headers |= REPLAYED
    return json_response(body, 200 if is_replay else 201, headers)


def _conversation(row: ConversationView) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "title": row.title,
        "policy": row.policy,
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
        "message_count": row.message_count,
    }


def _is_running(row: MessageView) -> bool:
    return row.role == "assistant" and row.status not in turns.TERMINAL


def _message(row: MessageView, content: str) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "role": row.role,
        "content": content,
        "seq": row.seq,
        "status": row.status,
        "reason": row.reason,
        "turn_id": str(row.turn_id),
        "created_at": iso(row.created_at),
    }
