"""What the records of the topics do to the work, on a real Postgres."""

from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest

from schemas.generations import GenerationFailedV1
from schemas.registry import decode
from schemas.steps import StepRefusedV1
from schemas.turns import TurnEndedV1
from services.llm_gateway.handlers import UnknownTurn
from services.llm_gateway.providers.memory import MemoryProvider
from tests.rig.llm_worker import about, delivery, rows, running_worker, seed_turn
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

QUIET = ("lease", "live_writer", "finisher")


async def test_a_record_delivered_three_times_makes_one_call(database: TestDatabase) -> None:
    turn = seed_turn(database)
    provider = MemoryProvider()
    async with running_worker(database, provider) as worker:
        await worker.app.steps.handle([delivery(turn.event), delivery(turn.event)])
        await worker.take(turn)
        await worker.ended(turn)
        await worker.take(turn)

    assert len(provider.payloads) == 1
    assert len(worker.told) == 1


async def test_a_step_told_again_after_its_turn_ended_makes_no_call(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database)
    rows(
        database,
        "update ingestion.turns set status = 'failed', reason = 'deadline', ended_at = now()",
    )
    provider = MemoryProvider()
    async with running_worker(database, provider) as worker:
        await worker.take(turn)
        assert await worker.app.pool.claim_once() == 0

    assert provider.payloads == []
    assert rows(database, "select 1 from llm_gateway.work") == []


async def test_a_step_of_a_turn_that_does_not_exist_is_the_record_s_fault(
    database: TestDatabase,
) -> None:
    turn, other = seed_turn(database), seed_turn(database)
    forged = replace(turn.event, tenant_id=other.event.tenant_id)
    async with running_worker(database, MemoryProvider()) as worker:
        with pytest.raises(UnknownTurn):
            await worker.app.steps.handle([delivery(forged), delivery(other.event)])
        await worker.ended(other)

    assert rows(database, "select turn_id from llm_gateway.work") == [{"turn_id": other.turn_id}]


async def test_a_late_step_of_a_purged_conversation_is_dropped_and_not_the_record_s_fault(
    database: TestDatabase,
) -> None:
    turn, other, unknown = seed_turn(database), seed_turn(database), seed_turn(database)
    rows(
        database,
        "insert into ingestion.purged_conversations values (%s, %s, now())",
        turn.event.tenant_id,
        turn.event.conversation_id,
    )
    rows(
        database,
        "delete from ingestion.turns where id = any (%s)",
        [turn.turn_id, unknown.turn_id],
    )
    async with running_worker(database, MemoryProvider()) as worker:
        await worker.app.steps.handle([delivery(turn.event), delivery(other.event)])
        await worker.ended(other)
        with pytest.raises(UnknownTurn, match=str(unknown.turn_id)):
            await worker.app.steps.handle([delivery(turn.event), delivery(unknown.event)])

    assert rows(database, "select turn_id from llm_gateway.work") == [{"turn_id": other.turn_id}]


async def test_a_parked_step_ends_its_turn_only_if_the_turn_is_its_own(
    database: TestDatabase,
) -> None:
    turn, other = seed_turn(database), seed_turn(database)
    forged = replace(turn.event, tenant_id=other.event.tenant_id)
    async with running_worker(database, MemoryProvider(), background=QUIET) as worker:
        tenants = (turn.event.tenant_id, other.event.tenant_id)
        async with worker.database.transaction(tenants) as tx:
            [message] = await worker.app.steps.ending_of(delivery(turn.event), tx, "bug")
            assert await worker.app.steps.ending_of(delivery(forged), tx, "bug") == ()
            refused = about(turn, StepRefusedV1(reason="invariant"))
            assert await worker.app.steps.ending_of(delivery(refused), tx, "bug") == ()

    told = decode(message.payload)
    assert told.data == GenerationFailedV1(step_id=turn.step_id, attempt=0, reason="dead_lettered")
    assert told.turn_id == turn.turn_id


async def test_replays_are_refused_before_any_handler(database: TestDatabase) -> None:
    turn = seed_turn(database)
    again = replace(turn.event, replay=True)
    async with running_worker(database, MemoryProvider(), background=QUIET) as worker:
        verdicts = await worker.app.steps.screen([delivery(again), delivery(turn.event)])

    assert verdicts == ["replayed", None]


async def test_an_end_that_comes_before_its_step_leaves_nothing_behind(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database)
    ended = about(turn, TurnEndedV1(status="failed", reason="deadline", length=0))
    async with running_worker(database, MemoryProvider(), background=QUIET) as worker:
        await worker.app.turns.handle([delivery(ended)])
        await worker.app.turns.handle([delivery(ended)])

    assert rows(database, "select consumer, event_id from llm_gateway.inbox") == [
        {"consumer": "llm_gateway.turns", "event_id": ended.id}
    ]


async def test_a_step_of_a_turn_numbers_its_attempts_above_all_earlier_ones(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database)
    next_step = replace(
        turn.event,
        id=uuid4(),
        data=turn.event.data.model_copy(update={"step_id": uuid4(), "step_no": 2}),
    )
    async with running_worker(database, MemoryProvider()) as worker:
        await worker.take(turn)
        await worker.ended(turn)
        accepted = await worker.app.store.accept("test", [next_step], room=1)

    assert [claim.facts.attempt for claim in accepted.claimed] == [2]


async def test_other_services_read_texts_through_functions_that_name_tenants(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database)
    async with running_worker(database, MemoryProvider()) as worker:
        await worker.take(turn)
        await worker.ended(turn)
    tenant, step = turn.event.tenant_id, turn.step_id
    question = "select text from llm_gateway.results_v1(%s::uuid[], %s::uuid[], '{1}'::int[])"

    with psycopg.connect(database.url_of("ingestion"), connect_timeout=10) as connection:
        assert connection.execute(question, ([tenant], [step])).fetchall() == []
        connection.execute("select set_config('app.tenant_ids', %s, true)", (str(tenant),))
        assert connection.execute(question, ([tenant], [step])).fetchall() == [("ok",)]
        assert connection.execute(question, ([uuid4()], [step])).fetchall() == []
        states = connection.execute("select state from llm_gateway.work_v1").fetchall()
        assert states == [("done",)]
