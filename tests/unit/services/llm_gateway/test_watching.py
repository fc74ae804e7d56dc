"""Calls that stop when nobody watches, on a real Postgres and the twin of Redis."""

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from libs.clock import SystemClock
from libs.redis.memory import MemoryLiveStream, MemoryRedis
from libs.redis.ports import WATCH_EXPIRE_S
from schemas.generations import GenerationCompletedV1, GenerationInterruptedV1
from services.llm_gateway.watching import Watch
from tests.rig.llm_worker import (
    Terms,
    Worker,
    delivery,
    http_provider,
    rows,
    running_worker,
    seed_turn,
    until,
)
from tests.rig.parts import TestDatabase
from tests.rig.provider import Rule

pytestmark = pytest.mark.postgres

GATEWAY = "a gateway"
ENDLESS = Rule(deltas=("a", "b"), never_ends=True, delay_ms=5)


class SteppedClock(SystemClock):
    """Monotonic time that goes on when a test says so."""

    def __init__(self) -> None:
        self.at_s = 1_000.0

    def monotonic(self) -> float:
        return self.at_s


class Alone:
    """A watch whose time a test moves, beside a worker whose own watch does not run."""

    def __init__(self, worker: Worker) -> None:
        self.clock = SteppedClock()
        self._watch = Watch(worker.app.pool, worker.live, clock=self.clock, every_s=0.5)

    async def look(self, *, after_s: float) -> None:
        self.clock.at_s += after_s
        await self._watch.look()


def is_stopping(worker: Worker) -> bool:
    return any(call.is_stopping for call in worker.app.pool._calls.values())


async def test_a_call_that_nobody_watches_any_more_ends_and_keeps_what_was_shown(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database, terms=Terms(options={"cancel_after_s": 0}))
    async with (
        http_provider(ENDLESS) as (server, provider),
        running_worker(
            database,
            provider,
            watch_every_s=0.02,
            background=("lease", "live_writer", "finisher", "watching"),
        ) as worker,
    ):
        await worker.live.watch(turn.turn_id, GATEWAY)
        await worker.take(turn)
        await worker.until_shown(turn, "ab")
        await worker.live.unwatch(turn.turn_id, GATEWAY)
        told = await worker.ended(turn)
        await until(lambda: server.requests[0].closed_by_client, "the connection is closed")
        shown = await worker.shown(turn)

    assert isinstance(told.data, GenerationInterruptedV1)
    assert told.data.reason == "no_subscriber"
    assert told.data.sha256 == hashlib.sha256(shown.encode()).hexdigest()
    assert told.data.usage is not None


async def test_the_clock_starts_with_the_last_watcher_and_stops_when_one_comes_back(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database, terms=Terms(options={"cancel_after_s": 10}))
    async with (
        http_provider(ENDLESS) as (_, provider),
        running_worker(database, provider) as worker,
    ):
        alone = Alone(worker)
        await worker.take(turn)
        await worker.live.watch(turn.turn_id, GATEWAY)
        await alone.look(after_s=60)
        await worker.live.unwatch(turn.turn_id, GATEWAY)
        await alone.look(after_s=60)  # seen alone for the first time
        await alone.look(after_s=9.5)
        assert not is_stopping(worker)

        await worker.live.watch(turn.turn_id, "another gateway")
        await alone.look(after_s=9.5)
        await worker.live.unwatch(turn.turn_id, "another gateway")
        await alone.look(after_s=0.5)
        await alone.look(after_s=9.5)
        assert not is_stopping(worker)

        await alone.look(after_s=0.5)
        assert (await worker.ended(turn)).data.reason == "no_subscriber"


@pytest.mark.parametrize(
    "options",
    [None, {}, {"cancel_after_s": None}, {"cancel_after_s": "0"}, {"cancel_after_s": [0]}],
)
async def test_without_the_wish_a_call_goes_on_alone(
    database: TestDatabase, options: Mapping[str, Any] | None
) -> None:
    turn = seed_turn(database, terms=Terms(options=options))
    async with (
        http_provider(Rule(deltas=("on", "ly"), hang_after=1)) as (server, provider),
        running_worker(database, provider) as worker,
    ):
        alone = Alone(worker)
        await worker.take(turn)
        await worker.live.watch(turn.turn_id, GATEWAY)
        await worker.live.unwatch(turn.turn_id, GATEWAY)
        await alone.look(after_s=1)
        await alone.look(after_s=5_000)
        assert not is_stopping(worker)
        await worker.until_shown(turn, "o")
        server.release()
        assert isinstance((await worker.ended(turn)).data, GenerationCompletedV1)


async def test_a_call_that_was_never_watched_goes_on(database: TestDatabase) -> None:
    turn = seed_turn(database, terms=Terms(options={"cancel_after_s": 0}))
    async with (
        http_provider(Rule(deltas=("on", "ly"), hang_after=1)) as (server, provider),
        running_worker(database, provider) as worker,
    ):
        alone = Alone(worker)
        await worker.take(turn)
        await alone.look(after_s=1)
        await alone.look(after_s=5_000)
        assert not is_stopping(worker)
        await worker.until_shown(turn, "o")
        server.release()
        assert isinstance((await worker.ended(turn)).data, GenerationCompletedV1)


@pytest.mark.parametrize("fault", ["away", "emptied"])
async def test_where_nobody_can_tell_a_call_counts_as_watched(
    database: TestDatabase, fault: str
) -> None:
    redis = MemoryRedis()
    turn = seed_turn(database, terms=Terms(options={"cancel_after_s": 10}))
    async with (
        http_provider(ENDLESS) as (_, provider),
        running_worker(database, provider, live=MemoryLiveStream(redis)) as worker,
    ):
        alone = Alone(worker)
        await worker.take(turn)
        await worker.live.watch(turn.turn_id, GATEWAY)
        await worker.live.unwatch(turn.turn_id, GATEWAY)
        await alone.look(after_s=1)
        redis.go_away() if fault == "away" else redis.flush()
        await alone.look(after_s=60)
        assert not is_stopping(worker)

        redis.come_back()
        await worker.live.watch(turn.turn_id, GATEWAY)
        await worker.live.unwatch(turn.turn_id, GATEWAY)
        await alone.look(after_s=1)  # the clock begins anew: what was before is not known
        assert not is_stopping(worker)
        await alone.look(after_s=10)
        assert is_stopping(worker)


async def test_a_watcher_that_fell_silent_does_not_count(database: TestDatabase) -> None:
    now = [0.0]
    turn = seed_turn(database, terms=Terms(options={"cancel_after_s": 0}))
    live = MemoryLiveStream(MemoryRedis(now=lambda: now[0]))
    async with (
        http_provider(ENDLESS) as (_, provider),
        running_worker(database, provider, live=live) as worker,
    ):
        alone = Alone(worker)
        await worker.take(turn)
        await live.watch(turn.turn_id, "a gateway that crashes")
        await alone.look(after_s=1)
        assert not is_stopping(worker)

        now[0] += WATCH_EXPIRE_S
        await alone.look(after_s=1)
        assert is_stopping(worker)


async def test_an_absurd_wish_is_bounded_by_an_hour(database: TestDatabase) -> None:
    turns = [
        seed_turn(database, terms=Terms(options={"cancel_after_s": wish}))
        for wish in (10**30, -5, 2.5, 7)
    ]
    async with (
        http_provider(Rule(hang_after=0)) as (_, provider),
        running_worker(database, provider) as worker,
    ):
        await worker.app.steps.handle([delivery(turn.event) for turn in turns])
        stored = rows(database, "select step_id, cancel_after_s from llm_gateway.work")

    found = {row["step_id"]: row["cancel_after_s"] for row in stored}
    assert [found[turn.step_id] for turn in turns] == [3_600, 0, 3, 7]
