"""What the suites of the gateway's reads share: one world in memory, and one in Postgres."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from libs.postgres import Database
from services.frontend_gateway.store import PostgresStore
from tests.contract.frontend_gateway.worlds import MemoryWorld, PostgresWorld, World
from tests.rig.parts import TestDatabase


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def backend(request: pytest.FixtureRequest) -> TestDatabase | None:
    """The real database of this test; None for the twin."""
    if request.param == "memory":
        return None
    database: TestDatabase = request.getfixturevalue("database")
    return database


Opened = tuple[PostgresStore, psycopg.AsyncConnection[Any]]


@pytest.fixture
async def opened(backend: TestDatabase | None) -> AsyncIterator[Opened | None]:
    """The store on the real database, and a superuser's connection beside it; None for the twin."""
    if backend is None:
        yield None
        return
    database = await Database.open(
        backend.url_of("frontend_gateway"), schema="frontend_gateway", size=2
    )
    async with await psycopg.AsyncConnection.connect(backend.admin_url, autocommit=True) as admin:
        yield PostgresStore(database), admin
    await database.close()


@pytest.fixture
def world(opened: Opened | None) -> World:
    """Conversations that a test plants, and the store that reads them."""
    return MemoryWorld() if opened is None else PostgresWorld(*opened)
