"""Faults of the services' own processes: killed, frozen, restarted, skewed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.local.errors import PartFailed
from deploy.local.processes import ServiceProcess
from libs.failpoints import FAIL_POINTS
from libs.settings import LOCAL_LIMITS
from tests.chaos.house import GATEWAY
from tests.rig.house import WORKERS
from tests.rig.waiting import until

if TYPE_CHECKING:
    from tests.chaos.house import ChaosHouse

DOWN_S = 1.0
"""Between a SIGKILL and the start of the next process; a supervisor takes about as long."""

FROZEN_S = LOCAL_LIMITS.lease_s + 3.0
"""Beyond the lease: somebody else has taken over when the frozen one wakes up."""

GROUP_DOWN_S = 20.0
ACCEPTING = "ingestion"
"""Without it acceptance stands still, so its coming back is judged like that of a store."""

CHURN_EVERY_S = 3.0
REACH_WITHIN_S = 12.0
"""For a fail point under steady load; above it the process is killed where it happens to be."""

SKEWS = ("-300s", "+300s", "+1d")
FAKETIME_PATTERN = "*/faketime/libfaketimeMT.so.1"
LIBRARIES = Path("/usr/lib")

_SERVICE_OF_POINT = {
    "gateway": "frontend_gateway",
    "ingestion": "ingestion",
    "context": "context_assembly",
    "context_assembly": "context_assembly",
    "llm": "llm_gateway",
    "llm_gateway": "llm_gateway",
}


class FaketimeMissing(Exception):
    """The library that skews a process' clock is not installed."""


def faketime_library() -> Path:
    """Where Debian's package put it.

    Raises:
        FaketimeMissing: With the name of the package.
    """
    for path in LIBRARIES.glob(FAKETIME_PATTERN):
        return path
    raise FaketimeMissing(
        "Clocks are skewed by libfaketimeMT.so.1, which is not installed here: "
        "apt-get install libfaketime"
    )


async def take(house: ChaosHouse, dice: random.Random, services: Sequence[str] = ()) -> str:
    """Choose a process that no other fault has, hold it, and return its name.

    One gateway is always left alone: without any, no promise is tried, and every request fails.
    """
    names = [n for n, p in house.members.items() if not services or p.spec.name in services]
    dice.shuffle(names)
    gateways = [n for n, p in house.members.items() if p.spec.name == GATEWAY]
    taken = {n for n in house.members if house.is_held(n)}
    if taken.intersection(gateways):
        taken.update(gateways)
    name = next((n for n in names if n not in taken), names[0])
    await house.hold(name)
    return name


@dataclass(slots=True)
class Kill9:
    """SIGKILL of any process, which comes back after a second."""

    kind: str = "kill9"
    duration_s: float = DOWN_S
    services: Sequence[str] = ()
    _name: str = ""

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Kill one."""
        self._name = await take(house, dice, self.services)
        await house.kill(house.services[self._name])
        return self._name

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Start it again."""
        try:
            took_s = await house.bring_back(house.services[self._name])
        finally:
            house.let_go(self._name)
        return {"start_ms": round(took_s * 1000)}


@dataclass(slots=True)
class FailPoint:
    """A process that kills itself at a named point the n-th time it gets there."""

    point: str
    kind: str = "fail_point"
    duration_s: float = DOWN_S
    _name: str = ""
    _reached: bool = False

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Restart a process in order with its point armed, and wait until it is dead."""
        service = service_of(self.point)
        self._name = await take(house, dice, (service,))
        process = house.services[self._name]
        async with house.out_of_rotation(process):
            await process.stop()
            armed = f"{self.point}:{dice.randint(1, 3)}:exit"
            process.env = {
                **house.environment(service, process.spec.index),
                "TURNWIRE_FAILPOINT": armed,
            }
            try:
                await process.start()
            except PartFailed:
                if process.exit_code() != -signal.SIGKILL:
                    raise
                # It came to its point before it said that it was ready.

        async def is_dead() -> bool:
            return process.pid is None

        with contextlib.suppress(TimeoutError):
            await until(is_dead, within_s=REACH_WITHIN_S)
            self._reached = True
        if self._reached:
            house.note_death(process)
        else:
            await house.kill(process)
        return f"{self._name} at {self.point}"

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Start it again, without the point."""
        try:
            await house.bring_back(house.services[self._name])
        finally:
            house.let_go(self._name)
        return {"reached": int(self._reached)}


def service_of(point: str) -> str:
    """The service that reaches a fail point."""
    return _SERVICE_OF_POINT[point.split(".", 1)[0]]


def fail_points() -> list[str]:
    """All of them, in a stable order."""
    return sorted(FAIL_POINTS)


@dataclass(slots=True)
class Pause:
    """SIGSTOP beyond the lease, then SIGCONT: a worker that believes it still holds its work."""

    kind: str = "pause"
    duration_s: float = FROZEN_S
    services: Sequence[str] = ()
    _name: str = ""

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Freeze one."""
        self._name = await take(house, dice, self.services)
        house.services[self._name].pause()
        return self._name

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Let it go on."""
        house.services[self._name].resume()
        house.let_go(self._name)
        return {}


@dataclass(slots=True)
class GroupDown:
    """All workers of one kind are dead for a while."""

    kind: str = "group_down"
    duration_s: float = GROUP_DOWN_S
    _service: str = ""
    _names: list[str] = field(default_factory=list)

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Kill them all."""
        self._service = dice.choice(WORKERS)
        for name, process in house.members.items():
            if process.spec.name == self._service:
                await house.hold(name)
                self._names.append(name)
        for name in self._names:
            await house.kill(house.services[name])
        return self._service

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Start them all."""
        if self._service == ACCEPTING:
            house.note_crash(self._service)  # nothing could be accepted until now
        try:
            await asyncio.gather(*(house.bring_back(house.services[n]) for n in self._names))
        finally:
            for name in self._names:
                house.let_go(name)
        return {"killed": len(self._names)}


@dataclass(slots=True)
class Churn:
    """One more worker joins and leaves every three seconds, so that its group has no rest."""

    kind: str = "join_leave"
    duration_s: float = 15.0
    _service: str = ""
    _index: int = 0
    _joins: int = 0
    _ending: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Begin."""
        self._service = dice.choice(WORKERS)
        taken = [p.spec.index for p in house.supervisor.processes if p.spec.name == self._service]
        self._index = max(taken) + 1
        self._task = asyncio.create_task(self._come_and_go(house))
        return self._service

    async def _come_and_go(self, house: ChaosHouse) -> None:
        name = f"{self._service}-{self._index}"
        async with house.holding(name):
            spec = house.spec(self._service, self._index)
            process = ServiceProcess(spec, log_folder=house.log_folder)
            try:
                while not self._ending.is_set():
                    await house.bring_back(process)
                    self._joins += 1
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._ending.wait(), CHURN_EVERY_S)
                    await process.stop()
            finally:
                await process.stop()

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """It leaves for good."""
        del house
        assert self._task is not None
        self._ending.set()
        await self._task
        return {"joins": self._joins}


@dataclass(slots=True)
class RollingRestart:
    """Every process is restarted with SIGTERM, one of a kind at a time, as a new version would.

    Nobody may notice: no request fails and no answer ends early because of it.
    """

    kind: str = "rolling_restart"
    duration_s: float = 0.0
    _task: asyncio.Task[None] | None = None
    _restarted: int = 0

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Begin."""
        del dice
        self._task = asyncio.create_task(self._all(house))
        return "every process"

    async def _all(self, house: ChaosHouse) -> None:
        kinds = dict.fromkeys(process.spec.name for process in house.members.values())
        await asyncio.gather(*(self._one_after_another(house, kind) for kind in kinds))

    async def _one_after_another(self, house: ChaosHouse, service: str) -> None:
        for name, process in house.members.items():
            if process.spec.name != service:
                continue
            async with house.holding(name), house.out_of_rotation(process):
                await process.stop()
                await house.bring_back(process)
                self._restarted += 1

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Wait for the last one to be ready."""
        del house
        assert self._task is not None
        await self._task
        return {"restarted": self._restarted}


@dataclass(slots=True)
class ClockSkew:
    """One process lives in another time than all others: minutes behind or ahead, or a day."""

    kind: str = "clock_skew"
    duration_s: float = 15.0
    _name: str = ""

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Restart a process with its wall clock moved; intervals run as ever."""
        library, skew = faketime_library(), dice.choice(SKEWS)
        self._name = await take(house, dice)
        process = house.services[self._name]
        skewed = {
            **house.environment(process.spec.name, process.spec.index),
            "LD_PRELOAD": str(library),
            "FAKETIME": skew,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        async with house.out_of_rotation(process):
            await process.stop()
            await house.bring_back(process, env=skewed)
        return f"{self._name} by {skew}"

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Restart it in our time."""
        process = house.services[self._name]
        try:
            async with house.out_of_rotation(process):
                await process.stop()
                await house.bring_back(process)
        finally:
            house.let_go(self._name)
        return {}
