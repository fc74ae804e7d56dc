"""A tenant chooses to keep no payloads while one is being kept: nothing stays, in either order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row

from services.context_assembly.ports import EndedTurn, TurnKey
from services.context_assembly.store import end_statements
from tests.rig.parts import TestDatabase
from tests.rig.planning import Chat, PostgresWorld, ended, postgres_world, start
from tests.rig.planning_handlers import handlers
from tests.rig.waiting import until

pytestmark = pytest.mark.postgres

Connection = psycopg.AsyncConnection[DictRow]

NONE = (
    "select context_assembly.op_set_capture_posture(%(tenant)s::uuid, 'none', 1000, 'someone')"
    " as done"
)


@pytest.fixture
async def world(database: TestDatabase) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database) as real:
        yield real


async def connected(database: TestDatabase, service: str, tenant: UUID) -> Connection:
    """A transaction of that service that has named the tenant."""
    connection = await psycopg.AsyncConnection.connect(
        database.url_of(service), row_factory=dict_row
    )
    await connection.execute("select set_config('search_path', 'context_assembly, turnwire', true)")
    await connection.execute("select set_config('app.tenant_ids', %s, true)", (str(tenant),))
    return connection


async def started_turn(world: PostgresWorld, chat: Chat) -> UUID:
    """A turn that has a payload and has failed in the rows."""
    started = await start(world, chat, "keep this?")
    await handlers(world).handle([started])
    await world.end_turn(chat, started.event.turn_id, status="failed")
    return started.event.turn_id


async def waits_or_is_done(world: PostgresWorld, task: "asyncio.Task[object]") -> None:
    """Until somebody waits for a lock of captures, or the task came through without waiting."""

    async def happened() -> bool:
        waiting = await world.fetch("select 1 from pg_locks where not granted limit 1")
        return bool(waiting) or task.done()

    await until(happened)


async def finish(waiting: Awaitable[object]) -> None:
    async with asyncio.timeout(30):
        await waiting


async def test_none_is_chosen_while_a_payload_is_being_kept(
    database: TestDatabase, world: PostgresWorld
) -> None:
    chat = Chat()
    turn = await started_turn(world, chat)
    keeping = await connected(database, "context_assembly", chat.tenant_id)
    choosing = await connected(database, "frontend_gateway", chat.tenant_id)
    async with keeping, choosing:
        for sql, columns in end_statements([EndedTurn(TurnKey(chat.tenant_id, turn), "failed")]):
            await keeping.execute(sql.encode(), columns)
        task: asyncio.Task[object] = asyncio.create_task(
            choosing.execute(NONE, {"tenant": chat.tenant_id})
        )
        await waits_or_is_done(world, task)
        await keeping.commit()
        await finish(task)
        await choosing.commit()

    assert await world.captures(chat) == {}


async def test_a_payload_is_kept_while_none_is_being_chosen(
    database: TestDatabase, world: PostgresWorld
) -> None:
    chat, other = Chat(), Chat()
    turn, elsewhere = await started_turn(world, chat), await started_turn(world, other)
    choosing = await connected(database, "frontend_gateway", chat.tenant_id)
    async with choosing:
        await choosing.execute(NONE, {"tenant": chat.tenant_id})
        # Another tenant waits for nobody.
        await finish(handlers(world).handle([ended(other, elsewhere, "failed", "internal")]))
        task: asyncio.Task[object] = asyncio.create_task(
            handlers(world).handle([ended(chat, turn, "failed", "internal")])
        )
        await waits_or_is_done(world, task)
        await choosing.commit()
        await finish(task)

    assert await world.captures(chat) == {}
    assert set(await world.captures(other)) == {elsewhere}


async def test_a_broken_plan_is_stored_while_none_is_being_chosen(
    database: TestDatabase, world: PostgresWorld
) -> None:
    chat = Chat()
    question = await start(world, chat, "old")
    await handlers(world).handle([question])
    await world.end_turn(chat, question.event.turn_id, status="completed")
    edited = await start(world, chat, "new", supersedes=question.event.data.user_message_id)
    choosing = await connected(database, "frontend_gateway", chat.tenant_id)
    async with choosing:
        await choosing.execute(NONE, {"tenant": chat.tenant_id})
        task: asyncio.Task[object] = asyncio.create_task(handlers(world).handle([edited]))
        await waits_or_is_done(world, task)
        await choosing.commit()
        await finish(task)

    assert edited.event.turn_id in await world.plans(chat)
    assert await world.captures(chat) == {}
