"""Routes of conversations and their messages."""

from dataclasses import replace
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from libs import ids
from libs.telemetry.names import request_span
from services.frontend_gateway.core import turns
from services.frontend_gateway.core.answers import cut, iso, listed
from services.frontend_gateway.core.asking import (
    Said,
    Wanted,
    conversation_of,
    create_requested,
    delete_requested,
    restore_requested,
    turn_requested,
    update_requested,
)
from services.frontend_gateway.core.cursors import check_names, page, searched, uuid_of
from services.frontend_gateway.core.evidence import BranchView
from services.frontend_gateway.core.problems import FieldError, Problem, not_found
from services.frontend_gateway.http.accepted import (
    REPLAYED,
    accepted_response,
    key_of,
    options_of,
    turn_headers,
    turn_of,
)
from services.frontend_gateway.http.bodies import check_text, read_counted, read_model
from services.frontend_gateway.http.context import (
    Context,
    check_accepted,
    id_in_path,
    json_response,
    wants_stream,
)
from services.frontend_gateway.http.models import (
    ConversationBody,
    ConversationUpdateBody,
    MessageBody,
)
from services.frontend_gateway.http.streams import check_room, serve
from services.frontend_gateway.ports import Caller, ConversationView, MessageView, Outcome

CONVERSATION = "/v1/conversations/{conversation_id}"
RESTORE = f"{CONVERSATION}/restore"
POST_MESSAGE = "/v1/conversations/{conversation_id}/messages"


class ConversationRoutes:
    """``/v1/conversations``, without posting messages."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Make a conversation, and ask for the answer to its first message."""
        context = self._context
        caller, _ = await context.doorkeeper.admit(request, "chat")
        key = key_of(request, required=False)
        body, nul_removed = await read_counted(request, ConversationBody)
        first = None
        if body.message is not None:
            key = key_of(request, required=True)
            check_text(body.message.content, "/message/content")
            options = options_of(body.message.options)
            first = Said(body.message.content, options=options, nul_removed=nul_removed)
        wanted = Wanted(body.title, body.policy, body.model, body.time_zone, first)
        origin = context.origin(request, caller)
        conversation = conversation_of(origin, key)
        turn_id = None
        if first is not None and key is not None:
            turn_id = ids.turn_id(caller.tenant_id, conversation, key)
        with context.tracing.span(
            request_span("POST", "/v1/conversations"),
            kind="server",
            parent_traceparent=context.parent_of(request, turn_id),
            turn_id=turn_id or conversation,
            attributes=context.told_of(caller, "POST", "/v1/conversations", turn_id=turn_id),
        ) as span:
            origin = replace(origin, traceparent=span.traceparent)
            outcome = await context.door.ask(create_requested(origin, key, wanted))
        return _created(check_accepted(outcome), outcome, caller)

    async def all(self, request: Request) -> Response:
        """A page of the caller's conversations."""
        caller, _ = await self._context.doorkeeper.admit(request, "read")
        query = request.query_params
        wanted = page(query, default_order="desc", beside=("query",))
        rows = await self._context.store.conversations(
            caller.tenant_id, caller.principal_id, wanted, searched(query)
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
        wanted = page(request.query_params, default_order="asc", beside=("branch",))
        branch = _branch_in(request)
        conversation = await self._visible(request, caller)
        rows = await self._context.store.messages(
            caller.tenant_id, caller.principal_id, conversation.id, wanted, branch
        )
        shown, has_more = cut(rows, wanted)
        running = [row.turn_id for row in shown if _is_running(row)]
        stored = await self._context.store.checkpoints(caller.tenant_id, running) if running else {}
        data = []
        for row in shown:
            checkpoint = stored.get(row.turn_id) if _is_running(row) else None
            data.append(_message(conversation, row, checkpoint.text if checkpoint else row.content))
        return json_response(listed(data, has_more=has_more))

    async def nameless(self, request: Request) -> Response:
        """A path whose id is empty: the client has a bug, so it is told, and nothing is made."""
        await self._context.doorkeeper.admit(request, "read")
        id_in_path("", "conversation_id")
        raise not_found()

    async def branches(self, request: Request) -> Response:
        """The branches of a conversation, oldest first."""
        caller, _ = await self._context.doorkeeper.admit(request, "read")
        check_names(request.query_params, ())
        conversation = await self._visible(request, caller)
        rows = await self._context.store.branches(
            caller.tenant_id, caller.principal_id, conversation.id
        )
        return json_response(listed([_branch(row) for row in rows], has_more=False))

    async def update(self, request: Request) -> Response:
        """Rename a conversation, or give it another policy."""
        context = self._context
        caller, _ = await context.doorkeeper.admit(request, "chat")
        wanted = _conversation_in(request)
        body = await read_model(request, ConversationUpdateBody)
        if body.title is None and body.policy is None:
            error = FieldError("", "name a title or a policy")
            raise Problem("validation-error", "There is nothing to change.", errors=(error,))
        await context.ask(
            request,
            caller,
            about=(CONVERSATION, wanted),
            of_turn=False,
            make=lambda origin: update_requested(
                origin, wanted, title=body.title, policy=body.policy
            ),
        )
        return json_response(_conversation(await self._visible(request, caller)))

    async def delete(self, request: Request) -> Response:
        """Delete a conversation: gone at once, and for good after a while."""
        context = self._context
        caller, _ = await context.doorkeeper.admit(request, "chat")
        wanted = _conversation_in(request)
        await context.ask(
            request,
            caller,
            about=(CONVERSATION, wanted),
            of_turn=False,
            make=lambda origin: delete_requested(origin, wanted),
        )
        return Response(status_code=204)

    async def restore(self, request: Request) -> Response:
        """Bring a deleted conversation back, as long as it is not purged."""
        context = self._context
        caller, _ = await context.doorkeeper.admit(request, "chat")
        wanted = _conversation_in(request)
        await context.ask(
            request,
            caller,
            about=(RESTORE, wanted),
            of_turn=False,
            make=lambda origin: restore_requested(origin, wanted),
        )
        return json_response(_conversation(await self._visible(request, caller)))

    async def _visible(self, request: Request, caller: Caller) -> ConversationView:
        text = request.path_params["conversation_id"]
        return await self._context.visible_conversation(caller, text)


def _conversation_in(request: Request) -> UUID:
    return id_in_path(request.path_params["conversation_id"], "conversation_id")


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
        key = key_of(request, required=True) or ""
        body, nul_removed = await read_counted(request, MessageBody)
        check_text(body.content, "/content")
        is_streamed = wants_stream(request)
        if is_streamed:
            check_room(context, caller)  # before anything is asked for
        said = _said(body, nul_removed)
        outcome = await self._ask(request, caller, conversation, (key, said))
        is_replay = check_accepted(outcome)
        turn = turn_of(outcome, caller, said.options)
        headers = turn_headers(turn, outcome)
        if is_streamed:
            if is_replay or turn.has_ended:  # its end stands in its row, not in the outcome
                turn = await context.visible_turn(caller, str(turn.id))
            connection = (scope, receive, send)
            await serve(
                context, turn, None, by=(caller, proof), connection=connection, headers=headers
            )
            return
        await accepted_response(turn, outcome)(scope, receive, send)

    async def _ask(
        self, request: Request, caller: Caller, conversation: UUID, asked: tuple[str, Said]
    ) -> Outcome:
        context = self._context
        key, said = asked
        turn_id = ids.turn_id(caller.tenant_id, conversation, key)
        with context.tracing.span(
            request_span("POST", POST_MESSAGE),
            kind="server",
            parent_traceparent=context.parent_of(request, turn_id),
            turn_id=turn_id,
            attributes=context.told_of(caller, "POST", POST_MESSAGE, turn_id=turn_id),
        ) as span:
            origin = replace(context.origin(request, caller), traceparent=span.traceparent)
            return await context.door.ask(turn_requested(origin, conversation, key, said))


def _said(body: MessageBody, nul_removed: int) -> Said:
    return Said(
        content=body.content,
        policy=body.policy,
        parent=body.parent,
        model=body.model,
        options=options_of(body.options),
        time_zone=body.time_zone,
        nul_removed=nul_removed,
    )


def _created(is_replay: bool, outcome: Outcome, caller: Caller) -> Response:  # noqa: FBT001 -- two ways to be answered
    body: dict[str, Any] = {
        "id": str(outcome.conversation_id),
        "title": outcome.title,
        "policy": outcome.policy,
        "created_at": None if outcome.created_at is None else iso(outcome.created_at),
    }
    if outcome.turn_id is not None:
        body["turn"] = turns.accepted(turn_of(outcome, caller, None), outcome.request_id)
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


def _branch_in(request: Request) -> UUID | None:
    """The branch whose messages are listed; None for the one that is continued."""
    text = request.query_params.get("branch")
    if text is None:
        return None
    found = uuid_of(text)
    if found is None:
        raise not_found()
    return found


def _branch(row: BranchView) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "kind": row.kind,
        "parent_branch_id": _text(row.parent_branch_id),
        "fork_seq": row.fork_seq,
        "is_active": row.is_active,
        "first_turn_id": _text(row.first_turn_id),
        "last_turn_id": _text(row.last_turn_id),
        "created_at": iso(row.created_at),
    }


def _text(id_: UUID | None) -> str | None:
    return None if id_ is None else str(id_)


def _message(conversation: ConversationView, row: MessageView, content: str) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "role": row.role,
        "content": content,
        "seq": row.seq,
        "status": row.status,
        "reason": row.reason,
        "turn_id": str(row.turn_id),
        "branch_id": str(row.branch_id or conversation.id),
        "supersedes": _text(row.supersedes),
        "kind": row.kind,
        "created_at": iso(row.created_at),
    }
