"""How long it took until things were well again, judged by the rows' own times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tests.rig.house import WORKERS

if TYPE_CHECKING:
    from tests.chaos.house import ChaosHouse

TERMINAL_P99_S = 20.0
"""Goal for turns that ran when a worker died, from the death to their end."""

ACCEPTANCE_S = 30.0
"""Goal for normal acceptance after the crash of Kafka or Postgres."""

AT_REST_S = 60.0
"""Goal for the end of every turn after the last fault was healed."""

NORMAL_WINDOW_S = 5.0
NORMAL_SHARE = 0.5
"""Acceptance is normal from the first moment on after which, for ``NORMAL_WINDOW_S``, at least this
share of the offered turns is accepted."""

STEP_S = 0.25


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which something else was broken, by the rows' clock."""

    begin: datetime
    end: datetime


@dataclass(slots=True)
class Recovery:
    """Seconds, one for each turn or crash.

    Attributes:
        touched_s: From a worker's death to the end of a turn that ran at that moment; of a turn
            that several deaths met, from the last. Turns that after it also met a broken store,
            edge or provider are not among them.
        mixed_s: Those.
        acceptance_s: From a crash of Kafka or Postgres to normal acceptance.
        at_rest_s: From the last healing to the end of the last turn.
    """

    touched_s: list[float] = field(default_factory=list)
    mixed_s: list[float] = field(default_factory=list)
    acceptance_s: list[float] = field(default_factory=list)
    at_rest_s: float = 0.0

    def complaints(self) -> list[str]:
        """Goals that were missed."""
        found = []
        if self.touched_s and percentile(self.touched_s, 0.99) > TERMINAL_P99_S:
            found.append(
                f"turns touched by a worker's death ended {percentile(self.touched_s, 0.99):.1f} s "
                f"later (p99), goal {TERMINAL_P99_S:.0f} s"
            )
        slow = [seconds for seconds in self.acceptance_s if seconds > ACCEPTANCE_S]
        if slow:
            found.append(
                f"acceptance was normal {max(slow):.1f} s after a crash, goal {ACCEPTANCE_S:.0f} s"
            )
        if self.at_rest_s > AT_REST_S:
            found.append(
                f"the last turn ended {self.at_rest_s:.1f} s after the last fault, "
                f"goal {AT_REST_S:.0f} s"
            )
        return found


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed; 0 of nothing."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def measure(
    house: ChaosHouse, others: Sequence[Span], *, rate_per_s: float, load_ended: datetime
) -> Recovery:
    """Figures of a run that has come to rest.

    Args:
        others: When stores, edges or the provider were broken.
        rate_per_s: Turns offered a second.
        load_ended: When no more were offered.
    """
    recovery = Recovery()
    await _touched(house, others, recovery)
    rows = await house.rows("select created_at from ingestion.turns order by created_at")
    accepted = [row["created_at"] for row in rows]
    for crash in house.crashes:
        seconds = seconds_until_normal(crash.at, accepted, rate_per_s)
        normal = crash.at + timedelta(seconds=seconds)
        # One that was followed by the next before all was well is judged by the next.
        is_interrupted = any(crash.at < other.at <= normal for other in house.crashes)
        has_time = crash.at + timedelta(seconds=ACCEPTANCE_S) < load_ended
        if not is_interrupted and (has_time or normal < load_ended):
            recovery.acceptance_s.append(seconds)
    return recovery


async def _touched(house: ChaosHouse, others: Sequence[Span], recovery: Recovery) -> None:
    deaths = sorted(death.at for death in house.deaths if death.service in WORKERS)
    if not deaths:
        return
    rows = await house.rows(
        "select started_at, ended_at from ingestion.turns where started_at <= %s and ended_at > %s",
        deaths[-1],
        deaths[0],
    )
    for row in rows:
        died = last_death(deaths, row["started_at"], row["ended_at"])
        if died is None:
            continue
        seconds = (row["ended_at"] - died).total_seconds()
        is_mixed = any(s.begin < row["ended_at"] and died < s.end for s in others)
        (recovery.mixed_s if is_mixed else recovery.touched_s).append(seconds)


def last_death(deaths: Iterable[datetime], started: datetime, ended: datetime) -> datetime | None:
    """The last of the deaths that met a turn, None if none did.

    A turn whose second worker dies too has to be taken over twice, so its way back is counted from
    the moment from which nobody died any more.
    """
    return max((death for death in deaths if started <= death < ended), default=None)


def seconds_until_normal(crash: datetime, accepted: Sequence[datetime], rate_per_s: float) -> float:
    """Seconds from a crash to the first window with enough acceptances."""
    moments = [(at - crash).total_seconds() for at in accepted]
    wanted = rate_per_s * NORMAL_WINDOW_S * NORMAL_SHARE
    begin, last = 0.0, max(moments, default=0.0)
    while begin < last:
        if sum(begin <= moment < begin + NORMAL_WINDOW_S for moment in moments) >= wanted:
            return begin
        begin += STEP_S
    return last
