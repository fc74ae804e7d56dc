"""Waits for the rows that answer requests: one query for all, told by a ring or by time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

from libs.errors import StoreUnavailable
from libs.redis.ports import reply_channel
from services.frontend_gateway.hub import Bell
from services.frontend_gateway.ports import Asked, Outcome, Outcomes

FIRST_POLL_S = 0.1  # a ring comes sooner; without Redis this is the price of a message
POLL_GROWTH = 1.5
SLOWEST_POLL_S = 1.0
RUNG = 0.0  # before every time of the loop's clock
MAX_ASKED = 256  # requests in one query; the rest is asked right after


@dataclass(slots=True, eq=False)
class _Waiting:
    asked: Asked
    answer: "asyncio.Future[Outcome]"
    due_at: float
    pause_s: float = FIRST_POLL_S


class OutcomeDesk:
    """Made once per process; all requests that wait share one poller."""

    def __init__(self, rows: Outcomes, bell: Bell) -> None:
        self._rows = rows
        self._bell = bell
        self._waiting: dict[UUID, _Waiting] = {}
        self._woken = asyncio.Event()
        self._listening: set[asyncio.Task[None]] = set()
        self._poller: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def expect(self, asked: Asked) -> AsyncIterator["asyncio.Future[Outcome]"]:
        """Listen for the ring of a request, then publish it inside the ``async with``.

        The subscription is on its way, and nobody waits for its confirmation: the ring follows a
        commit that has not begun, and a ring that is lost all the same costs one poll.

        Yields a future that only a row fulfils; the caller bounds the wait.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(asked, loop.create_future(), loop.time() + FIRST_POLL_S)
        listening = asyncio.create_task(self._listen(waiting), name="reply")
        self._listening.add(listening)
        listening.add_done_callback(self._listening.discard)
        self._waiting[asked.request_id] = waiting
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(), name="outcomes")
        try:
            await asyncio.sleep(0)  # the task subscribes before anything is published
            yield waiting.answer
        finally:
            del self._waiting[asked.request_id]
            waiting.answer.cancel()
            self._woken.set()

    async def close(self) -> None:
        """Stop polling; whoever still waits runs into its own time limit."""
        running = set(self._listening)
        if self._poller is not None:
            running.add(self._poller)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=1)

    async def _listen(self, waiting: _Waiting) -> None:
        """Hear the ring of one request until it is answered or given up."""

        def on_bell(_channel: str, _body: bytes) -> None:
            self._ask_now(waiting)

        def on_lost() -> None:
            self._ask_now(waiting)

        channel = reply_channel(waiting.asked.request_id)
        async with self._bell.listen(channel, on_bell, on_lost):
            await asyncio.wait([waiting.answer])

    def _ask_now(self, waiting: _Waiting) -> None:
        waiting.due_at = RUNG
        self._woken.set()

    async def _poll(self) -> None:
        """Runs while anybody waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            now = loop.time()
            open_ = [one for one in self._waiting.values() if not one.answer.done()]
            due = [one for one in open_ if one.due_at <= now]
            if due:
                is_rung = all(one.due_at == RUNG for one in due)
                await self._ask((due if is_rung else open_)[:MAX_ASKED])
                continue
            self._woken.clear()
            next_at = min((one.due_at for one in open_), default=now + SLOWEST_POLL_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_at - now):
                    await self._woken.wait()

    async def _ask(self, due: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        for one in due:
            one.due_at = loop.time() + one.pause_s
            one.pause_s = min(one.pause_s * POLL_GROWTH, SLOWEST_POLL_S)
        try:
            rows = await self._rows.outcomes([one.asked for one in due])
        except StoreUnavailable:
            return  # asked again when it is due
        for row in rows:
            waiting = self._waiting.get(row.request_id)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(row)
