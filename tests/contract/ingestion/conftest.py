"""One database per test: two ingestion processes on it, or connections that write and read rows."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from tests.contract.ingestion.lines import reader, writer
from tests.contract.ingestion.rig import Rig
from tests.rig.parts import TestDatabase

Connection = psycopg.Connection[dict[str, Any]]


@pytest.fixture
async def rig(database: TestDatabase) -> AsyncIterator[Rig]:
    rig = await Rig.open(database)
    try:
        yield rig
    finally:
        await rig.close()


@pytest.fixture
def rows(database: TestDatabase) -> Iterator[Connection]:
    with writer(database) as connection:
        yield connection


@pytest.fixture
def context(database: TestDatabase) -> Iterator[Connection]:
    with reader(database, "context_assembly") as connection:
        yield connection


@pytest.fixture
def gateway(database: TestDatabase) -> Iterator[Connection]:
    with reader(database, "frontend_gateway") as connection:
        yield connection
