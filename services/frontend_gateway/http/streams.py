"""Sends a turn's stream over raw ASGI: bounded, resumable, no reason for work to start or stop."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import cast

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from schemas.streams import EntryId
from services.frontend_gateway.core import turns
from services.frontend_gateway.core.cursors import cursor_invalid, stream_position
from services.frontend_gateway.core.following import Position
from services.frontend_gateway.core.problems import Problem
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http.context import Context
from services.frontend_gateway.hub import Closing, SeatClosed
from services.frontend_gateway.live_feed import Feed, locate
from services.frontend_gateway.ports import Caller, Proof

SEND_TIMEOUT_S = 30.0  # a client that takes nothing for so long is cut and comes back by its id
STREAM_RETRY_S = 5  # one of the key's streams has to end first
ABORT = "turnwire.abort"  # put into the scope by the server's protocol

STREAM_HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


class TurnEvents:
    """``GET /v1/turns/{turn_id}/events``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream the turn from where the client stopped."""
        request = Request(scope, receive)
        context = self._context
        caller, proof = await context.doorkeeper.admit(request, "read")
        turn = await context.visible_turn(caller, request.path_params["turn_id"])
        check_shown(turn)
        wanted = stream_position(
            request.headers.get("last-event-id"), request.query_params.get("after")
        )
        if scope["method"] == "HEAD":
            await answer_head(send)
            return
        if wanted is None:
            await serve(context, turn, None, by=(caller, proof), connection=(scope, receive, send))
            return
        resumed = context.metrics.sse_resumes_total
        if turn.has_ended and turns.ending(turn)[-1].id == wanted:
            resumed.labels("finished").inc()
            await _nothing_left(send)
            return
        try:
            position = await _position(context, turn, wanted)
        except Problem:
            resumed.labels("invalid").inc()
            raise
        resumed.labels("snapshot" if position.length is None else "continued").inc()
        await serve(context, turn, position, by=(caller, proof), connection=(scope, receive, send))


async def _position(context: Context, turn: TurnView, wanted: EntryId) -> Position:
    if turns.is_terminal_id(wanted):
        if not turn.has_ended or turns.rest_of_ending(turn, wanted) is None:
            raise cursor_invalid("This turn never issued that entry id.")
        return Position(wanted, None)
    return await locate(turn, wanted, live=context.hub.live, reads=context.store)


async def serve(
    context: Context,
    turn: TurnView,
    position: Position | None,
    *,
    by: tuple[Caller, Proof],
    connection: tuple[Scope, Receive, Send],
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send the stream until ``done``, the client's leaving, or a reason to cut it.

    Raises:
        Problem: Before the response began: ``quota-exceeded`` or ``admission-rejected``.
        StoreUnavailable: Before the response began.
    """
    caller, proof = by
    scope, receive, send = connection
    check_room(context, caller)
    check_shown(turn)
    abort: Callable[[], None] | None = scope.get(ABORT)
    tap = Tap(send, {**STREAM_HEADERS, **(headers or {})})

    def on_close(why: Closing) -> None:
        if why is Closing.SLOW:
            context.metrics.sse_slow_clients_closed_total.inc()
            if abort is not None:
                abort()

    async with context.hub.seat(turn, caller.key_id, proof, on_close) as seat:
        watching = asyncio.create_task(watch_client(receive, seat.close))
        feed = Feed(turn, position, seat=seat, hub=context.hub, reads=context.store)
        chunks = cast("AsyncGenerator[bytes, None]", feed.chunks())
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    await tap.send(chunk)
            await tap.end()
        except SeatClosed as closed:
            await end_closed(tap, closed.why)
        except TimeoutError:
            seat.close(Closing.SLOW)
        finally:
            watching.cancel()


class Tap:
    """The response, begun with the first chunk, so that errors before it are still problems."""

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send = send
        self._headers = headers
        self.is_open = False

    async def send(self, chunk: bytes) -> None:
        """Send a chunk; the first one begins the response. ``TimeoutError`` if nobody takes it."""
        if not self.is_open:
            self.is_open = True
            raw = [(name.encode(), value.encode()) for name, value in self._headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        """Say that nothing follows."""
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def end_closed(tap: Tap, why: Closing) -> None:
    """End a stream that was closed before its last entry.

    Raises:
        Problem: Nothing was sent yet, so the client can still be told why.
    """
    if why in (Closing.GONE, Closing.SLOW):
        return
    if tap.is_open:
        await tap.end()  # the client comes back by itself: elsewhere, or to a 401 or 410
        return
    raise _expired() if why is Closing.DELETED else _stopping()


def check_shown(turn: TurnView) -> None:
    """Whether the turn's answer may be shown.

    Raises:
        Problem: ``stream-expired``: it was deleted, from memory and from the rows.
    """
    if turn.is_answer_deleted:
        raise _expired()


def _expired() -> Problem:
    detail = "The answer was deleted, and its stream with it. Read the turn instead."
    return Problem("stream-expired", detail)


async def answer_head(send: Send) -> None:
    """The headers of a stream, without it."""
    await Tap(send, STREAM_HEADERS).send(b"")
    await send({"type": "http.response.body", "body": b""})


def _stopping() -> Problem:
    detail = "This server is stopping. Open the stream again; it goes on where you are."
    return Problem("admission-rejected", detail, retry_after_s=1)


async def watch_client(receive: Receive, close: Callable[[Closing], None]) -> None:
    """Close the stream when the client leaves; what it watches goes on."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            close(Closing.GONE)
            return


async def _nothing_left(send: Send) -> None:
    headers = [(b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def check_room(context: Context, caller: Caller) -> None:
    """Whether a caller may open one more stream here.

    Raises:
        Problem: ``quota-exceeded``, or ``admission-rejected`` while the process is stopping.
    """
    if context.hub.is_draining:
        context.metrics.admission_rejected_total.labels("shutting_down").inc()
        raise _stopping()
    limit = context.max_streams_per_key
    open_ = context.hub.streams_of(caller.key_id) + context.watchers.streams_of(caller.key_id)
    if open_ < limit:
        return
    context.metrics.admission_rejected_total.labels("streams").inc()
    raise Problem(
        "quota-exceeded",
        f"This key has {limit} open streams, which is its limit here. Close one, then try again.",
        retry_after_s=STREAM_RETRY_S,
        headers={
            "RateLimit-Policy": f'"streams";q={limit}',
            "RateLimit": f'"streams";r=0;t={STREAM_RETRY_S}',
        },
    )
