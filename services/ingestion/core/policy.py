"""What happens to a new message while an earlier turn of its branch is still open."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from schemas.requests import Policy

SUPPORTED: frozenset[Policy] = frozenset({"serialize"})
"""Policies this release carries out; a request for another one is rejected, never reinterpreted."""

MAX_OPEN_TURNS = 32
"""Open turns of one conversation; more would wait longer than any client stays."""


@dataclass(frozen=True, slots=True)
class Starts:
    """Nothing is in the way: the turn starts in the transaction that accepts it."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The turn waits behind ``position`` others (at least 1)."""

    position: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The message is not accepted while ``running`` is open."""

    running: UUID


@dataclass(frozen=True, slots=True)
class Branches:
    """The turn starts at once, as a sibling of ``beside``."""

    beside: UUID


@dataclass(frozen=True, slots=True)
class Replaces:
    """``cancels`` are told to stop; the turn waits behind the first of them."""

    cancels: tuple[UUID, ...]


Placement = Starts | Waits | Refused | Branches | Replaces


def place(policy: Policy, open_turns: Sequence[UUID]) -> Placement:
    """Where a new turn goes.

    Args:
        open_turns: The branch's turns that have not ended, in their order; the first one runs.
    """
    if not open_turns:
        return Starts()
    match policy:
        case "serialize" | "queue":
            return Waits(len(open_turns))
        case "reject":
            return Refused(open_turns[0])
        case "branch":
            return Branches(open_turns[0])
        case "replace":
            return Replaces(tuple(open_turns))
