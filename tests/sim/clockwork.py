"""Virtual time, and who acts next: an event loop without a clock and without waiting.

Time moves only when nobody can act. Callbacks that are ready together run in an order drawn from
the seed; those of one process keep their own order, as they would on its own loop. A callback of a
process that is paused waits until it goes on, as after SIGSTOP.
"""

import asyncio
import contextvars
import heapq
import random
import selectors
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import Any

from tests.sim.process import PROCESS, Process

START_S = 1_000.0
"""Virtual seconds at which every run begins."""


MAX_CALLBACKS = 2_000_000
"""Of one run; the longest ones take a tenth."""

CALLBACK_S = 1e-6
"""What acting costs. Where it cost nothing, two roundings of one moment could wait for each other
without end, as no clock outside lets them."""


class NothingWillHappen(Exception):
    """Nobody can act and no timer is set: the run would wait for ever."""


class RoundInCircles(Exception):
    """So many callbacks ran that somebody must be running in circles."""


class _Unasked(selectors.SelectSelector):
    """The loop asks for its base class' sake; nothing in a run waits for a socket."""

    def select(self, timeout: float | None = None) -> list[Any]:
        del timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """One run's loop.

    Attributes:
        callbacks: How many have run; a bound on a run that goes round in circles.
    """

    def __init__(self, order: random.Random) -> None:
        super().__init__(_Unasked())
        self._now = START_S
        self._order = order
        self._held: dict[Process, list[asyncio.Handle]] = {}
        self.callbacks = 0
        self.set_task_factory(_make_task)
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def go_on(self, process: Process) -> None:
        """Give a process back what waited while it was paused."""
        self._ready.extend(self._held.pop(process, ()))

    def _run_once(self) -> None:
        if not self._ready:
            self._advance()
        while self._scheduled and self._scheduled[0]._when <= self._now:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                self._ready.append(timer)
        batch, self._ready = list(self._ready), deque()
        for handle in self._ordered(batch):
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is not None and process.is_paused:
                self._held.setdefault(process, []).append(handle)
                continue
            self.callbacks += 1
            self._now += CALLBACK_S
            if self.callbacks > MAX_CALLBACKS:
                raise RoundInCircles
            handle._run()

    def _advance(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        if self._stopping:
            return
        if not self._scheduled:
            raise NothingWillHappen
        self._now = max(self._now, self._scheduled[0]._when)

    def _ordered(self, batch: list[asyncio.Handle]) -> Iterator[asyncio.Handle]:
        queues: dict[Process | None, deque[asyncio.Handle]] = {}
        for handle in batch:
            queues.setdefault(handle._context.get(PROCESS), deque()).append(handle)
        waiting = list(queues.values())
        while len(waiting) > 1:
            place = self._order.randrange(len(waiting))
            yield waiting[place].popleft()
            if not waiting[place]:
                del waiting[place]
        for queue in waiting:
            yield from queue


def _make_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, context=context)
    process = (context or contextvars.copy_context()).get(PROCESS)
    if process is not None:
        process.own(task)
    return task
