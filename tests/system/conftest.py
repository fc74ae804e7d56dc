"""One house for the whole lane: starting it costs more than a row does."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.rig.house import House, Size, running_house


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """Two gateways, one worker of each kind, and the scripted provider."""
    folder = tmp_path_factory.mktemp("house")
    async with running_house(folder, size=Size(gateways=2)) as house:
        yield house
