"""What other services read of plans, each as its own role, and what the reads cost."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from libs.postgres import Database
from services.context_assembly.ports import PAGE_ROWS
from tests.rig.parts import TestDatabase
from tests.rig.planning import (
    TOKENIZER,
    Chat,
    PostgresWorld,
    postgres_world,
    start,
)
from tests.rig.planning_handlers import handlers

pytestmark = pytest.mark.postgres

PAYLOADS = "select * from context_assembly.step_payloads_v1(%(tenants)s::uuid[], %(ids)s::uuid[])"
PLANS = "select * from context_assembly.plans_v1(%(tenants)s::uuid[], %(ids)s::uuid[])"
STEPS = "select * from context_assembly.steps_v1 where turn_id = any(%(ids)s::uuid[])"


@pytest.fixture
async def world(database: TestDatabase) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database) as real:
        yield real


@asynccontextmanager
async def reading_as(service: str, database: TestDatabase) -> AsyncIterator[Database]:
    schema = "public" if service == "ops" else service
    opened = await Database.open(database.url_of(service), schema=schema, size=2)
    try:
        yield opened
    finally:
        await opened.close()


async def rows_as(
    service: str, database: TestDatabase, sql: str, ids: Sequence[UUID], *tenants: UUID
) -> list[dict[str, Any]]:
    """Rows that a service sees, having named these tenants."""
    parameters = {"ids": list(ids), "tenants": [tenants[0]] * len(ids)}
    async with reading_as(service, database) as opened:
        return await opened.fetch(sql, parameters, tenants=tenants)


async def test_a_payload_is_read_by_the_model_gateway_and_only_under_its_tenant(
    world: PostgresWorld, database: TestDatabase
) -> None:
    chat = Chat()
    started = await start(world, chat, "Hello")
    await handlers(world).handle([started])
    step = (await world.step_key(started.event.turn_id)).step_id

    [row] = await rows_as("llm_gateway", database, PAYLOADS, [step, uuid4()], chat.tenant_id)
    foreign = await rows_as("llm_gateway", database, PAYLOADS, [step], uuid4())

    assert bytes(row["payload"]) == (await world.payloads(chat))[started.event.turn_id]
    assert (row["turn_id"], row["step_id"]) == (started.event.turn_id, step)
    assert foreign == []


async def test_naming_one_tenant_and_asking_for_another_shows_nothing(
    world: PostgresWorld, database: TestDatabase
) -> None:
    chat, named = Chat(), uuid4()
    started = await start(world, chat, "Hello")
    await handlers(world).handle([started])
    parameters = {"ids": [started.event.turn_id], "tenants": [chat.tenant_id]}

    async with reading_as("frontend_gateway", database) as opened:
        assert await opened.fetch(PLANS, parameters, tenants=[named]) == []
        assert await opened.fetch(PLANS, parameters) == []
        assert len(await opened.fetch(PLANS, parameters, tenants=[chat.tenant_id])) == 1


@pytest.mark.parametrize("service", ["frontend_gateway", "ops"])
async def test_a_plan_is_shown_as_it_was_stored(
    world: PostgresWorld, database: TestDatabase, service: str
) -> None:
    chat = Chat()
    started = await start(world, chat, "Hello")
    await handlers(world).handle([started])
    turn = started.event.turn_id

    [row] = await rows_as(service, database, PLANS, [turn], chat.tenant_id)

    assert (row["turn_id"], row["step_no"]) == (turn, 1)
    assert row["plan"] == (await world.plans(chat))[turn]
    assert row["invariant"] is None


async def test_a_plan_that_was_never_sent_is_shown_with_the_rule_that_it_breaks(
    world: PostgresWorld, database: TestDatabase
) -> None:
    chat = Chat()
    old = await start(world, chat, "old")
    await handlers(world).handle([old])
    await world.end_turn(chat, old.event.turn_id, status="completed")
    edited = await start(world, chat, "new", supersedes=old.event.data.user_message_id)
    await handlers(world).handle([edited])

    turns = [old.event.turn_id, edited.event.turn_id]
    rows = await rows_as("frontend_gateway", database, PLANS, turns, chat.tenant_id)

    assert [row["invariant"] for row in rows] == [None, "superseded_excluded"]


async def test_ingestion_sees_which_steps_exist(
    world: PostgresWorld, database: TestDatabase
) -> None:
    chat = Chat()
    started = await start(world, chat, "Hello")
    await handlers(world).handle([started])

    [row] = await rows_as("ingestion", database, STEPS, [started.event.turn_id], chat.tenant_id)
    assert (row["step_no"], row["state"]) == (1, "planned")


@pytest.mark.parametrize(
    ("service", "sql"),
    [
        ("ingestion", PAYLOADS),
        ("frontend_gateway", PAYLOADS),
        ("llm_gateway", PLANS),
        ("llm_gateway", STEPS),
        ("llm_gateway", "select * from context_assembly.plans"),
        ("ingestion", "select * from context_assembly.payloads"),
        ("ops", "select * from context_assembly.captures"),
        ("ops", "select * from context_assembly.op_silent_steps(1, 1)"),
        ("context_assembly", "select * from context_assembly.dead_letters"),
        ("context_assembly", "update context_assembly.plans set step_no = 2"),
    ],
)
async def test_nobody_else_reads_or_writes(database: TestDatabase, service: str, sql: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await rows_as(service, database, sql, [uuid4()], uuid4())


LONG = 10_000
FILL = """
with turns as (
  insert into ingestion.turns (tenant_id, id, conversation_id, branch_id, principal_id, request_id,
    key, fingerprint, policy, status, seq, base_seq, queued_at_position, user_message_id,
    assistant_message_id, nul_removed, created_at, started_at, deadline_at, ended_at)
  select %(tenant)s, gen_random_uuid(), %(chat)s, %(chat)s, %(tenant)s, gen_random_uuid(),
    'k' || n, 'f', 'serialize', 'completed', 2 * n - 1, 2 * n - 1, 0, gen_random_uuid(),
    gen_random_uuid(), 0, now(), now(), now(), now()
  from generate_series(1, %(count)s / 2) n returning *
), messages as (
  insert into ingestion.messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq,
    status, text, length, said_at, created_at)
  select tenant_id, case r when 'user' then user_message_id else assistant_message_id end,
    conversation_id, branch_id, id, r, case r when 'user' then seq else seq + 1 end, 'completed',
    'forty tokens, so they say', 25, now(), now()
  from turns, unnest(array['user', 'assistant']) r returning tenant_id, id
)
insert into ingestion.message_tokens (tenant_id, message_id, tokenizer, tokens)
select tenant_id, id, %(tokenizer)s, 40 from messages
"""


def rows_of(node: dict[str, Any], relation: str) -> int:
    """Rows that a plan's scans of a relation touched, those filtered out included."""
    own = 0
    if node.get("Relation Name") == relation:
        touched = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        own = int(touched * node["Actual Loops"])
    return own + sum(rows_of(child, relation) for child in node.get("Plans", []))


async def test_a_conversation_of_ten_thousand_messages_costs_no_more_than_what_fits(
    world: PostgresWorld,
) -> None:
    chat = Chat(next_seq=LONG + 1)
    first = await start(world, chat, "its turn makes the conversation's row")
    await world.end_turn(chat, first.event.turn_id, status="failed")
    parameters = {"tenant": chat.tenant_id, "chat": chat.id, "count": LONG}
    await world.fetch(FILL, tokenizer=TOKENIZER, **parameters)
    await world.fetch("analyze ingestion.messages")
    started = await start(world, chat, "now")

    await handlers(world).handle([started])

    history = (await world.plans(chat))[started.event.turn_id]["history"]
    fits = (8_192 - 1_024 - 3) // 44
    assert abs(history["kept"] - fits) <= 1
    assert history["loaded"] <= history["kept"] + PAGE_ROWS

    assert history["loaded"] % PAGE_ROWS == 0

    touched = await rows_touched(world, chat, pages=history["loaded"] // PAGE_ROWS)
    assert history["loaded"] <= touched["messages"] <= history["kept"] + PAGE_ROWS
    assert touched["message_tokens"] <= history["kept"] + PAGE_ROWS


async def rows_touched(world: PostgresWorld, chat: Chat, *, pages: int) -> dict[str, int]:
    """What the database reads for these pages, as its owner explains the published function."""
    [function] = await world.fetch(
        "select prosrc, proconfig from pg_proc where proname = 'history_v1'"
        " and pronamespace = 'ingestion'::regnamespace"
    )
    touched = {"messages": 0, "message_tokens": 0}
    async with world.admin.transaction(force_rollback=True):
        settings = [setting.split("=", 1) for setting in function["proconfig"]]
        for name, value in [["app.tenant_ids", str(chat.tenant_id)], *settings]:
            await world.fetch(
                "select set_config(%(name)s, %(value)s, true)", name=name, value=value
            )
        await world.fetch("set local role ingestion_reader")
        arguments = "uuid[], uuid[], uuid[], bigint[], text[], int"
        await world.fetch(f"prepare history ({arguments}) as {function['prosrc']}")
        for page in range(pages):
            # Seqs below the first turn's own are without a gap, and its answer is no history.
            before_seq = LONG + 3 if page == 0 else LONG + 2 - page * PAGE_ROWS
            [plan] = await world.fetch(
                "explain (analyze, format json) execute history("
                f"array['{chat.tenant_id}']::uuid[], array['{chat.id}']::uuid[],"
                f" array['{chat.id}']::uuid[], array[{before_seq}]::bigint[],"
                f" array['{TOKENIZER}'], {PAGE_ROWS})"
            )
            document = plan["QUERY PLAN"]
            root = (json.loads(document) if isinstance(document, str) else document)[0]["Plan"]
            for relation in touched:
                touched[relation] += rows_of(root, relation)
    return touched
