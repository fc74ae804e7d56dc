"""One run: start everything, load it, break it by plan, heal, let it come to rest, judge."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic

import psycopg
from psycopg.rows import dict_row

from tests.chaos.clients import PATIENCE_S, Load
from tests.chaos.fault import Injection
from tests.chaos.faults_provider import be_well
from tests.chaos.faults_records import sound_values
from tests.chaos.house import ChaosHouse, Surprise
from tests.chaos.recovery import Recovery, Span, measure
from tests.chaos.schedule import AFTERMATH_S, PROCESSES, ROLLING, Burst, Lane, Planned, plan
from tests.chaos.validity import (
    OUTSIDE_SHARE,
    Course,
    Validity,
    failed_during,
    judge,
    windows,
)
from tests.rig.cancels import check_cancels
from tests.rig.checker import Evidence, Verdict, check
from tests.rig.evidence import read_streams

HEAL_BOUND_S = 120.0
"""Longest injection or healing of one fault; one that hangs is a fault of the rig."""

LOAD_ENDS_WITHIN_S = PATIENCE_S + 20.0
"""After the last turn was begun; every client has given up on its own by then."""

CALM_TO_COVERED = OUTSIDE_SHARE / (1 - OUTSIDE_SHARE) * 1.08
"""Seconds outside windows for one inside, with a little more than the rule asks."""


CANCELLED_WITHIN_S = 2.0
"""From the answer that a turn will stop until it has ended, outside all windows."""

LONE_DEATHS = frozenset(PROCESSES) - {"group_down"}
"""Faults after which another worker of the kind can take over; all others keep turns waiting by
themselves, so turns that met one of those do not count for the goal of recovery."""


@dataclass(slots=True)
class Timeline:
    """What was put in, in order of time, and what of it could not be done."""

    injections: list[Injection] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def text(self) -> str:
        """One line a fault."""
        lines = []
        for one in sorted(self.injections, key=lambda one: one.at_s):
            told = " ".join(f"{name}={count}" for name, count in one.touched.items())
            span = f"{one.at_s:7.1f} s to {one.healed_s:7.1f} s"
            lines.append(f"{span}  {one.kind:<18} {one.target} {told}".rstrip())
        return "\n".join([*lines, *(f"not done: {text}" for text in self.failures)])


@dataclass(slots=True)
class Outcome:
    """Everything that a run has shown.

    Attributes:
        repeat: The command that plays it again.
        broken: Sentences about the product; every one is a finding.
        seconds: From the start of the first part to the end of the last check.
    """

    seed: int
    lane: Lane
    timeline: Timeline
    load: Load
    repeat: str = ""
    verdict: Verdict = field(default_factory=Verdict)
    validity: Validity = field(default_factory=lambda: Validity(0.0, 0.0, 0.0, ("not judged",)))
    recovery: Recovery = field(default_factory=Recovery)
    terminals: dict[str, int] = field(default_factory=dict)
    deaths: int = 0
    surprises: Sequence[Surprise] = ()
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0


async def run(seed: int, lane: Lane, folder: Path) -> Outcome:
    """Play one seed.

    Raises:
        TimeoutError: The run did not end within the lane's bound.
    """
    began = monotonic()
    async with asyncio.timeout(lane.bound_s * 1.5), ChaosHouse(folder) as house:
        be_well(house.provider)
        _tell(f"everything runs after {monotonic() - began:.1f} s")
        house.begin()
        load = Load(
            house,
            random.Random(f"load {seed}"),
            conversations=lane.conversations,
            tenants=lane.tenants,
            rate_per_s=lane.rate_per_s,
            zero_s=house.began,
        )
        async with load:
            return await _play(seed, lane, house, load, began)


async def _play(seed: int, lane: Lane, house: ChaosHouse, load: Load, began: float) -> Outcome:
    await load.prepare()
    begin_s = house.now_s()
    _tell(f"load begins after {monotonic() - began:.1f} s")
    timeline, until = Timeline(), asyncio.Event()
    loading = asyncio.create_task(load.run(until))
    try:
        await house.reach(begin_s + lane.calm_s)
        for burst in plan(seed, lane):
            await _play_burst(house, burst, timeline)
            calm_s = _calm_s(lane, timeline, house.now_s() - begin_s)
            await house.reach(house.now_s() + AFTERMATH_S + calm_s)
        until.set()
        end_s = house.now_s()
        _tell(f"load ends after {monotonic() - began:.1f} s, {load.accepted} turns accepted")
        await _end_of(loading, timeline)
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
    span = (begin_s, end_s)
    course = Course(timeline.injections, load.operations, load.accepted, span, load.changes)
    return await _judged(Outcome(seed, lane, timeline, load), house, course, began)


async def _end_of(loading: asyncio.Task[None], timeline: Timeline) -> None:
    """Wait until every client has seen the end of its turn, or has given up."""
    try:
        async with asyncio.timeout(LOAD_ENDS_WITHIN_S):
            await loading
    except Exception as error:  # noqa: BLE001 -- a client that is broken makes the run invalid
        timeline.failures.append(f"load: {type(error).__name__}: {error}")


async def _judged(outcome: Outcome, house: ChaosHouse, course: Course, began: float) -> Outcome:
    """Let everything come to rest, and hold it against promises, rules and goals."""
    lane, timeline, broken = outcome.lane, outcome.timeline, outcome.broken
    broken += outcome.load.complaints
    try:
        await house.come_to_rest()
    except TimeoutError:
        broken.append("at_rest: turns, work or outbox rows were left after everything was healed")
    await outcome.load.look_again()
    outcome.verdict = await _verdict(house)
    await asyncio.to_thread(_check_cancels, house, outcome)
    ended = _wall(house, course.load_s[1])
    recovery = await measure(
        house, _others(house, timeline), rate_per_s=lane.rate_per_s, load_ended=ended
    )
    recovery.at_rest_s = await _at_rest(house, timeline)
    broken += outcome.verdict.broken + recovery.complaints() + await _rolling(house, course)
    broken += [
        f"{one.service} ended by itself with {one.exit_code}"
        for one in house.surprises
        if not one.is_orderly
    ]
    rows = await house.rows("select status, count(*) as n from ingestion.turns group by 1")
    outcome.terminals = {row["status"]: row["n"] for row in rows}
    outcome.recovery, outcome.validity = recovery, judge(course, lane)
    outcome.deaths, outcome.surprises = len(house.deaths), house.surprises
    outcome.seconds = monotonic() - began
    return outcome


def _calm_s(lane: Lane, timeline: Timeline, gone_s: float) -> float:
    """What must follow the aftermath, so that enough of the run so far lies outside windows.

    On a slow machine healing takes longer than planned, and the rest as well.
    """
    covered = sum(end - begin for begin, end in windows(timeline.injections))
    return max(lane.calm_s, covered * CALM_TO_COVERED - (gone_s - covered + AFTERMATH_S))


async def _play_burst(house: ChaosHouse, burst: Burst, timeline: Timeline) -> None:
    begin_s = house.now_s()
    await asyncio.gather(*(_one(house, one, timeline, begin_s) for one in burst))


async def _one(house: ChaosHouse, planned: Planned, timeline: Timeline, begin_s: float) -> None:
    """Put one fault in at its time, heal it, and write both down."""
    fault = planned.fault
    await house.reach(begin_s + planned.after_s)
    try:
        async with asyncio.timeout(HEAL_BOUND_S):
            at_s = house.now_s()
            target = await fault.inject(house, random.Random(planned.dice))
            await house.reach(house.now_s() + fault.duration_s)
            touched = await fault.heal(house)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the run goes on and says so
        timeline.failures.append(f"{fault.kind}: {type(error).__name__}: {error}")
        _tell(timeline.failures[-1])
        return
    done = Injection(fault.kind, target, at_s, house.now_s(), touched)
    timeline.injections.append(done)
    _tell(f"{done.at_s:6.1f} to {done.healed_s:6.1f} s {done.kind} {done.target} {touched}")


async def _verdict(house: ChaosHouse) -> Verdict:
    turns = await house.rows("select id from ingestion.turns")
    evidence = Evidence(
        topics=await sound_values(house),
        streams=await read_streams(house.redis_url, [turn["id"] for turn in turns]),
        prompts=[request.body for request in house.provider.requests],
        open_calls=json.loads(house.provider.control("GET", "/stats", b"")[1])["running"],
        logs=sorted(house.log_folder.rglob("*.log")),
    )
    return await asyncio.to_thread(
        check,
        house.database_url,
        house.ledgers,
        dead_letters=frozenset(house.known_dead_letters),
        evidence=evidence,
    )


def _check_cancels(house: ChaosHouse, outcome: Outcome) -> None:
    """Cancelled turns end in time, wherever no fault's window is near."""
    spans = [
        (_wall(house, begin), _wall(house, end))
        for begin, end in windows(outcome.timeline.injections)
    ]

    def is_disturbed(done_at: datetime) -> bool:
        over = done_at + timedelta(seconds=CANCELLED_WITHIN_S)
        return any(begin <= over and done_at <= end for begin, end in spans)

    with psycopg.connect(house.database_url, row_factory=dict_row, autocommit=True) as connection:
        check_cancels(
            connection,
            outcome.load.acts,
            outcome.verdict,
            within_s=CANCELLED_WITHIN_S,
            is_disturbed=is_disturbed,
        )


def _wall(house: ChaosHouse, at_s: float) -> datetime:
    """A moment of the run by the clock of the rows."""
    return datetime.now(UTC) - timedelta(seconds=house.now_s() - at_s)


def _others(house: ChaosHouse, timeline: Timeline) -> list[Span]:
    return [
        Span(_wall(house, one.at_s), _wall(house, one.healed_s))
        for one in timeline.injections
        if one.kind not in LONE_DEATHS
    ]


async def _at_rest(house: ChaosHouse, timeline: Timeline) -> float:
    """Seconds from the last healing to the end of the last turn that was there by then."""
    last_s = max((one.healed_s for one in timeline.injections), default=0.0)
    healed = _wall(house, last_s)
    (row,) = await house.rows(
        "select max(ended_at) as last from ingestion.turns where created_at <= %s", healed
    )
    return max(0.0, (row["last"] - healed).total_seconds()) if row["last"] else 0.0


async def _rolling(house: ChaosHouse, course: Course) -> list[str]:
    """What a rolling restart must not cause: a failed request, or an answer that ends early."""
    failed = failed_during(course, ROLLING)
    found = [
        f"rolling restart: {one.kind} from {one.started_s:.1f} to {one.ended_s:.1f} s failed"
        for one in failed
    ]
    for one in course.injections:
        if one.kind != ROLLING:
            continue
        rows = await house.rows(
            "select id, status, reason from ingestion.turns "
            "where status in ('partial', 'failed') and ended_at between %s and %s",
            _wall(house, one.at_s),
            _wall(house, one.healed_s),
        )
        found += [f"rolling restart: turn {r['id']} is {r['status']} ({r['reason']})" for r in rows]
    return found


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
