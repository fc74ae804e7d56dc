"""Steps are told again until somebody has them, and rows go when their time is up."""

from collections.abc import AsyncIterator

import pytest

from libs.clock import SystemClock
from services.context_assembly.core.posture import CaptureChoice
from services.context_assembly.postures import FixedPostures
from services.context_assembly.sweeps import Reteller, Retention, SweepLimits
from tests.rig.parts import TestDatabase
from tests.rig.planning import Chat, PostgresWorld, postgres_world, start
from tests.rig.planning_handlers import handlers

pytestmark = pytest.mark.postgres

LIMITS = SweepLimits()


@pytest.fixture
async def world(database: TestDatabase) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database) as real:
        yield real


FAILURES = FixedPostures(CaptureChoice("failures", 0))


def reteller(world: PostgresWorld) -> Reteller:
    return Reteller(
        world.database, world.relay, clock=SystemClock(), limits=LIMITS, postures=FAILURES
    )


def retention(world: PostgresWorld) -> Retention:
    return Retention(world.database, clock=SystemClock(), limits=LIMITS, postures=FAILURES)


async def planned(world: PostgresWorld, chat: Chat) -> None:
    await handlers(world).handle([await start(world, chat, "Hello")])


async def lose_topic(world: PostgresWorld) -> None:
    """The broker had the records, then lost them."""
    await world.fetch("delete from context_assembly.outbox")


async def pass_seconds(world: PostgresWorld, seconds: float) -> None:
    await world.fetch(
        "update context_assembly.steps"
        " set told_at = told_at - make_interval(secs => %(s)s::float8)",
        s=seconds,
    )


async def test_a_step_that_nobody_took_is_told_again_under_its_first_id(
    world: PostgresWorld,
) -> None:
    await planned(world, Chat())
    [first] = await world.told()
    await lose_topic(world)
    assert await reteller(world).sweep() == 0  # nothing is silent yet

    await pass_seconds(world, 11)
    assert await reteller(world).sweep() == 1

    [again] = await world.told()
    assert again == first
    assert await reteller(world).sweep() == 0  # and not at once again


async def test_a_refused_step_of_an_open_turn_is_told_again_too(world: PostgresWorld) -> None:
    chat = Chat()
    await handlers(world).handle([await start(world, chat, "word " * 9_000)])
    [first] = await world.told()
    await lose_topic(world)
    await pass_seconds(world, 11)

    assert await reteller(world).sweep() == 1
    assert await world.told() == [first]


async def test_a_step_that_was_taken_is_left_alone(world: PostgresWorld) -> None:
    chat = Chat()
    await planned(world, chat)
    await lose_topic(world)
    await world.fetch(
        "insert into llm_gateway.work (step_id, tenant_id, conversation_id, turn_id, lane, step_no,"
        " seq, model, fingerprint, causation_id, deadline_at, state, base_attempt, attempt,"
        " run_after, created_at, progressed_at)"
        " select step_id, tenant_id, conversation_id, turn_id, branch_id, 1, seq, model, 'f',"
        " event_id, deadline_at, 'ready', 0, 0, now(), now(), now() from context_assembly.steps"
    )
    await pass_seconds(world, 11)

    assert await reteller(world).sweep() == 0
    assert await world.told() == []


async def test_a_record_that_still_waits_for_the_broker_is_not_written_twice(
    world: PostgresWorld,
) -> None:
    await planned(world, Chat())
    await pass_seconds(world, 11)

    assert await reteller(world).sweep() == 0
    assert len(await world.told()) == 1


async def test_a_turn_whose_end_was_not_heard_of_is_closed(world: PostgresWorld) -> None:
    good, bad = Chat(), Chat()
    first, second = await start(world, good, "one"), await start(world, bad, "two")
    await handlers(world).handle([first, second])
    await lose_topic(world)
    await world.end_turn(good, first.event.turn_id, status="completed")
    await world.end_turn(bad, second.event.turn_id, status="failed")
    await pass_seconds(world, 11)

    assert await reteller(world).sweep() == 0

    assert await world.told() == []
    assert await world.payloads(good) == await world.payloads(bad) == {}
    assert await world.captures(good) == {}
    assert list(await world.captures(bad)) == [second.event.turn_id]
    rows = await world.fetch(
        "select distinct state, event is null as quiet from context_assembly.steps"
    )
    assert rows == [{"state": "ended", "quiet": True}]


MAKE_OLD = """
with captured as (
  insert into context_assembly.captures (tenant_id, step_id, turn_id, payload, cause, captured_at)
  select tenant_id, step_id, turn_id, '', 'internal',
         now() - case tenant_id when %(old)s then interval '7 days 1 s' else interval '6 days' end
    from context_assembly.steps
), counted as (
  insert into context_assembly.token_counts (tenant_id, sha256, tokenizer, tokens, counted_at)
  select tenant_id, sha256('text'), 't', 1,
         now() - case tenant_id when %(old)s then interval '30 days 1 s' else interval '29 days' end
    from context_assembly.steps
)
insert into context_assembly.inbox (consumer, event_id, at) values
  ('c', gen_random_uuid(), now() - interval '14 days 1 s'),
  ('c', gen_random_uuid(), now() - interval '13 days')
"""


async def test_retention_drops_what_is_old_and_nothing_else(world: PostgresWorld) -> None:
    old, new = Chat(), Chat()
    await planned(world, old)
    await planned(world, new)
    await world.fetch(MAKE_OLD, old=old.tenant_id)

    gone = await retention(world).drop_old()

    assert gone == {
        "orphaned_rows": 0,
        "captured_rows": 1,
        "vetoed_rows": 0,
        "capture_reads": 0,
        "token_rows": 1,
        "inbox_rows": 1,
        "dead_letter_rows": 0,
    }
    assert await world.captures(old) == {}
    assert len(await world.captures(new)) == 1
    assert await world.counts() == 1
    assert len(await world.fetch("select event_id from context_assembly.inbox")) == 3


async def test_payloads_of_turns_that_ended_unheard_do_not_stay(world: PostgresWorld) -> None:
    ended, running = Chat(), Chat()
    first, second = await start(world, ended, "one"), await start(world, running, "two")
    await handlers(world).handle([first, second])
    await world.end_turn(ended, first.event.turn_id, status="completed")
    await world.fetch("update context_assembly.payloads set created_at = now() - interval '61 min'")

    gone = await retention(world).drop_old()

    assert gone["orphaned_rows"] == 1
    assert await world.payloads(ended) == {}
    assert list(await world.payloads(running)) == [second.event.turn_id]
