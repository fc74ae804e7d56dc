"""The faults of a run: an explicit list drawn from the seed, so that it can be shrunk.

A fault strikes the n-th time that its port is used, whoever uses it; faults of whole processes
strike the process that happens to make the n-th step of all (``process``), or the n-th of those
that matter most (``call``, ``lease``, ``ending``).
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

PORTS: Mapping[str, tuple[str, ...]] = {
    "process": ("crash", "crash", "crash", "pause", "skew"),
    "call": ("crash", "pause"),
    "lease": ("run_out",),
    "ending": ("run_out", "crash"),
    "postgres": ("refused", "lost_request", "lost_reply", "lost_reply", "restart"),
    "postgres.session": ("refused", "lost"),
    "kafka.publish": ("refused", "lost_reply", "partly", "twice"),
    "kafka.poll": ("repeat", "delay", "rebalance", "evict", "restart", "restart_empty"),
    "kafka.commit": ("refused", "lost_reply"),
    "redis.append": ("refused", "lost_reply", "flush", "away", "killed"),
    "redis.read": ("refused",),
    "redis.bell": ("dropped",),
    "provider": ("server_error", "throttled", "refused", "hang", "cut", "cut"),
}
"""Kinds by port; one that stands twice is drawn twice as often.

``call`` is used at each step of a process that has a model call under way. When that process turns
to Postgres, ``lease`` is used, or ``ending`` where a call has just ended and is about to be stored:
it then stands still until its lease has run out and others have taken the call over, and goes on
with its write.
"""

CLIENT_ACTS = ("disconnect", "resume", "duplicate", "foreign_read")
"""What clients do on purpose, counted with the faults."""

REACH: Mapping[str, int] = {
    "process": 450,
    "call": 100,
    "lease": 30,
    "ending": 12,
    "postgres": 160,
    "postgres.session": 24,
    "kafka.publish": 16,
    "kafka.poll": 160,
    "kafka.commit": 20,
    "redis.append": 30,
    "redis.read": 18,
    "redis.bell": 30,
    "provider": 5,
}
"""About how often a run uses each port before it is healed: where faults are placed."""

MAX_FAULTS = 9
STORM_FAULTS = 24
"""At most so many in every fifth seed, where faults meet the repair of others."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        nth: Strikes at this use of the port, from 1.
        value: In [0, 1): how long, how far, which one; each kind reads it its own way.
    """

    port: str
    kind: str
    nth: int
    value: float

    def __str__(self) -> str:
        return f"{self.port}/{self.kind}@{self.nth}({self.value:.3f})"


def draw(seed: int) -> tuple[Fault, ...]:
    """The faults of a seed, in every fifth a storm of them; never two at one use of a port."""
    source = random.Random(f"faults {seed}")
    drawn: dict[tuple[str, int], Fault] = {}
    most = STORM_FAULTS if seed % 5 == 0 else MAX_FAULTS
    for _ in range(source.randint(0, most)):
        port = source.choice((*PORTS, "process", "postgres", "provider"))
        nth = source.randint(1, REACH[port])
        drawn[port, nth] = Fault(port, source.choice(PORTS[port]), nth, round(source.random(), 3))
    return tuple(sorted(drawn.values(), key=lambda fault: (fault.port, fault.nth)))
