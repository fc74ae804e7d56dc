"""The story of one turn in times: which hops it passed, and how long each took."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from services.frontend_gateway.core.turns import TurnView

HopName = Literal[
    "accepted", "started", "planned", "refused", "called", "first_token", "call_ended", "committed"
]
"""In the order of a plain turn; with several attempts the three of a call come once for each."""

RUNNING = "running"
"""Outcome of an attempt that is not over."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A state that a turn entered."""

    status: str
    reason: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class StepView:
    """A step of a turn: what was decided about it, and when."""

    step_id: UUID
    step_no: int
    state: str
    reason: str | None
    invariant: str | None
    model: str
    created_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of a step; times are None where nobody measured them.

    Attributes:
        failure: Class and code of the last provider failure.
        requests: Sent to the provider.
        first_token_ms: From the beginning to the first delta.
    """

    step_id: UUID
    attempt: int
    model: str
    outcome: str
    reason: str | None = None
    failure: str | None = None
    requests: int | None = None
    first_token_ms: int | None = None
    duration_ms: int | None = None
    began_at: datetime | None = None
    ended_at: datetime | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Hop:
    """One point that a turn passed.

    Attributes:
        duration_ms: Since the hop before it, at least 0; None of the first. Clocks of two machines
            may differ by more than a hop takes, so a hop never counts time that another counted.
        step_no: Of hops that belong to a step.
        attempt: Of hops that belong to an attempt.
    """

    name: HopName
    at: datetime
    duration_ms: float | None
    step_no: int | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class _Point:
    name: HopName
    at: datetime
    step_no: int | None = None
    attempt: int | None = None


def hops(
    turn: TurnView, steps: Sequence[StepView], attempts: Sequence[AttemptView]
) -> tuple[Hop, ...]:
    """The hops that a turn has passed, first one first.

    Args:
        steps: In their order.
        attempts: In the order of their numbers.
    """
    points = [_Point("accepted", turn.created_at)] if turn.created_at is not None else []
    if turn.started_at is not None:
        points.append(_Point("started", turn.started_at))
    for step in steps:
        name: HopName = "planned" if step.reason is None else "refused"
        points.append(_Point(name, step.created_at, step.step_no))
        for attempt in attempts:
            if attempt.step_id == step.step_id:
                points += _points_of(attempt, step.step_no)
    if turn.ended_at is not None:
        points.append(_Point("committed", turn.ended_at))
    return _timed(points)


def _points_of(attempt: AttemptView, step_no: int) -> list[_Point]:
    points: list[_Point] = []
    if attempt.began_at is not None:
        points.append(_Point("called", attempt.began_at, step_no, attempt.attempt))
        if attempt.first_token_ms is not None:
            share = attempt.first_token_ms / max(1, attempt.duration_ms or 0)
            if attempt.ended_at is not None:
                shown_at = attempt.began_at + (attempt.ended_at - attempt.began_at) * min(1, share)
                points.append(_Point("first_token", shown_at, step_no, attempt.attempt))
    if attempt.ended_at is not None:
        points.append(_Point("call_ended", attempt.ended_at, step_no, attempt.attempt))
    return points


def _timed(points: Sequence[_Point]) -> tuple[Hop, ...]:
    """Give each point the time since the latest of those before it."""
    found: list[Hop] = []
    latest: datetime | None = None
    for point in points:
        taken_ms = None
        if latest is not None:
            taken_ms = round(max(0.0, (point.at - latest).total_seconds() * 1000), 3)
        found.append(Hop(point.name, point.at, taken_ms, point.step_no, point.attempt))
        latest = point.at if latest is None else max(latest, point.at)
    return tuple(found)
