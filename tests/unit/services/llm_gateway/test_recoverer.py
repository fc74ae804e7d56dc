"""Dead, stopped and sleeping workers: what another one makes of their work."""

import asyncio
import hashlib
from typing import Any, Literal
from uuid import uuid4

import pytest

from libs.redis.memory import MemoryLiveStream, MemoryRedis
from schemas.generations import (
    GenerationCompletedV1,
    GenerationFailedV1,
    GenerationInterruptedV1,
)
from schemas.streams import EntryId, message_started
from schemas.turns import TurnCancelRequestedV1
from services.llm_gateway.core.attempt import AttemptText
from services.llm_gateway.core.outcomes import Completed, Measured
from services.llm_gateway.providers.memory import MemoryProvider, answer
from services.llm_gateway.work import Ending
from tests.rig import waiting
from tests.rig.llm_worker import (
    SeededTurn,
    Terms,
    Worker,
    about,
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

IDLE = ("lease", "live_writer", "finisher")
"""A worker that recovers but claims nothing by itself."""


def fence_refusals(worker: Worker, where: str) -> float:
    """How often this worker was refused there."""
    sample = worker.metrics.fence_refusals_total.labels(where)  # type: ignore[arg-type]
    return float(sample._value.get())


async def accepted(live: MemoryLiveStream, turn: SeededTurn) -> None:
    """Write the entry that ingestion writes when it has accepted the turn."""
    entry = message_started(turn_id=turn.turn_id, message_id=uuid4(), seq=2)
    await live.append(turn.turn_id, [entry])


async def test_work_of_a_worker_that_showed_nothing_starts_again(database: TestDatabase) -> None:
    live = MemoryLiveStream(MemoryRedis())
    turn = seed_turn(database)
    await accepted(live, turn)
    async with (
        http_provider(Rule(hang_after=0, times=1), Rule(deltas=("fine",))) as (server, provider),
        running_worker(database, provider, live=live) as dead,
        running_worker(database, provider, live=live) as other,
    ):
        await dead.take(turn)
        await until(lambda: bool(server.requests), "the first request is made")
        await dead.die(database)
        await other.app.recoverer.sweep()
        told = await other.ended(turn)
        entries = await live.read(turn.turn_id, EntryId(0, 0), 100)

    assert isinstance(told.data, GenerationCompletedV1)
    assert told.data.attempt == 2
    assert [str(entry.id) for entry in entries] == ["0-1", "1-1", "2-0", "2-1", "2-2"]
    assert len(server.requests) == 2
    assert server.requests[0].body == server.requests[1].body
    assert rows(
        database, "select attempt, outcome, reason from llm_gateway.attempts order by attempt"
    ) == [
        {"attempt": 1, "outcome": "repeated", "reason": "lease_expired"},
        {"attempt": 2, "outcome": "completed", "reason": "stop"},
    ]


async def test_what_a_dead_worker_showed_is_the_answer_to_the_letter(
    database: TestDatabase,
) -> None:
    live = MemoryLiveStream(MemoryRedis())
    turn = seed_turn(database)
    async with (
        http_provider(Rule(deltas=("a€", "😀", "c"), delay_ms=60, hang_after=2)) as (_, provider),
        running_worker(database, provider, live=live) as dead,
        running_worker(database, provider, live=live, background=IDLE) as other,
    ):
        await dead.take(turn)
        await dead.until_shown(turn, "a€😀")
        await dead.die(database)
        await other.app.recoverer.sweep()
        told = await other.ended(turn)
        shown = await other.shown(turn)

    assert isinstance(told.data, GenerationInterruptedV1)
    assert (told.data.reason, told.data.attempt) == ("lease_expired", 1)
    assert shown == "a€😀"
    assert told.data.sha256 == hashlib.sha256(shown.encode()).hexdigest()
    assert told.data.usage is not None
    assert told.data.usage.estimated
    assert rows(database, "select text from llm_gateway.results") == [{"text": shown}]


async def test_without_its_stream_the_checkpoint_is_the_answer(database: TestDatabase) -> None:
    redis = MemoryRedis()
    turn = seed_turn(database)
    async with (
        http_provider(Rule(deltas=("abc", "d"), hang_after=1)) as (_, provider),
        running_worker(database, provider, live=MemoryLiveStream(redis), checkpoint_s=0.01) as dead,
        running_worker(database, provider, live=MemoryLiveStream(redis), background=IDLE) as other,
    ):
        await dead.take(turn)
        await until(
            lambda: bool(rows(database, "select 1 from llm_gateway.partials")), "a checkpoint"
        )
        await dead.die(database)
        redis.flush()
        await other.app.recoverer.sweep()
        told = await other.ended(turn)

    assert isinstance(told.data, GenerationInterruptedV1)
    assert told.data.sha256 == hashlib.sha256(b"abc").hexdigest()
    assert told.data.upto == "1-2"


async def test_without_any_trace_the_turn_ends_rather_than_being_answered_twice(
    database: TestDatabase,
) -> None:
    redis = MemoryRedis()
    turn = seed_turn(database)
    async with (
        http_provider(Rule(hang_after=0)) as (server, provider),
        running_worker(database, provider, live=MemoryLiveStream(redis)) as dead,
        running_worker(database, provider, live=MemoryLiveStream(redis), background=IDLE) as other,
    ):
        await dead.take(turn)
        await until(lambda: bool(server.requests), "the request is made")
        await dead.die(database)
        redis.flush()
        await other.app.recoverer.sweep()
        told = await other.ended(turn)

    assert isinstance(told.data, GenerationInterruptedV1)
    assert (told.data.length, len(server.requests)) == (0, 1)


async def test_redis_is_waited_for_before_the_checkpoint_decides_alone(
    database: TestDatabase,
) -> None:
    redis = MemoryRedis()
    turn = seed_turn(database)
    async with (
        http_provider(Rule(deltas=("abc", "d"), hang_after=1)) as (_, provider),
        running_worker(database, provider, live=MemoryLiveStream(redis), checkpoint_s=0.01) as dead,
        running_worker(database, provider, live=MemoryLiveStream(redis), background=IDLE) as other,
    ):
        await dead.take(turn)
        await until(
            lambda: bool(rows(database, "select 1 from llm_gateway.partials")), "a checkpoint"
        )
        await dead.die(database)
        redis.go_away()
        await other.app.recoverer.sweep()
        assert other.told == []

        rows(database, "update llm_gateway.work set progressed_at = now() - interval '1 minute'")
        await other.app.recoverer.sweep()
        told = await other.ended(turn)

    assert told.data.sha256 == hashlib.sha256(b"abc").hexdigest()


async def test_a_step_that_killed_three_workers_fails(database: TestDatabase) -> None:
    live = MemoryLiveStream(MemoryRedis())
    turn = seed_turn(database)
    await accepted(live, turn)
    async with (
        http_provider(Rule(hang_after=0)) as (server, provider),
        running_worker(database, provider, live=live, background=IDLE) as other,
    ):
        for attempt in range(1, 4):
            async with running_worker(database, provider, live=live) as dead:
                await dead.take(turn)
                await until(lambda: len(server.requests) >= attempt, "the request is made")  # noqa: B023
                await dead.die(database)
            await other.app.recoverer.sweep()
        told = await other.ended(turn)

    assert told.data == GenerationFailedV1(step_id=turn.step_id, attempt=3, reason="internal")
    assert len(server.requests) == 3


async def test_a_sleeper_that_wakes_up_is_refused_in_the_stream_and_in_postgres(
    database: TestDatabase,
) -> None:
    live = MemoryLiveStream(MemoryRedis())
    turn = seed_turn(database)
    deltas = ("a", "b", "c")
    async with (
        http_provider(Rule(deltas=deltas, hang_after=1, times=1)) as (server, provider),
        running_worker(
            database, provider, live=live, background=("live_writer", "finisher")
        ) as sleeper,
        running_worker(database, provider, live=live, background=IDLE) as other,
    ):
        await sleeper.take(turn)
        await sleeper.until_shown(turn, "a")
        sleeper.expire(database)
        await other.app.recoverer.sweep()
        told = await other.ended(turn)

        server.release()
        await until(lambda: sleeper.app.pool.running == 0, "the sleeper gives up")
        shown = await other.shown(turn)

        assert fence_refusals(sleeper, "stream") == 1
        assert sleeper.told == []
    assert told.data.reason == "lease_expired"
    assert shown == "a"
    assert rows(database, "select text from llm_gateway.results") == [{"text": "a"}]
    assert rows(database, "select count(*) from llm_gateway.attempts") == [{"count": 1}]


async def test_a_late_end_is_refused_by_postgres_alone(database: TestDatabase) -> None:
    """Each worker has a Redis of its own here, so only the row's fence is left."""
    turn = seed_turn(database)
    async with (
        http_provider(Rule(deltas=("a", "b"), hang_after=1, times=1)) as (server, provider),
        running_worker(database, provider, background=("live_writer", "finisher")) as sleeper,
        running_worker(database, provider, background=IDLE) as other,
    ):
        await sleeper.take(turn)
        await sleeper.until_shown(turn, "a")
        sleeper.expire(database)
        await other.app.recoverer.sweep()
        told = await other.ended(turn)

        server.release()
        await until(lambda: fence_refusals(sleeper, "result") == 1, "the late end is refused")
        assert sleeper.told == []
    left = rows(database, "select event_id from llm_gateway.outbox")
    assert [row["event_id"] for row in left if row["event_id"] != told.id] == []
    assert rows(database, "select text from llm_gateway.results") == [{"text": ""}]


async def test_a_lost_lease_stops_the_calls_and_their_work_is_recovered(
    database: TestDatabase,
) -> None:
    live = MemoryLiveStream(MemoryRedis())
    turn = seed_turn(database)
    await accepted(live, turn)
    async with (
        http_provider(Rule(hang_after=0, times=1), Rule(deltas=("fine",))) as (server, provider),
        running_worker(database, provider, live=live) as worker,
    ):
        await worker.take(turn)
        await until(lambda: bool(server.requests), "the first request is made")
        worker.app.pool.lose_all()
        await until(lambda: worker.app.pool.running == 0, "the call is stopped")
        await worker.app.pool.look()
        await worker.app.pool.look()
        assert len(server.requests) == 1, "a call that was made is not adopted"

        await worker.app.recoverer.sweep()
        told = await worker.ended(turn)

    assert told.data.attempt == 2


async def test_a_claim_whose_answer_was_lost_is_adopted_after_two_looks(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database)
    provider = MemoryProvider(answer("fine"))
    async with running_worker(database, provider, background=IDLE) as worker:
        room = worker.app.pool.reserve(1)
        await worker.app.store.accept("test", [turn.event], room=room)  # its answer is dropped
        worker.app.pool.release(room)

        await worker.app.pool.look()
        assert worker.app.pool.running == 0
        await worker.app.pool.look()
        told = await worker.ended(turn)

    assert told.data.attempt == 1
    assert provider.payloads == [turn.payload]


async def test_two_workers_never_claim_one_step(database: TestDatabase) -> None:
    turns = [seed_turn(database) for _ in range(30)]
    provider = MemoryProvider()
    async with (
        running_worker(database, provider, background=("lease",)) as one,
        running_worker(database, provider, background=("lease",)) as two,
    ):
        await one.app.store.accept("test", [turn.event for turn in turns], room=0)
        claims = await asyncio.gather(
            *(worker.app.store.claim(5) for _ in range(4) for worker in (one, two))
        )

    steps = [claim.facts.step_id for batch in claims for claim in batch]
    assert sorted(steps) == sorted(turn.step_id for turn in turns)


async def test_an_end_of_a_step_that_moved_on_writes_nothing(database: TestDatabase) -> None:
    turn = seed_turn(database)
    async with running_worker(database, MemoryProvider(), background=("lease",)) as worker:
        accepted_ = await worker.app.store.accept("test", [turn.event], room=1)
        [claim] = accepted_.claimed
        await worker.app.store.requeue([claim.facts], reason="lease_expired")
        [again] = await worker.app.store.claim(1)
        text = AttemptText(1)
        text.append("late")
        late = Ending(claim.facts, Completed("stop"), text, None, Measured())

        assert await worker.app.store.finish([late]) == set()
        assert again.facts.attempt == 2
        await worker.app.store.checkpoint([(claim.facts, "1-2", "late")])
    assert rows(database, "select state, attempt from llm_gateway.work") == [
        {"state": "running", "attempt": 2}
    ]
    for table in ("results", "partials", "outbox"):
        assert rows(database, f"select * from llm_gateway.{table}") == []  # noqa: S608


async def test_a_cancelled_step_of_a_dead_worker_is_not_started_again(
    database: TestDatabase,
) -> None:
    live = MemoryLiveStream(MemoryRedis())
    turn = seed_turn(database)
    await accepted(live, turn)
    async with (
        http_provider(Rule(hang_after=0)) as (server, provider),
        running_worker(database, provider, live=live) as dead,
        running_worker(database, provider, live=live, background=IDLE) as other,
    ):
        await dead.take(turn)
        await until(lambda: bool(server.requests), "the request is made")
        await dead.die(database)
        cancel = about(turn, TurnCancelRequestedV1(reason="user"))
        await other.app.turns.handle([delivery(cancel)])
        await other.app.recoverer.sweep()
        told = await other.ended(turn)

    assert told.data == GenerationFailedV1(step_id=turn.step_id, attempt=1, reason="user")


@pytest.mark.parametrize(
    ("limited_by", "reason"), [("turn", "deadline"), ("step", "step_deadline")]
)
async def test_waiting_work_past_its_deadline_is_ended(
    database: TestDatabase, limited_by: Literal["turn", "step"], reason: str
) -> None:
    turn = seed_turn(database, terms=Terms(0.01, limited_by))
    async with running_worker(database, MemoryProvider(), background=IDLE) as worker:
        await worker.app.store.accept("test", [turn.event], room=0)
        await worker.app.recoverer.sweep()
        told = await worker.ended(turn)

    assert told.data == GenerationFailedV1(step_id=turn.step_id, attempt=0, reason=reason)


async def test_an_end_that_nobody_heard_is_told_again_with_the_same_id(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database)
    async with running_worker(database, MemoryProvider(), retell_after_s=0.05) as worker:
        await worker.take(turn)
        first = await worker.ended(turn)
        await until(
            lambda: rows(database, "select count(*) from llm_gateway.outbox") == [{"count": 0}],
            "the broker has the event",
        )
        rows(database, "update ingestion.open_turns set progressed_at = now() - interval '1 m'")
        await until_told_again(worker)
        assert worker.told[1] == first

        rows(database, "delete from ingestion.open_turns")
        rows(database, "update llm_gateway.work set told_at = now() - interval '1 m'")
        assert await worker.app.store.tell_again(silent_s=0.05) == 0


async def until_told_again(worker: Worker) -> None:
    async def is_told_again() -> bool:
        await worker.app.recoverer.sweep()
        return len(worker.told) > 1

    await waiting.until(is_told_again)


async def test_an_end_that_still_waits_for_the_broker_is_not_told_again(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database)
    async with running_worker(database, MemoryProvider()) as worker:
        worker.publisher.is_away = True
        await worker.take(turn)
        await until(
            lambda: rows(database, "select count(*) from llm_gateway.outbox") == [{"count": 1}],
            "the end is stored",
        )
        for table in ("llm_gateway.outbox set created_at", "llm_gateway.work set told_at"):
            rows(database, f"update {table} = now() - interval '1 m'")
        rows(database, "update ingestion.open_turns set progressed_at = now() - interval '1 m'")

        assert await worker.app.store.tell_again(silent_s=10) == 0


async def test_a_drained_worker_hands_back_what_showed_nothing_and_keeps_the_rest(
    database: TestDatabase,
) -> None:
    shown, silent = seed_turn(database, text="shown"), seed_turn(database, text="silent")
    async with (
        http_provider(
            Rule(match="shown", deltas=("a", "b"), hang_after=1), Rule(match="silent", hang_after=0)
        ) as (server, provider),
        running_worker(database, provider, drain_s=0.0) as worker,
    ):
        await worker.take(shown, silent)
        await worker.until_shown(shown, "a")
        await until(lambda: len(server.requests) == 2, "both requests are made")
        await worker.app.drain()
        told = await worker.ended(shown)

        assert worker.app.pool.reserve(1) == 0
    assert isinstance(told.data, GenerationInterruptedV1)
    assert rows(
        database, "select state, attempt from llm_gateway.work where step_id = %s", silent.step_id
    ) == [{"state": "ready", "attempt": 1}]


async def test_old_work_of_turns_that_are_not_open_is_forgotten(database: TestDatabase) -> None:
    gone, kept = seed_turn(database), seed_turn(database)
    async with running_worker(database, MemoryProvider()) as worker:
        await worker.take(gone, kept)
        await worker.ended(gone)
        await worker.ended(kept)
        rows(database, "delete from ingestion.open_turns where turn_id = %s", gone.turn_id)
        rows(database, "update llm_gateway.work set created_at = now() - interval '2 h'")

        assert await worker.app.store.forget_ended(keep_s=3600) == 1
    remaining: list[dict[str, Any]] = rows(database, "select turn_id from llm_gateway.results")
    assert remaining == [{"turn_id": kept.turn_id}]
