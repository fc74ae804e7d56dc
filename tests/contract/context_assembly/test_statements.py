"""What planning a plain turn costs: these statements in these round trips, and no others."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from libs.postgres import Database, Statement, Transaction
from services.context_assembly.handlers import CONSUMER
from services.context_assembly.store import SQL, PostgresStore
from tests.rig.parts import TestDatabase
from tests.rig.planning import (
    Chat,
    PostgresWorld,
    ended,
    postgres_world,
    remember,
    start,
)
from tests.rig.planning_handlers import handlers

pytestmark = pytest.mark.postgres

Row = dict[str, Any]


@pytest.fixture
async def world(database: TestDatabase) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database) as real:
        yield real


class Counting:
    """A transaction that notes the names of the statements of each round trip."""

    def __init__(self, transaction: Transaction, trips: list[list[str]]) -> None:
        self._transaction = transaction
        self._trips = trips

    async def batch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self._note(statements)
        return await self._transaction.batch(statements)

    async def fetch(self, sql: str, parameters: Any) -> list[Row]:
        self._note([(sql, parameters)])
        return await self._transaction.fetch(sql, parameters)

    async def commit_with(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self._note(statements)
        return await self._transaction.commit_with(statements)

    def _note(self, statements: Sequence[Statement]) -> None:
        names = {sql: name for name, sql in SQL.items()}
        self._trips.append([names.get(sql, "mechanics") for sql, _ in statements])


class CountingDatabase:
    """A database whose transactions are counted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.trips: list[list[str]] = []

    @asynccontextmanager
    async def transaction(self, tenants: Any = ()) -> AsyncIterator[Counting]:
        async with self._database.transaction(tenants) as transaction:
            yield Counting(transaction, self.trips)


async def test_a_plain_turn_is_planned_and_ended_in_two_round_trips_each(
    world: PostgresWorld,
) -> None:
    chat = Chat()
    await remember(world, chat, *((f"question {n}", f"answer {n}") for n in range(5)))
    started = await start(world, chat, "now")
    database = CountingDatabase(world.database)
    world.store = PostgresStore(database, world.relay, consumer=CONSUMER)  # type: ignore[arg-type]
    service = handlers(world)

    await service.handle([started])
    planned = database.trips.copy()
    database.trips.clear()
    await world.end_turn(chat, started.event.turn_id, status="completed")
    await service.handle([ended(chat, started.event.turn_id, "completed")])

    assert planned == [
        ["lock_conversations", "mechanics", "turns", "known_steps", "texts", "history"],
        ["insert_steps", "insert_plans", "insert_payloads", "mechanics", "mechanics"],
    ]
    assert database.trips == [
        ["lock_conversations", "mechanics"],
        ["delete_payloads", "end_steps", "mechanics"],
    ]


MANY = """
insert into context_assembly.instructions (tenant_id, id, scope_id, kind, version, text, sha256,
                                           is_current, set_by, created_at)
select %(tenant)s, gen_random_uuid(), gen_random_uuid(), 'workspace', 1, 'text', 'x', true, 'test',
       now()
  from generate_series(1, 20000)
"""


async def test_other_conversations_instructions_cost_a_turn_nothing(world: PostgresWorld) -> None:
    chat = Chat()
    started = await start(world, chat, "now")
    await world.fetch(MANY, tenant=chat.tenant_id)
    await world.fetch("analyze context_assembly.instructions")

    async with world.database.transaction([chat.tenant_id]) as transaction:
        [[row]] = await transaction.batch(
            [
                (
                    f"explain (analyze, buffers, format json) {SQL['turns']}",
                    {"turns": [started.event.turn_id, uuid4()]},
                )
            ]
        )

    [plan] = next(iter(row.values()))
    touched = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    assert touched < 30, plan
