"""One browser and one house for the whole lane: starting them costs more than a test does."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from tests.browser.opening import ARGUMENTS, CHROMIUM, Visitor, visiting
from tests.rig.gateway import GatewayRig, gateway_rig
from tests.rig.house import House, running_house


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Debian's chromium, without a screen."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """The real parts and services, with the scripted provider."""
    async with running_house(tmp_path_factory.mktemp("house")) as house:
        yield house


@pytest_asyncio.fixture(loop_scope="session")
async def rig() -> AsyncIterator[GatewayRig]:
    """A gateway on twins, for what no real part could be brought to answer."""
    async with gateway_rig() as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(house: House, browser: Browser) -> AsyncIterator[Visitor]:
    """Somebody who is signed in to the house, with a key of their own."""
    async with visiting(house, browser) as visitor:
        yield visitor
