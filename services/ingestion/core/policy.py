"""What happens to a new message while an earlier turn of its branch is still open."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from schemas.requests import Policy

MAX_OPEN_TURNS = 32
"""Open turns of one conversation; more would wait longer than any client stays."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Nothing is in the way: the turn starts in the transaction that accepts it."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The turn waits behind ``position`` others (at least 1).

    Attributes:
        is_bounded: Whether it gives up after a while.
    """

    position: int
    is_bounded: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The message is not accepted while ``running`` is open."""

    running: UUID


@dataclass(frozen=True, slots=True)
class Full:
    """As many turns wait already as may wait."""

    waiting: int


@dataclass(frozen=True, slots=True)
class Branches:
    """The turn starts at once, as a sibling of ``beside``."""

    beside: UUID


@dataclass(frozen=True, slots=True)
class Replaces:
    """``cancels`` are told to stop; the turn waits behind them, in their order."""

    cancels: tuple[UUID, ...]


Placement = Starts | Waits | Refused | Full | Branches | Replaces


def place(policy: Policy, open_turns: Sequence[UUID], *, queue_depth: int) -> Placement:
    """Where a new turn goes.

    Args:
        open_turns: The branch's turns that have not ended, in their order; the first one runs.
        queue_depth: How many may wait under policy ``queue``.
    """
    if not open_turns:
        return Starts()
    behind = Waits(len(open_turns))
    placements: dict[Policy, Placement] = {
        "serialize": behind,
        "queue": _bounded(behind, queue_depth),
        "reject": Refused(open_turns[0]),
        "branch": Branches(open_turns[0]),
        "replace": Replaces(tuple(open_turns)),
    }
    return placements[policy]


def _bounded(behind: Waits, queue_depth: int) -> Waits | Full:
    waiting = behind.position - 1
    return Full(waiting) if waiting >= queue_depth else Waits(behind.position, is_bounded=True)
