"""The doorbell: one suite for Valkey and for its twin in memory."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from libs.redis.doorbell import RedisDoorbell
from libs.redis.live_stream import RedisLiveStream
from tests.contract.redis_rig import (
    KINDS,
    PATIENCE_S,
    Harness,
    MortalHarness,
    Valkey,
    eventually,
    mortal_opener,
    on_redis,
    opener,
    running_valkey,
)


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Harness]:
    return opener(request.param, request)


@pytest.fixture
async def harness(opened: AbstractAsyncContextManager[Harness]) -> AsyncIterator[Harness]:
    async with opened as harness:
        yield harness


@pytest.fixture(params=KINDS)
async def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MortalHarness]:
    async with mortal_opener(request.param, tmp_path) as harness:
        yield harness


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with running_valkey(tmp_path) as server:
        yield server


class Ear:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.bells: list[tuple[str, bytes]] = []
        self.losses = 0

    def on_bell(self, channel: str, body: bytes) -> None:
        self.bells.append((channel, body))

    def on_lost(self) -> None:
        self.losses += 1


async def test_a_bell_rung_right_after_entering_is_heard(harness: Harness):
    for _ in range(20):
        ear, channel = Ear(), f"bell:{uuid4()}"
        async with harness.doorbell.listen(channel, ear.on_bell, ear.on_lost) as is_heard:
            assert is_heard
            assert await harness.stream.ring(channel, b"1-1 x {}")
            await eventually(lambda ear=ear: bool(ear.bells))
        assert ear.bells == [(channel, b"1-1 x {}")]
        assert ear.losses == 0


async def test_bells_arrive_in_order_and_only_on_their_channel(harness: Harness):
    ours, theirs = Ear(), Ear()
    async with (
        harness.doorbell.listen("bell:ours", ours.on_bell),
        harness.doorbell.listen("bell:theirs", theirs.on_bell),
    ):
        for number in range(100):
            await harness.stream.ring("bell:ours", b"%d" % number)
        await harness.stream.ring("bell:theirs", b"x")
        await eventually(lambda: bool(theirs.bells))

    assert ours.bells == [("bell:ours", b"%d" % number) for number in range(100)]
    assert theirs.bells == [("bell:theirs", b"x")]


async def test_all_listeners_of_a_channel_hear_it_until_they_leave(harness: Harness):
    stays, leaves = Ear(), Ear()
    async with harness.doorbell.listen("bell:a", stays.on_bell):
        async with harness.doorbell.listen("bell:a", leaves.on_bell):
            await harness.stream.ring("bell:a", b"1")
            await eventually(lambda: bool(stays.bells and leaves.bells))
        await harness.stream.ring("bell:a", b"2")
        await eventually(lambda: len(stays.bells) == 2)

    assert [body for _, body in stays.bells] == [b"1", b"2"]
    assert [body for _, body in leaves.bells] == [b"1"]


async def test_a_channel_left_and_entered_again_at_once_is_heard(harness: Harness):
    ear = Ear()
    for number in range(50):
        async with harness.doorbell.listen("bell:again", ear.on_bell) as is_heard:
            assert is_heard
            await harness.stream.ring("bell:again", b"%d" % number)
            await eventually(lambda number=number: len(ear.bells) == number + 1)

    assert [body for _, body in ear.bells] == [b"%d" % number for number in range(50)]


async def test_after_a_restart_every_listener_is_told_once_and_hears_again(mortal: MortalHarness):
    ears = {f"bell:{number}": Ear() for number in range(20)}
    async with AsyncExitStack() as stack:
        for channel, ear in ears.items():
            await stack.enter_async_context(
                mortal.doorbell.listen(channel, ear.on_bell, ear.on_lost)
            )

        await mortal.kill()
        await mortal.start()

        await eventually(lambda: all(ear.losses for ear in ears.values()))
        for channel in ears:
            await mortal.stream.ring(channel, b"back")
        await eventually(lambda: all(ear.bells for ear in ears.values()))

    assert all(ear.losses == 1 for ear in ears.values())
    assert all(ear.bells == [(channel, b"back")] for channel, ear in ears.items())


async def test_without_a_server_listening_is_degraded_and_told_when_it_is_heard(
    mortal: MortalHarness,
):
    ear = Ear()
    await mortal.kill()
    assert not mortal.doorbell.connected

    async with mortal.doorbell.listen("bell:late", ear.on_bell, ear.on_lost) as is_heard:
        assert not is_heard
        await mortal.start()
        await eventually(lambda: ear.losses == 1)
        await mortal.stream.ring("bell:late", b"now")
        await eventually(lambda: bool(ear.bells))

    assert ear.bells == [("bell:late", b"now")]
    assert mortal.doorbell.connected


@pytest.mark.redis
async def test_nothing_stays_subscribed_once_nobody_listens(valkey: Valkey):
    async with on_redis(valkey.url, valkey) as harness:
        async with (
            harness.doorbell.listen("bell:a", Ear().on_bell),
            harness.doorbell.listen("bell:a", Ear().on_bell),
            harness.doorbell.listen("bell:b", Ear().on_bell),
        ):
            assert await harness.pipe.execute("PUBSUB", "NUMSUB", "bell:a", "bell:b") == [
                b"bell:a",
                1,
                b"bell:b",
                1,
            ]
        async with asyncio.timeout(PATIENCE_S):
            while await harness.pipe.execute("PUBSUB", "CHANNELS"):
                await asyncio.sleep(0.005)


@pytest.mark.redis
async def test_two_thousand_channels_share_one_connection(valkey: Valkey):
    async with on_redis(valkey.url, valkey) as harness, AsyncExitStack() as stack:
        ears = {f"bell:{number}": Ear() for number in range(2_000)}
        for channel, ear in ears.items():
            await stack.enter_async_context(
                harness.doorbell.listen(channel, ear.on_bell, ear.on_lost)
            )
        clients = await harness.pipe.execute("CLIENT", "LIST", "TYPE", "pubsub")
        assert isinstance(clients, bytes)
        assert len(clients.splitlines()) == 1

        await harness.kill()
        await harness.start()
        await eventually(lambda: all(ear.losses == 1 for ear in ears.values()))


@pytest.mark.redis
async def test_a_listener_that_raises_is_reported_and_the_bell_is_heard_again(valkey: Valkey):
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reported.append(context["message"])
    )
    ear = Ear()

    def broken(_channel: str, _body: bytes) -> None:
        raise ZeroDivisionError

    async with (
        RedisLiveStream.open(valkey.url) as stream,
        RedisDoorbell.open(valkey.url) as doorbell,
    ):
        async with doorbell.listen("bell:broken", broken):
            await stream.ring("bell:broken", b"1")
            await eventually(lambda: bool(reported))
        async with doorbell.listen("bell:sound", ear.on_bell, ear.on_lost):
            await eventually(lambda: doorbell.connected)
            await eventually(lambda: ear.losses == 1)
            await stream.ring("bell:sound", b"2")
            await eventually(lambda: bool(ear.bells))

    assert reported == ["redis link failed and is opened again"]
