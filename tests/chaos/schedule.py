"""Which fault comes when: the same seed gives the same plan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.chaos import faults_network as network
from tests.chaos import faults_processes as processes
from tests.chaos import faults_provider as provider
from tests.chaos import faults_records as records
from tests.chaos import faults_stores as stores
from tests.chaos.fault import Fault

AFTERMATH_S = 10.0
"""A fault's window ends this long after it was healed."""

ROLLING = "rolling_restart"
FAIL_POINT = "fail_point"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How faults of one kind are made and placed.

    Attributes:
        length_s: From injection to the end of its healing, on a busy machine: what is placed in a
            burst ends with it.
        in_line: Placed one after another, because the part can only be hit by one at a time.
    """

    make: Callable[[random.Random], Fault]
    length_s: float
    in_line: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault and its time.

    Attributes:
        after_s: Seconds since the beginning of its burst.
        dice: Seed of the fault's own choices, so that one more fault changes no other.
    """

    after_s: float
    fault: Fault
    dice: int


Burst = tuple[Planned, ...]
"""Faults that belong together; the next burst waits for the end of the last of them."""


@dataclass(frozen=True, slots=True)
class Lane:
    """The size of a run.

    Attributes:
        rounds: Bursts of faults; each is followed by the aftermath and ``calm_s`` without any.
        burst_s: Within it faults begin, and as a rule end.
        faults: In all bursts together, rolling restarts apart.
        rolling: Restarts in order of every process, each with a time of its own.
        rate_per_s: Turns that clients begin a second, whether earlier ones have ended or not.
        wants: Kinds, and how many of each at least; the rest is drawn, by these weights.
        min_turns: Accepted ones, below which the run is not valid; so for the other three.
        min_touched: Turns that ran when a worker died and met no other fault.
        bound_s: Time that everything should take together.
    """

    name: str
    rounds: int
    burst_s: float
    calm_s: float
    faults: int
    rolling: int
    rate_per_s: float
    wants: Mapping[str, int]
    min_turns: int
    min_faults: int
    min_kinds: int
    min_touched: int
    bound_s: float
    conversations: int = 200
    tenants: int = 20

    @property
    def wants_every_point(self) -> bool:
        """Whether processes die at all named points, which one run of a short lane cannot do."""
        return self.wants.get(FAIL_POINT, 0) >= len(processes.fail_points())

    @property
    def load_s(self) -> float:
        """Seconds of load, unless healing takes longer than planned."""
        each = AFTERMATH_S + self.calm_s
        return self.calm_s + self.rounds * (self.burst_s + each) + self.rolling * (ROLLING_S + each)


ROLLING_S = 20.0
"""What a rolling restart takes: two processes of a kind, each with its drain and its start."""


PROCESSES: Mapping[str, Recipe] = {
    "kill9": Recipe(lambda _: processes.Kill9(), 6),
    FAIL_POINT: Recipe(lambda dice: processes.FailPoint(dice.choice(processes.fail_points())), 15),
    "pause": Recipe(lambda _: processes.Pause(), processes.FROZEN_S + 1),
    "group_down": Recipe(lambda _: processes.GroupDown(), processes.GROUP_DOWN_S + 5),
    "join_leave": Recipe(lambda _: processes.Churn(), 18),
    "clock_skew": Recipe(lambda _: processes.ClockSkew(), 30),
}
STORES: Mapping[str, Recipe] = {
    "broker_kill": Recipe(lambda _: stores.BrokerKill(), 9, in_line=True),
    "broker_wiped": Recipe(lambda _: stores.broker_wiped(), 10, in_line=True),
    "postgres_kill": Recipe(lambda _: stores.PostgresKill(), 4, in_line=True),
    "postgres_stop": Recipe(lambda _: stores.postgres_stop(), 4, in_line=True),
    "pool_exhausted": Recipe(lambda _: stores.PoolExhausted(), 7, in_line=True),
    "table_locked": Recipe(lambda _: stores.TableLocked(), 6, in_line=True),
    "backends_ended": Recipe(lambda _: stores.BackendsEnded(), 1),
    "redis_kill": Recipe(lambda _: stores.RedisKill(), 2),
    "redis_flush": Recipe(lambda _: stores.RedisFlush(), 1),
}
NETWORK: Mapping[str, Recipe] = {
    "delay": Recipe(network.FAULTS["delay"], network.DELAYED_S),
    "cut": Recipe(network.FAULTS["cut"], 1),
    "blackhole": Recipe(network.FAULTS["blackhole"], network.PARTED_S),
    "refuse": Recipe(network.FAULTS["refuse"], network.REFUSED_S),
    "drop_commit_reply": Recipe(network.FAULTS["drop_commit_reply"], network.DROPPING_S),
    "drop_reply": Recipe(network.FAULTS["drop_reply"], network.DROPPING_S),
}
RECORDS: Mapping[str, Recipe] = {
    "duplicate_records": Recipe(records.FAULTS["duplicate_records"], 3),
    "replay_topic": Recipe(records.FAULTS["replay_topic"], 3),
    "poison_records": Recipe(records.FAULTS["poison_records"], records.PARKED_WITHIN_S + 2),
}
PROVIDER: Mapping[str, Recipe] = {
    kind: Recipe(make, provider.FAULTY_S) for kind, make in provider.FAULTS.items()
}
RECIPES: Mapping[str, Recipe] = {**PROCESSES, **STORES, **NETWORK, **RECORDS, **PROVIDER}

THEMES: tuple[frozenset[str], ...] = (
    frozenset(PROCESSES) - {"group_down"},
    frozenset({*STORES, *NETWORK, "group_down", "kill9"}),
    frozenset({*NETWORK, *RECORDS, *PROVIDER, "kill9", "redis_flush"}),
)
"""What one burst may hold, in turn. Deaths of workers among nothing else give clean figures of
recovery; a kill among all the rest is the harder case, and both are wanted."""


def plan(seed: int, lane: Lane) -> list[Burst]:
    """All bursts of a run; a rolling restart is one of its own."""
    dice = random.Random(f"plan {seed} {lane.name}")
    points = _all_points(dice)
    bursts = [
        _place(dice, kinds, lane.burst_s, points) for kinds in _deal(dice, _draw(dice, lane), lane)
    ]
    every = max(1, lane.rounds // max(1, lane.rolling))
    for number in range(lane.rolling):
        restart = Planned(0.0, processes.RollingRestart(), dice.getrandbits(32))
        bursts.insert(number * (every + 1), (restart,))
    return bursts


def _draw(dice: random.Random, lane: Lane) -> list[str]:
    """Kinds of all faults: those that are wanted, and then any of them."""
    kinds = list(Counter(lane.wants).elements())
    names = sorted(lane.wants)
    weights = [lane.wants[name] for name in names]
    more = max(0, lane.faults - len(kinds))
    kinds += dice.choices(names, weights, k=more)
    dice.shuffle(kinds)
    return kinds


def _deal(dice: random.Random, kinds: Sequence[str], lane: Lane) -> list[list[str]]:
    """Share kinds out, the longest first, each to the fitting burst that has least of it."""
    bursts: list[list[str]] = [[] for _ in range(lane.rounds)]
    for kind in sorted(kinds, key=lambda one: (-RECIPES[one].length_s, one)):
        in_line = RECIPES[kind].in_line
        fitting = [
            burst
            for number, burst in enumerate(bursts)
            if kind in THEMES[number % len(THEMES)] or lane.rounds < len(THEMES)
        ]

        def load(
            burst: list[str], *, kind: str = kind, in_line: bool = in_line
        ) -> tuple[int, float, int]:
            alike = (one for one in burst if RECIPES[one].in_line == in_line)
            return burst.count(kind), sum(RECIPES[one].length_s for one in alike), len(burst)

        min(fitting, key=load).append(kind)
    for burst in bursts:
        dice.shuffle(burst)
    return bursts


def _all_points(dice: random.Random) -> Iterator[str]:
    """Fail points without end; none comes twice before all others have come."""
    while True:
        points = processes.fail_points()
        dice.shuffle(points)
        yield from points


def _place(
    dice: random.Random, kinds: Sequence[str], burst_s: float, points: Iterator[str]
) -> Burst:
    """Times within one burst: anywhere that lets the fault end in it, or one after another."""
    found: list[Planned] = []
    next_s = 0.0
    for kind in kinds:
        recipe = RECIPES[kind]
        if recipe.in_line:
            at_s, next_s = next_s, next_s + recipe.length_s
        else:
            at_s = dice.uniform(0, max(0.0, burst_s - recipe.length_s))
        is_point = kind == FAIL_POINT
        fault = processes.FailPoint(next(points)) if is_point else recipe.make(dice)
        found.append(Planned(at_s, fault, dice.getrandbits(32)))
    return tuple(sorted(found, key=lambda one: one.after_s))


CI = Lane(
    name="ci",
    rounds=3,
    burst_s=21,
    calm_s=9,
    faults=45,
    rolling=1,
    rate_per_s=5.0,
    wants={
        "kill9": 6,
        "fail_point": 2,
        "pause": 2,
        "group_down": 1,
        "join_leave": 1,
        "broker_kill": 1,
        "broker_wiped": 1,
        "postgres_kill": 1,
        "backends_ended": 2,
        "redis_kill": 1,
        "redis_flush": 3,
        "delay": 2,
        "cut": 4,
        "refuse": 2,
        "drop_commit_reply": 2,
        "drop_reply": 2,
        "duplicate_records": 1,
        "replay_topic": 1,
        "poison_records": 1,
        "provider_429": 1,
        "provider_failing": 1,
        "provider_cut": 1,
        "provider_cut_in_character": 1,
        "provider_slow": 1,
    },
    min_turns=600,
    min_faults=40,
    min_kinds=10,
    min_touched=10,
    bound_s=240,
)
FULL = Lane(
    name="full",
    rounds=18,
    burst_s=40,
    calm_s=18,
    faults=270,
    rolling=2,
    rate_per_s=5.0,
    wants={
        "kill9": 80,
        "fail_point": 28,
        "pause": 8,
        "group_down": 4,
        "join_leave": 3,
        "clock_skew": 5,
        "broker_kill": 6,
        "broker_wiped": 4,
        "postgres_kill": 6,
        "postgres_stop": 4,
        "pool_exhausted": 3,
        "table_locked": 3,
        "backends_ended": 5,
        "redis_kill": 6,
        "redis_flush": 8,
        **dict.fromkeys(NETWORK, 8),
        **dict.fromkeys(RECORDS, 4),
        **dict.fromkeys(PROVIDER, 4),
    },
    min_turns=5_000,
    min_faults=150,
    min_kinds=16,
    min_touched=200,
    bound_s=1_500,
)
LANES = {lane.name: lane for lane in (CI, FULL)}
