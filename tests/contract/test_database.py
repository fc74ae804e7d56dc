"""Pooled transactions on a real Postgres: tenants, one round trip, lost connections."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import psycopg
import pytest

from libs.errors import StoreUnavailable
from libs.postgres import Database
from tests.rig.mechanics import make_mechanics, mechanics_database

pytestmark = pytest.mark.postgres

NAMED = "select current_setting('app.tenant_ids', true) as named"


@pytest.fixture
async def database(empty_database_url: str) -> AsyncIterator[Database]:
    await make_mechanics(empty_database_url)
    async with mechanics_database(empty_database_url, size=2) as database:
        yield database


async def test_a_transaction_names_its_tenants_and_the_next_one_has_none(
    database: Database,
) -> None:
    one, two = sorted([uuid.uuid4(), uuid.uuid4()], key=str)
    async with database.transaction([two, one, one]) as transaction:
        named = await transaction.batch([(NAMED, {}), ("select 1 as n", {})])
    after = [await database.fetch(NAMED) for _ in range(4)]

    assert named == [[{"named": f"{one},{two}"}], [{"n": 1}]]
    assert all(not rows[0]["named"] for rows in after)


async def test_a_sweep_names_tenants_it_learned_inside(database: Database) -> None:
    tenant = uuid.uuid4()
    async with database.transaction() as transaction:
        await transaction.name_tenants([tenant])
        assert await transaction.fetch(NAMED) == [{"named": str(tenant)}]


async def test_what_fails_is_rolled_back_whole(database: Database) -> None:
    insert = "insert into ingestion.inbox (consumer, event_id, at) values ('c', %(id)s, now())"
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with database.transaction() as transaction:
            await transaction.execute(insert, {"id": uuid.uuid4()})
            await transaction.commit_with(
                [
                    (insert, {"id": uuid.uuid4()}),
                    ("select 1 / 0", {}),
                    (insert, {"id": uuid.UUID(int=0)}),
                ]
            )

    assert await database.fetch("select count(*) as n from ingestion.inbox") == [{"n": 0}]


async def test_a_lost_connection_is_store_unavailable_and_the_next_one_works(
    database: Database,
) -> None:
    kill = "select pg_terminate_backend(%(pid)s)"
    with pytest.raises(StoreUnavailable):
        async with database.transaction() as transaction:
            pid = (await transaction.fetch("select pg_backend_pid() as pid"))[0]["pid"]
            await database.fetch(kill, {"pid": pid})
            await transaction.fetch("select 1")

    async with asyncio.timeout(10):
        assert await database.fetch("select 1 as n") == [{"n": 1}]


async def test_a_session_comes_back_after_its_connection_was_lost(database: Database) -> None:
    session = database.session()
    pid = (await session.fetch("select pg_backend_pid() as pid"))[0]["pid"]
    await database.fetch("select pg_terminate_backend(%(pid)s)", {"pid": pid})

    with pytest.raises(StoreUnavailable):
        await session.fetch("select 1")

    assert (await session.fetch("select pg_backend_pid() as pid"))[0]["pid"] != pid
    assert session.connected_no == 2
    await session.close()


async def test_no_free_connection_is_an_answer_not_a_wait_for_ever(database: Database) -> None:
    async with database.transaction(), database.transaction():
        with pytest.raises(StoreUnavailable, match="became free"):
            await database.fetch("select 1")


async def test_a_database_that_is_not_there_is_told_at_the_start() -> None:
    with pytest.raises(StoreUnavailable):
        await Database.open("postgresql://x@127.0.0.1:9/none", schema="ingestion", timeout_s=1)
