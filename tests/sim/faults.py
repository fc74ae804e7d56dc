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
    "cancelling": ("crash", "crash", "pause"),
    "operating": ("refused", "lost_request", "lost_reply"),
}
"""Kinds by port; one that stands twice is drawn twice as often.

``call`` is used at each step of a process that has a model call under way. When that process turns
to Postgres, ``lease`` is used, or ``ending`` where a call has just ended and is about to be stored:
it then stands still until its lease has run out and others have taken the call over, and goes on
with its write. ``cancelling`` is used like ``call`` while a client has just cancelled a turn.
``operating`` stands for ``postgres`` where an operator turns to it.
"""

CHANGING = frozenset({0, 2, 5})
"""Of six seeds these also cancel, edit, answer again, continue and delete; the others only talk."""

CLIENT_ACTS = (
    "disconnect",
    "resume",
    "duplicate",
    "foreign_read",
    "policy",
    "model",
    "edit",
    "regenerate",
    "continue",
    "cancel",
    "delete_message",
    "delete",
    "restore",
)
"""What clients do on purpose, counted with the faults."""

DEEDS: Mapping[str, tuple[str, ...]] = {
    "client": CLIENT_ACTS,
    "operator": ("archive", "unarchive", "instruct"),
    "house": ("purge", "trim", "trim_section", "instructed_plan"),
}
"""What is done on purpose, and what came of it: conversations that were purged; plans that left
something out, for the whole budget or for the history's own; plans that show instructions."""

OPERATIONS = (
    *("cancel", "edit", "regenerate", "continue", "delete_message", "delete", "restore"),
    *("queue", "reject", "replace", "branch"),
    *("archive", "unarchive"),
)
"""What somebody waits for while faults strike; see ``World.during``."""

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
    "cancelling": 40,
    "operating": 4,
}
"""About how often a run uses each port before it is healed: where faults are placed."""

MAX_FAULTS = 9
OPERATING_FAULTS = 2
OPERATING_SHARE = 0.3
"""At most so many strike operators, each in so many of the seeds in which there are any."""

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


def changes(seed: int) -> bool:
    """Whether the clients of a seed change what was said and asked."""
    return seed % 6 in CHANGING


def draw(seed: int) -> tuple[Fault, ...]:
    """The faults of a seed, in every fifth a storm of them; never two at one use of a port."""
    source = random.Random(f"faults {seed}")
    drawn: dict[tuple[str, int], Fault] = {}
    most = STORM_FAULTS if seed % 5 == 0 else MAX_FAULTS
    ports = [port for port in PORTS if port not in ("cancelling", "operating")]
    if changes(seed):
        ports += ("cancelling",) * 4
    for _ in range(source.randint(0, most)):
        port = source.choice((*ports, "process", "postgres", "provider"))
        nth = source.randint(1, REACH[port])
        drawn[port, nth] = _drawn(source, port, nth)
    if changes(seed):
        # Dice of their own: the faults of old seeds stay what they were.
        source = random.Random(f"operating faults {seed}")
        for nth in source.sample(range(1, REACH["operating"] + 1), OPERATING_FAULTS):
            if source.random() < OPERATING_SHARE and len(drawn) < STORM_FAULTS:
                drawn["operating", nth] = _drawn(source, "operating", nth)
    return tuple(sorted(drawn.values(), key=lambda fault: (fault.port, fault.nth)))


def _drawn(source: random.Random, port: str, nth: int) -> Fault:
    return Fault(port, source.choice(PORTS[port]), nth, round(source.random(), 3))
