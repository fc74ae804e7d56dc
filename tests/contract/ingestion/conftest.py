"""One database per test, two ingestion processes on it."""

from collections.abc import AsyncIterator

import pytest

from tests.contract.ingestion.rig import Rig
from tests.rig.parts import TestDatabase


@pytest.fixture
async def rig(database: TestDatabase) -> AsyncIterator[Rig]:
    rig = await Rig.open(database)
    try:
        yield rig
    finally:
        await rig.close()
