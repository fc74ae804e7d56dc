"""One house for the whole lane: starting it costs more than a row does."""

from collections.abc import AsyncIterator
from uuid import uuid4

import aiohttp
import pytest
import pytest_asyncio

from tests.rig.front_end import FrontEnd, Visitor, make_door_key
from tests.rig.house import House, Size, running_house
from tests.rig.web import Place, Web


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """Two gateways, one worker of each kind, and the scripted provider."""
    folder = tmp_path_factory.mktemp("house")
    async with running_house(folder, size=Size(gateways=2)) as house:
        yield house


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def visitor(house: House) -> AsyncIterator[Visitor]:
    """A front end that is not ours, in a conversation of its own."""
    key = await make_door_key(house, f"visitor-{uuid4().hex[:6]}")
    async with FrontEnd(house, key) as front:
        principal = uuid4()
        event = front.create(principal, "first")
        await front.ask(event)
        assert (await front.outcome(event))["outcome"] == "accepted"
        yield Visitor(front, principal, event.conversation_id)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(house: House) -> AsyncIterator[Place]:
    """A conversation with one answered turn, and a way to it byte for byte."""
    client = await house.client("bad-input")
    conversation = await client.conversation()
    post = await client.say(conversation, "A good message first")
    assert post.turn_id is not None
    await house.come_to_rest()
    key = await house.make_key("bad-input")
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Place(Web(house, session, key), client, conversation, post.turn_id)
