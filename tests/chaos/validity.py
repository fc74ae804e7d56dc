"""Whether a run may be believed: enough happened, and enough of it went well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from libs.failpoints import FAIL_POINTS
from tests.chaos.changing import CHANGES
from tests.chaos.clients import Operation
from tests.chaos.fault import Injection
from tests.chaos.schedule import AFTERMATH_S, FAIL_POINT, ROLLING, Lane

OUTSIDE_SHARE = 0.25
"""Of a run, at least, must lie outside all fault windows."""

OK_OUTSIDE = 0.95
OK_INSIDE = 0.60

TURNS_FOR_EVERY_CHANGE = 600
"""From so many accepted turns on, clients must have made every kind of change."""

EFFECTS = {
    "provider": "answers",
    "drop_commit_reply": "dropped_replies",
    "drop_reply": "dropped_replies",
    "duplicate_records": "copies",
    "replay_topic": "records",
    "poison_records": "parked",
    "join_leave": "joins",
}
"""Figures that tell whether a fault has hit anything."""


@dataclass(frozen=True, slots=True)
class Course:
    """What happened in a run, for the judge.

    Attributes:
        load_s: When clients began and ended, in seconds since the run's start.
        changes: What clients changed, by kind and by policy.
    """

    injections: Sequence[Injection]
    operations: Sequence[Operation]
    accepted: int
    load_s: tuple[float, float]
    changes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Validity:
    """Shares of the run; every sentence in ``complaints`` makes it invalid."""

    outside: float
    ok_outside: float
    ok_inside: float
    complaints: tuple[str, ...]


def windows(injections: Iterable[Injection]) -> list[tuple[float, float]]:
    """Fault windows, each from an injection to its healing and the aftermath; merged, in order."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted((one.at_s, one.healed_s + AFTERMATH_S) for one in injections):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def judge(course: Course, lane: Lane) -> Validity:
    """Hold a run against the rules."""
    inside_spans = windows(course.injections)
    begin, end = course.load_s
    covered = sum(max(0.0, min(b, end) - max(a, begin)) for a, b in inside_spans)
    outside = 1 - covered / (end - begin) if end > begin else 0.0
    inside: list[bool] = []
    calm: list[bool] = []
    for one in course.operations:
        meets = any(one.started_s < b and one.ended_s > a for a, b in inside_spans)
        (inside if meets else calm).append(one.ok)
    ok_outside, ok_inside = _share(calm), _share(inside)
    kinds = Counter(one.kind for one in course.injections)
    unreached = _unreached(course.injections) if lane.wants_every_point else []
    missing = sorted({*lane.wants, *([ROLLING] if lane.rolling else [])} - set(kinds))
    idle = _idle(course.injections)
    is_long = course.accepted >= TURNS_FOR_EVERY_CHANGE
    unmade = [kind for kind in CHANGES if is_long and not course.changes.get(kind)]
    rules = (
        (outside >= OUTSIDE_SHARE, f"only {outside:.0%} of the run lay outside fault windows"),
        (ok_outside >= OK_OUTSIDE, f"only {ok_outside:.1%} succeeded outside fault windows"),
        (ok_inside >= OK_INSIDE, f"only {ok_inside:.1%} succeeded inside fault windows"),
        (not missing, f"these kinds never fired: {', '.join(missing)}"),
        (not idle, f"faults without any effect: {', '.join(idle)}"),
        (not unmade, f"no client came to {', '.join(unmade)}"),
        (not unreached, f"these fail points were never reached: {', '.join(unreached)}"),
        (course.accepted >= lane.min_turns, f"only {course.accepted} turns were accepted"),
        (kinds.total() >= lane.min_faults, f"only {kinds.total()} faults fired"),
        (len(kinds) >= lane.min_kinds, f"only {len(kinds)} kinds of faults fired"),
    )
    complaints = tuple(text for holds, text in rules if not holds)
    return Validity(outside, ok_outside, ok_inside, complaints)


def failed_during(course: Course, kind: str) -> list[Operation]:
    """Operations that failed and touched a fault of one kind, its aftermath not counted."""
    spans = [(one.at_s, one.healed_s) for one in course.injections if one.kind == kind]
    return [
        one
        for one in course.operations
        if not one.ok and any(one.started_s < b and one.ended_s > a for a, b in spans)
    ]


def _idle(injections: Iterable[Injection]) -> list[str]:
    """Kinds, and the provider's as one, whose faults together have done nothing."""
    done: Counter[str] = Counter()
    for one in injections:
        kind = "provider" if one.kind.startswith("provider_") else one.kind
        if (figure := EFFECTS.get(kind)) is not None:
            done[kind] += one.touched.get(figure, 0)
    return sorted(kind for kind, count in done.items() if not count)


def _unreached(injections: Iterable[Injection]) -> list[str]:
    """Fail points at which no process has died."""
    reached = {
        one.target.rpartition(" at ")[2]
        for one in injections
        if one.kind == FAIL_POINT and one.touched.get("reached")
    }
    return sorted(FAIL_POINTS - reached)


def _share(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes) if outcomes else 0.0
