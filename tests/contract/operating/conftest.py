"""A migrated database with one conversation that nobody's operator may read a word of."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from libs.postgres import Database
from tests.contract.ingestion.lines import writer
from tests.rig.parts import TestDatabase

Connection = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def rows(database: TestDatabase) -> Iterator[Connection]:
    with writer(database) as connection:
        yield connection


@pytest.fixture(params=["frontend_gateway", "ops"])
async def opened(database: TestDatabase, request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """Connections with the rights of the page, then of the command line."""
    found = await Database.open(database.url_of(request.param), schema="turnwire", size=2)
    yield found
    await found.close()
