"""Faults of an edge: which edges they choose, that they are held, and that healing ends them."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest

from tests.chaos import faults_network
from tests.chaos.faults_network import Blackhole, DropCommitReply, DropReply, resource
from tests.chaos.house import ChaosHouse
from tests.chaos.proxy import Proxy

EDGES = (
    "ingestion-postgres",
    "llm_gateway-postgres",
    "frontend_gateway-postgres",
    "ingestion-kafka",
    "ingestion-redis",
    "llm_gateway-provider",
)
UNUSED = "context_assembly-redis"


@dataclass
class Premises:
    """What these faults touch of a house."""

    edges: dict[str, Proxy] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)

    async def hold(self, resource: str) -> None:
        assert resource not in self.held, "another fault has it"
        self.held.add(resource)

    def let_go(self, resource: str) -> None:
        self.held.remove(resource)

    def is_held(self, resource: str) -> bool:
        return resource in self.held


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1_024):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def premises() -> AsyncIterator[tuple[Premises, ChaosHouse]]:
    """Edges to an echo; all but one have been used."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    found = Premises()
    try:
        for name in (*EDGES, UNUSED):
            proxy = found.edges[name] = Proxy("127.0.0.1", server.sockets[0].getsockname()[1])
            await proxy.start()
            if name != UNUSED:
                assert await works(proxy)
        yield found, cast("ChaosHouse", found)
    finally:
        for proxy in found.edges.values():
            await proxy.stop()
        server.close()


async def works(proxy: Proxy) -> bool:
    """Whether a new connection gets its bytes back soon."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"hello")
            back = await reader.readexactly(5)
    except (OSError, asyncio.IncompleteReadError):
        return False
    writer.close()
    return back == b"hello"


@pytest.mark.parametrize("kind", sorted(faults_network.FAULTS))
async def test_a_fault_holds_one_edge_that_is_used_and_leaves_it_working(kind: str) -> None:
    async with premises() as (found, house):
        for seed in range(4):
            dice = random.Random(seed)
            fault = faults_network.FAULTS[kind](dice)
            target = await fault.inject(house, dice)
            assert found.held == {target}
            assert fault.kind == kind
            await fault.heal(house)
            assert found.held == set()
            edge = target.removeprefix("edge ")
            assert edge in EDGES
            assert await works(found.edges[edge])


async def test_faults_at_once_take_different_edges() -> None:
    async with premises() as (found, house):
        dice = random.Random(0)
        faults = [faults_network.FAULTS["delay"](dice) for _ in EDGES]
        targets = [await fault.inject(house, dice) for fault in faults]
        assert set(targets) == {resource(name) for name in EDGES}
        for fault in faults:
            await fault.heal(house)
    assert found.held == set()


async def test_only_edges_where_a_reply_matters_lose_one() -> None:
    commits: set[str] = set()
    others: set[str] = set()
    async with premises() as (_, house):
        for seed in range(20):
            dice = random.Random(seed)
            for fault, seen in ((DropCommitReply(), commits), (DropReply(), others)):
                seen.add(await fault.inject(house, dice))
                await fault.heal(house)
    assert commits == {"edge ingestion-postgres", "edge llm_gateway-postgres"}
    assert others == {"edge ingestion-kafka", "edge ingestion-redis"}


async def test_figures_tell_what_the_proxy_did_meanwhile() -> None:
    async with premises() as (found, house):
        fault = DropReply()
        target = await fault.inject(house, random.Random(1))
        proxy = found.edges[target.removeprefix("edge ")]
        assert not await works(proxy)
        wanted = {"connections": 1, "cut_connections": 1, "dropped_replies": 1}
        assert await fault.heal(house) == wanted


@pytest.mark.parametrize("loses", [False, True])
async def test_what_was_sent_into_a_hole_comes_late_or_never(loses: bool) -> None:
    async with premises() as (found, house):
        fault = Blackhole()
        target = await fault.inject(house, random.Random(1))
        fault.loses = loses
        proxy = found.edges[target.removeprefix("edge ")]
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"late")
        await writer.drain()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(1)
        await fault.heal(house)
        async with asyncio.timeout(5):
            if loses:
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
            else:
                assert await reader.readexactly(4) == b"late"
        writer.close()
