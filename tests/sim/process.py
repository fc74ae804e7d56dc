"""One simulated operating-system process: its tasks, its clock, its death."""

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from libs.ids import uuid7
from tests.sim.faults import Fault

EPOCH = datetime(2026, 6, 1, tzinfo=UTC)
"""Wall time at virtual second 0."""

PROCESS: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)
"""Whose code is running."""


class Scheduler(Protocol):
    """What a process asks at each step boundary."""

    random: random.Random
    processes: list["Process"]

    def fault_of(self, port: str, process: "Process", detail: str) -> Fault | None:
        """The fault that hits this step, already counted; faults of processes are carried out."""
        ...


class Process:
    """One life of a process; a restart makes another one.

    Attributes:
        kind: The service's folder, or ``client``.
        skew_s: How far its wall clock is off.
        calls: Provider calls under way, those that have just ended included.
        endings: Those of them that have just ended: they are about to be stored.
        at_death: Called when it is killed, to give back what the outside world sees closed.
    """

    def __init__(self, name: str, kind: str, scheduler: Scheduler) -> None:
        self.name = name
        self.kind = kind
        self.is_alive = True
        self.is_paused = False
        self.skew_s = 0.0
        self.calls = 0
        self.endings = 0
        self.at_death: list[Callable[[], None]] = []
        self._scheduler = scheduler
        self._tasks: dict[asyncio.Task[Any], None] = {}
        scheduler.processes.append(self)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Count a task as this process' own."""
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task in this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def soon(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call something in this process later, if it still lives."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)

        def act_if_alive() -> None:
            if self.is_alive:
                act(*arguments)

        asyncio.get_running_loop().call_later(delay_s, act_if_alive, context=context)

    def end_call(self) -> None:
        """A call that ended is stored by now, or never will be."""
        self.calls -= 1
        self.endings -= 1

    def kill(self) -> None:
        """End it as SIGKILL does: nothing it still tries reaches the outside world."""
        self.is_alive = False
        for give_back in self.at_death:
            give_back()
        for task in tuple(self._tasks):
            task.cancel()

    async def step(self, port: str, detail: str = "") -> Fault | None:
        """Before something reaches the outside world: others may act, faults may strike."""
        await self._elsewhere()
        fault = self._scheduler.fault_of(port, self, detail)
        if not self.is_alive:
            await asyncio.sleep(0)  # the cancellation that killed it arrives here
            raise asyncio.CancelledError
        if self.is_paused:
            await asyncio.sleep(0)
        return fault

    async def answer(self) -> None:
        """After it: the answer is on its way back, and may find nobody."""
        await self._elsewhere()

    async def _elsewhere(self) -> None:
        if not self.is_alive:
            raise asyncio.CancelledError
        await asyncio.sleep(self._scheduler.random.uniform(0.000_1, 0.004))
        if not self.is_alive:
            raise asyncio.CancelledError


def running() -> Process:
    """The process whose code is running."""
    process = PROCESS.get()
    assert process is not None, "code of the house ran outside of every process"
    return process


class ProcessClock:
    """The clock of one process; implements ``libs.clock.Clock``."""

    def __init__(self, process: Process, random_bytes: Callable[[int], bytes]) -> None:
        self._process = process
        self._random_bytes = random_bytes

    def now(self) -> datetime:
        """Virtual wall time, as far off as this process' clock is."""
        return wall_time(asyncio.get_running_loop().time() + self._process.skew_s)

    def monotonic(self) -> float:
        """Virtual seconds."""
        return asyncio.get_running_loop().time()

    async def sleep(self, delay_s: float) -> None:
        """Wait on the virtual loop."""
        await asyncio.sleep(delay_s)

    def new_id(self) -> UUID:
        """A uuid7 of this clock and of the seed."""
        return uuid7(int(self.now().timestamp() * 1_000), self._random_bytes(10))


def wall_time(seconds: float) -> datetime:
    """Wall time of a virtual second."""
    return EPOCH + timedelta(seconds=round(seconds, 6))
