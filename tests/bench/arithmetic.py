"""The arithmetic of measuring: when to send, how late an answer was, how fast something grows."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench.machine import percentile


def random_starts(per_s: float, seconds: float, dice: random.Random) -> list[float]:
    """Moments at which users who do not know each other ask: gaps are exponential.

    Args:
        per_s: Starts a second on average.

    Returns:
        Seconds since the beginning, ascending, all below ``seconds``.
    """
    starts: list[float] = []
    at = dice.expovariate(per_s)
    while at < seconds:
        starts.append(at)
        at += dice.expovariate(per_s)
    return starts


@dataclass(slots=True)
class Delays:
    """Milliseconds of one kind of wait, for percentiles."""

    ms: list[float] = field(default_factory=list)

    def note(self, seconds: float) -> None:
        """Add one wait."""
        self.ms.append(seconds * 1000)

    def p(self, percent: float) -> float:
        """The wait that ``percent`` of all do not exceed; 0 without any."""
        return percentile(self.ms, percent)

    @property
    def longest(self) -> float:
        """The longest wait; 0 without any."""
        return max(self.ms, default=0.0)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How much y grows for each x, by least squares; 0 where the points do not tell."""
    count = len(points)
    if count < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread == 0:
        return 0.0
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def settled(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The later half of a series: caches, pools and heaps have filled by then."""
    return points[len(points) // 2 :]


def ratio(ours: float, other: float) -> float:
    """Ours over the other's; 0 where there is no other."""
    return ours / other if other else 0.0
