"""The rig judges itself: plans repeat, windows are drawn right, and a bad run is called bad."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from libs.failpoints import FAIL_POINTS
from tests.chaos.__main__ import shortened
from tests.chaos.changing import CHANGES
from tests.chaos.clients import Operation
from tests.chaos.fault import Injection
from tests.chaos.faults_processes import FailPoint, service_of
from tests.chaos.recovery import (
    ACCEPTANCE_S,
    AT_REST_S,
    TERMINAL_P99_S,
    Recovery,
    last_death,
    percentile,
    seconds_until_normal,
)
from tests.chaos.schedule import CI, FULL, LANES, RECIPES, ROLLING, Lane, plan
from tests.chaos.validity import Course, failed_during, judge, windows
from tests.rig.house import WORKERS

IN_LINE = {kind for kind, recipe in RECIPES.items() if recipe.in_line}
START = datetime(2026, 1, 1, tzinfo=UTC)


def shape(seed: int, lane: Lane) -> list[list[tuple[float, str, int]]]:
    return [[(one.after_s, one.fault.kind, one.dice) for one in b] for b in plan(seed, lane)]


@pytest.mark.parametrize("lane", LANES.values(), ids=LANES)
def test_a_seed_has_one_plan_and_another_seed_another(lane: Lane) -> None:
    assert shape(7, lane) == shape(7, lane)
    assert shape(7, lane) != shape(8, lane)


@pytest.mark.parametrize("lane", LANES.values(), ids=LANES)
@pytest.mark.parametrize("seed", range(20))
def test_a_plan_holds_what_its_lane_declares(lane: Lane, seed: int) -> None:
    bursts = plan(seed, lane)
    kinds = Counter(one.fault.kind for burst in bursts for one in burst)

    assert all(kinds[kind] >= count for kind, count in lane.wants.items())
    assert kinds[ROLLING] == lane.rolling
    assert kinds.total() == max(lane.faults, sum(lane.wants.values())) + lane.rolling
    assert kinds.total() >= lane.min_faults
    assert len(kinds) >= lane.min_kinds
    assert all(burst for burst in bursts)


@pytest.mark.parametrize("lane", LANES.values(), ids=LANES)
def test_a_lane_fits_into_its_time_and_leaves_calm_enough(lane: Lane) -> None:
    calm_s = lane.calm_s * (lane.rounds + lane.rolling + 1)

    assert lane.load_s <= lane.bound_s
    assert calm_s / lane.load_s >= 0.25
    assert lane.load_s * lane.rate_per_s >= lane.min_turns


def test_a_rolling_restart_shares_its_time_with_no_other_fault() -> None:
    for burst in plan(3, FULL):
        kinds = [one.fault.kind for one in burst]
        assert ROLLING not in kinds or kinds == [ROLLING]


def test_faults_of_one_store_come_one_after_another() -> None:
    for burst in plan(5, FULL):
        line = [one for one in burst if one.fault.kind in IN_LINE]
        for first, second in pairwise(line):
            assert second.after_s - first.after_s >= RECIPES[first.fault.kind].length_s


def test_every_fail_point_belongs_to_a_service() -> None:
    services = {service_of(point) for point in FAIL_POINTS}

    assert services == {"frontend_gateway", *WORKERS}


def test_the_full_lane_kills_at_every_fail_point() -> None:
    points = {
        one.fault.point
        for burst in plan(9, FULL)
        for one in burst
        if isinstance(one.fault, FailPoint)
    }

    assert points == FAIL_POINTS
    assert FULL.wants_every_point
    assert not CI.wants_every_point


def test_a_fail_point_that_nobody_reached_is_missed() -> None:
    lane = replace(LANE, wants={"fail_point": len(FAIL_POINTS)})
    reached = [
        Injection(
            "fail_point", f"x-0 at {point}", 40, 50, {"reached": int(point != "llm.after_delta")}
        )
        for point in sorted(FAIL_POINTS)
    ]
    run = replace(course(inside=[True], outside=[True]), injections=reached)

    assert judge(run, lane).complaints == ("these fail points were never reached: llm.after_delta",)


def test_faults_that_hit_nothing_do_not_count() -> None:
    idle = Injection("drop_reply", "edge a-kafka", 40, 50, {"dropped_replies": 0})
    hit = Injection("provider_429", "provider", 40, 50, {"answers": 1})
    missed = Injection("provider_cut", "provider", 40, 50, {"answers": 0})
    run = replace(course(inside=[True], outside=[True]), injections=(*KILLED, idle, hit, missed))

    assert judge(run, LANE).complaints == ("faults without any effect: drop_reply",)


def test_a_shortened_lane_wants_less_of_everything_but_every_kind() -> None:
    short = shortened(CI, 60)

    assert short.load_s < CI.load_s
    assert short.min_turns < CI.min_turns
    assert set(short.wants) == set(CI.wants)


# Windows and validity


def fault(kind: str, at_s: float, healed_s: float) -> Injection:
    return Injection(kind, "somewhere", at_s, healed_s, {})


def test_windows_reach_ten_seconds_beyond_the_healing_and_melt_together() -> None:
    found = windows([fault("cut", 30, 31), fault("kill9", 0, 5), fault("cut", 12, 13)])

    assert found == [(0, 23), (30, 41)]


LANE = replace(CI, wants={"kill9": 1}, rolling=0, faults=1, min_turns=10, min_faults=1, min_kinds=1)
KILLED = (fault("kill9", 40, 50),)


def course(*, inside: list[bool], outside: list[bool], accepted: int = 10) -> Course:
    operations = [Operation(45, 46, ok, "post") for ok in inside]
    operations += [Operation(10, 11, ok, "post") for ok in outside]
    return Course(KILLED, operations, accepted, (0.0, 100.0))


def test_a_run_in_which_enough_went_well_is_valid() -> None:
    found = judge(course(inside=[True] * 6 + [False] * 4, outside=[True] * 95 + [False] * 5), LANE)

    assert found.complaints == ()
    assert (found.ok_inside, found.ok_outside) == (0.6, 0.95)
    assert found.outside == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (course(inside=[True, False], outside=[True]), "50.0% succeeded inside"),
        (course(inside=[True], outside=[True] * 9 + [False]), "90.0% succeeded outside"),
        (course(inside=[True], outside=[True], accepted=9), "only 9 turns were accepted"),
        (course(inside=[], outside=[]), "0.0% succeeded outside"),
        (replace(course(inside=[True], outside=[True]), load_s=(39.0, 62.0)), "outside fault"),
        (replace(course(inside=[True], outside=[True]), injections=()), "never fired: kill9"),
    ],
)
def test_a_run_that_proves_too_little_is_not_valid(bad: Course, complaint: str) -> None:
    assert any(complaint in text for text in judge(bad, LANE).complaints)


def test_a_long_run_in_which_clients_never_did_something_is_not_valid() -> None:
    made = dict.fromkeys(CHANGES, 1)
    short = course(inside=[True], outside=[True])
    long = replace(short, accepted=600, changes=made)

    assert judge(short, LANE).complaints == ()
    assert judge(long, LANE).complaints == ()
    told = judge(replace(long, changes={**made, "edit": 0, "branch": 0}), LANE).complaints
    assert told == ("no client came to edit, branch",)


def test_a_rolling_restart_answers_for_requests_that_failed_while_it_went_on() -> None:
    operations = [
        Operation(9, 11, False, "post"),
        Operation(12, 13, True, "post"),
        Operation(21, 22, False, "post"),
    ]
    run = Course((fault(ROLLING, 10, 20),), operations, 1, (0.0, 60.0))

    assert failed_during(run, ROLLING) == operations[:1]


# Recovery


def moments(*seconds: float) -> list[datetime]:
    return [START + timedelta(seconds=second) for second in seconds]


def test_acceptance_is_normal_from_the_first_window_with_enough_acceptances() -> None:
    steady = [12 + step / 4 for step in range(60)]
    straggler = 3.0

    found = seconds_until_normal(START, moments(straggler, *steady), rate_per_s=4)

    assert 9 <= found <= 12


def test_acceptance_that_never_came_back_is_as_long_as_the_rows_go() -> None:
    assert seconds_until_normal(START, moments(1, 20, 40), rate_per_s=4) == 40


def test_missed_goals_are_told() -> None:
    bad = Recovery([TERMINAL_P99_S + 1], [], [ACCEPTANCE_S + 1], AT_REST_S + 1)

    assert len(bad.complaints()) == 3
    assert Recovery([1.0], [99.0], [2.0], 3.0).complaints() == []


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile(range(1, 101), 0.99) == 100
    assert percentile([5.0], 0.5) == 5.0
    assert percentile([], 0.5) == 0.0


def test_a_turn_that_several_deaths_met_is_judged_by_the_last_of_them() -> None:
    deaths = moments(3, 1, 9)
    started, ended = moments(0.5, 8)
    assert last_death(deaths, started, ended) == moments(3)[0]
    assert last_death(deaths, moments(4)[0], ended) is None
