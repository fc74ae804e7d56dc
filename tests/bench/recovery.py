"""How long users notice that a process was killed, while turns are running."""

import asyncio
import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from tests.bench.bench_house import SERVICES, STORES, BenchHouse
from tests.bench.driver import TURNS_PER_CONVERSATION
from tests.rig.client import Client

KILLED: Sequence[str] = (*SERVICES, *STORES)
SPEAKERS = 6
PAUSE_S = 0.05
SLOW_MS = 15
"""Before each of an answer's 32 tokens, so that answers are under way when something is killed."""

CALM_S = 1.5
"""Of ordinary turns before each kill."""

BOUND_S = 60.0
LOOK_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Recovery:
    """What one kill did.

    Attributes:
        ready_s: From the kill until the process, started again at once, said it was ready.
        whole_s: From the kill to the end of the first whole answer to a message sent after it.
        touched: Turns that ran at the kill.
        touched_s: From the kill until the last of them had ended.
            Infinite, as ``whole_s``, where it did not come within ``BOUND_S``.
        partial: Of those, the ones that ended with a part of their answer.
    """

    name: str
    ready_s: float
    whole_s: float
    touched: int
    touched_s: float
    partial: int


@dataclass(slots=True)
class _Said:
    began: float
    ended: float = 0.0
    status: str = ""


class _Speakers:
    """Clients that post, read their stream to its end, and come back after every failure."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False
        self.said: list[_Said] = []

    def start(self) -> None:
        """Begin to speak."""
        self._tasks = [asyncio.create_task(self._speak(n)) for n in range(SPEAKERS)]

    async def stop(self) -> None:
        """Let what was said be answered, then end."""
        self._is_over = True
        _, late = await asyncio.wait(self._tasks, timeout=BOUND_S)
        for task in late:
            task.cancel()

    def check(self) -> None:
        """Raise what a speaker failed with."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _speak(self, number: int) -> None:
        while not self._is_over:
            conversation = await self._client.conversation()
            for n in range(TURNS_PER_CONVERSATION):
                if self._is_over:
                    return
                one = _Said(perf_counter())
                self.said.append(one)
                post = await self._client.say(conversation, f"Speaker {number} asks {n}")
                assert post.stream is not None
                assert post.stream.done is not None
                one.status = post.stream.done["status"]
                one.ended = perf_counter()
                await asyncio.sleep(PAUSE_S)


async def measure_recovery(house: BenchHouse, killed: Sequence[str]) -> list[Recovery]:
    """Kill one process after the other under a few clients, and start each again at once."""
    speakers = _Speakers(await house.client("recovery"))
    await house.provider.control("POST", "/script", {"default": {"delay_ms": SLOW_MS}})
    speakers.start()
    found = []
    try:
        for name in killed:
            await asyncio.sleep(CALM_S)
            found.append(await _killed(house, name, speakers))
    finally:
        await speakers.stop()
        await house.provider.control("POST", "/script", {"default": {}})
    return found


async def _killed(house: BenchHouse, name: str, speakers: _Speakers) -> Recovery:
    process = house.server(name)
    at = perf_counter()
    touched = [one for one in speakers.said if not one.ended]
    await process.kill()
    await process.start()
    ready_s = perf_counter() - at
    with contextlib.suppress(TimeoutError):  # what never came is told as such
        async with asyncio.timeout(BOUND_S):
            while not _whole_since(speakers.said, at) or not all(one.ended for one in touched):
                speakers.check()
                await asyncio.sleep(LOOK_EVERY_S)
    return Recovery(
        name,
        ready_s,
        min((one.ended - at for one in _whole_since(speakers.said, at)), default=math.inf),
        len(touched),
        max(((one.ended or math.inf) - at for one in touched), default=0.0),
        sum(one.status == "partial" for one in touched),
    )


def _whole_since(said: Sequence[_Said], at: float) -> list[_Said]:
    return [one for one in said if one.began > at and one.ended and one.status == "completed"]
