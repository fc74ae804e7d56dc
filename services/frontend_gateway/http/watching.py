"""Streams what goes on in a conversation, so that a second window knows of the first."""

import asyncio

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from libs.errors import StoreUnavailable
from services.frontend_gateway.core.activity import Watching
from services.frontend_gateway.core.problems import not_found
from services.frontend_gateway.core.sse import PING, PREAMBLE
from services.frontend_gateway.http.context import Context
from services.frontend_gateway.http.streams import (
    STREAM_HEADERS,
    Tap,
    answer_head,
    check_room,
    end_closed,
    watch_client,
)
from services.frontend_gateway.hub import SeatClosed
from services.frontend_gateway.watching import Watch


class ConversationEvents:
    """``GET /v1/conversations/{conversation_id}/events``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell the state, then what begins and ends, until the conversation or the client goes."""
        context = self._context
        request = Request(scope, receive)
        caller, proof = await context.doorkeeper.admit(request, "read")
        text = request.path_params["conversation_id"]
        conversation = await context.visible_conversation(caller, text)
        if scope["method"] == "HEAD":
            await answer_head(send)
            return
        check_room(context, caller)
        watching = Watching()
        tap = Tap(send, STREAM_HEADERS)
        by = (caller.key_id, proof)
        async with context.watchers.watch(caller.tenant_id, conversation.id, by=by) as watch:
            leaving = asyncio.create_task(watch_client(receive, watch.close))
            try:
                now = await context.watchers.look(caller.tenant_id, conversation.id)
                if now.is_deleted:
                    raise not_found()
                state = watching.begin(conversation.continues_on, now)
                await tap.send(PREAMBLE + state.frame)
                await self._follow(tap, watch, watching)
                await tap.end()
            except SeatClosed as closed:
                await end_closed(tap, closed.why)
            except StoreUnavailable:
                if not tap.is_open:
                    raise
                await tap.end()
            except TimeoutError:
                return  # it takes nothing; its next stream begins with the state
            finally:
                leaving.cancel()

    async def _follow(self, tap: Tap, watch: Watch, watching: Watching) -> None:
        ping_s = self._context.hub.pace.ping_s
        silent_s = 0.0
        loop = asyncio.get_running_loop()
        while not watching.is_over:
            began = loop.time()
            now = await watch.next(ping_s - silent_s)
            silent_s += loop.time() - began
            notices = [] if now is None else watching.changes(now)
            chunk = b"".join(notice.frame for notice in notices)
            if not chunk and silent_s >= ping_s:
                chunk = PING
            if chunk:
                await tap.send(chunk)
                silent_s = 0.0
