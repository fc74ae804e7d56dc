"""Users who do not wait for each other: turns start on a schedule, however slow the answers are.

A closed loop asks less often when answers are slow, and so leaves out exactly the waits that users
would have had (coordinated omission). Here each turn has an intended start; its waits count from
that moment, those for a free client included.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from tests.bench.arithmetic import Delays
from tests.bench.driver import Turn


@dataclass(slots=True)
class OpenSamples:
    """What the schedule brought; waits in milliseconds from the intended starts.

    Attributes:
        unaware: First tokens counted from when the turn was really sent, as a closed loop would.
        most_waiting: Turns that waited for a free client at one moment, at most.
    """

    seconds: float
    turns: int = 0
    first: Delays = field(default_factory=Delays)
    whole: Delays = field(default_factory=Delays)
    unaware: Delays = field(default_factory=Delays)
    most_waiting: int = 0

    @property
    def per_s(self) -> float:
        """Turns a second, until the last answer had ended."""
        return self.turns / self.seconds if self.seconds else 0.0


async def open_loop(turns: Sequence[Turn], starts: Sequence[float]) -> OpenSamples:
    """Start a turn at each of these seconds, on whichever client is free the longest.

    Args:
        turns: One client each; where all are busy a start waits, and its wait counts.
        starts: Ascending seconds from now.
    """
    samples = OpenSamples(0.0)
    free = deque(turns)
    waiting: deque[float] = deque()
    running: set[asyncio.Task[None]] = set()
    began = perf_counter()

    async def play(turn: Turn, intended: float) -> None:
        answer = await turn()
        samples.turns += 1
        samples.first.note((answer.first_at or answer.ended_at) - intended)
        samples.whole.note(answer.ended_at - intended)
        samples.unaware.note((answer.first_at or answer.ended_at) - answer.sent_at)
        if waiting:
            begin(turn, waiting.popleft())
        else:
            free.append(turn)

    def begin(turn: Turn, intended: float) -> None:
        task = asyncio.create_task(play(turn, intended))
        running.add(task)
        task.add_done_callback(running.discard)

    for start in starts:
        intended = began + start
        await asyncio.sleep(max(0.0, intended - perf_counter()))
        if free:
            begin(free.popleft(), intended)
        else:
            waiting.append(intended)
            samples.most_waiting = max(samples.most_waiting, len(waiting))
    while running:  # an ended turn may have begun one that waited
        await asyncio.gather(*running)
    samples.seconds = perf_counter() - began
    return samples
