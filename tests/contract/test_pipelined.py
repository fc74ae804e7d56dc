"""Statements that travel together: every one can be prepared, and every value arrives as it was."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from libs.errors import StoreUnavailable
from libs.postgres import Database, load_queries
from libs.postgres.pipelined import _parsed
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

SERVICES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway")
MECHANICS = ("libs.outbox", "libs.inbox", "libs.kafka")


@pytest.fixture
async def pool(empty_database_url: str) -> AsyncIterator[Database]:
    database = await Database.open(empty_database_url, schema="public", size=1)
    yield database
    await database.close()


@pytest.mark.parametrize(
    ("service", "package"),
    [
        *((service, f"services.{service}") for service in SERVICES),
        *(("ingestion", package) for package in MECHANICS),
        ("llm_gateway", "libs.leases"),
    ],
)
async def test_the_server_can_infer_every_type_of_every_statement(
    database: TestDatabase, service: str, package: str
) -> None:
    """Each as the role that runs it, without a value: what lacks a cast fails here."""
    async with await psycopg.AsyncConnection.connect(
        database.url_of(service), autocommit=True, options=f"-c search_path={service},turnwire"
    ) as connection:
        for number, (name, sql) in enumerate(load_queries(package).items()):
            prepared = _parsed(sql, b"p%d" % number)
            try:
                connection.pgconn.prepare(prepared.name, prepared.text)
                result = connection.pgconn.describe_prepared(prepared.name)
            except psycopg.Error as error:
                pytest.fail(f"{package} {name}: {error}")
            assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, (name, result.error_message)
            assert result.nparams == len(prepared.names)


ODD_TEXTS = [
    "",
    "NULL",
    'a "quoted" one',
    "back\\slash",
    "{curly, comma}",
    " blank ",
    "line\nend",
    "⛴é",
]

VALUES: list[tuple[str, Any]] = [
    ("text[]", ODD_TEXTS),
    ("text[]", [None, "x", None]),
    ("text[]", []),
    ("uuid[]", [uuid.UUID(int=5), None]),
    ("uuid[]", [uuid.UUID(int=5), uuid.UUID(int=2**128 - 1)]),
    ("uuid", uuid.UUID(int=5)),
    ("int[]", [0, -7, None, 2**31 - 1]),
    ("bigint", 2**62),
    ("float8[]", [0.1, -1e300, None]),
    ("boolean[]", [True, False, None]),
    ("bytea[]", [b"", b'\x00\\"\xff', None]),
    ("bytea", b"\x00\x01\\"),
    ("timestamptz[]", [datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), None]),
    ("timestamptz", datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    ("interval", timedelta(days=3, microseconds=5)),
    ("jsonb", Jsonb({"a": ['"', None]})),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
async def test_a_value_arrives_as_it_was(pool: Database, kind: str, value: Any) -> None:
    rows = await pool.fetch(f"select %(value)s::{kind} as value", {"value": value})

    assert rows == [{"value": value.obj if isinstance(value, Jsonb) else value}]


@pytest.mark.parametrize(
    ("kind", "value"), [("text[]", ODD_TEXTS), ("bytea[]", [b"\x00", b""]), ("uuid[]", [])]
)
async def test_the_binary_form_arrives_as_it_was(pool: Database, kind: str, value: Any) -> None:
    rows = await pool.fetch(f"select %(value)b::{kind} as value", {"value": value})

    assert rows == [{"value": value}]


async def test_a_text_that_cannot_be_stored_stops_everything_it_came_with(pool: Database) -> None:
    with pytest.raises(psycopg.DataError):
        await pool.fetch("select %(texts)s::text[]", {"texts": ["cut \0 here"]})

    assert await pool.fetch("select 1 as n") == [{"n": 1}]


async def test_a_statement_that_failed_before_it_was_prepared_works_later(pool: Database) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with pool.transaction() as transaction:
            await transaction.batch([("select 1 / 0", {}), ("select 2 as n", {})])

    assert await pool.fetch("select 2 as n") == [{"n": 2}]


async def test_one_statement_twice_in_a_round_trip_gives_rows_twice(pool: Database) -> None:
    double = "select %(n)s::int + %(n)s::int as n, 100 %% 7 as rest"
    async with pool.transaction() as transaction:
        rows = await transaction.batch([(double, {"n": 1}), (double, {"n": 2})])

    assert rows == [[{"n": 2, "rest": 2}], [{"n": 4, "rest": 2}]]


async def test_more_than_the_sockets_hold_goes_both_ways(pool: Database) -> None:
    text = "x" * 3_000_000
    async with pool.transaction() as transaction:
        rows = await transaction.batch([("select %(text)s::text as text", {"text": text})] * 4)

    assert [row[0]["text"] == text for row in rows] == [True] * 4


async def test_a_cancelled_wait_leaves_a_connection_that_works(pool: Database) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await pool.fetch("select pg_sleep(30)")

    async with asyncio.timeout(30):
        assert await pool.fetch("select 1 as n") == [{"n": 1}]


async def test_a_connection_that_ends_inside_a_round_trip_is_an_unavailable_store(
    pool: Database,
) -> None:
    with pytest.raises(StoreUnavailable):
        await pool.fetch("select pg_terminate_backend(pg_backend_pid()), pg_sleep(5)")
