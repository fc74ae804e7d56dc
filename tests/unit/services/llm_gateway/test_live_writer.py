"""Entries on their way to the stream: together, in order, and again after an outage."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from libs.clock import SystemClock
from libs.redis.memory import MemoryLiveStream, MemoryRedis
from schemas.streams import EntryId, content_delta, delta_text, fence, generating
from services.llm_gateway.live import MAX_PENDING, Channel, LiveWriter
from tests.rig.llm_worker import until


@asynccontextmanager
async def writing(redis: MemoryRedis) -> AsyncIterator[LiveWriter]:
    writer = LiveWriter(MemoryLiveStream(redis), clock=SystemClock())
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def ignore() -> None:
    """A writer that does not care about fences."""


async def texts(redis: MemoryRedis, channel: Channel) -> list[str]:
    entries = await MemoryLiveStream(redis).read(channel.turn_id, EntryId(0, 0), 10_000)
    return [delta_text(entry) for entry in entries]


async def test_entries_of_many_turns_arrive_in_order() -> None:
    redis = MemoryRedis()
    async with writing(redis) as writer:
        channels = [writer.open(uuid4(), ignore) for _ in range(5)]
        for n in range(2, 150):
            for channel in channels:
                writer.put(channel, content_delta(EntryId(1, n), str(n)))
        for channel in channels:
            assert await channel.settled(5)

    for channel in channels:
        assert await texts(redis, channel) == [str(n) for n in range(2, 150)]


async def test_entries_wait_out_an_outage() -> None:
    redis = MemoryRedis()
    async with writing(redis) as writer:
        channel = writer.open(uuid4(), ignore)
        redis.go_away()
        for n in range(2, 6):
            writer.put(channel, content_delta(EntryId(1, n), str(n)))
        assert not await channel.settled(0.05)
        redis.come_back()
        assert await channel.settled(5)

    assert await texts(redis, channel) == ["2", "3", "4", "5"]


async def test_a_long_outage_drops_the_oldest_entries_and_memory_stays_bounded() -> None:
    redis = MemoryRedis()
    async with writing(redis) as writer:
        channel = writer.open(uuid4(), ignore)
        redis.go_away()
        for n in range(2, MAX_PENDING + 12):
            writer.put(channel, content_delta(EntryId(1, n), str(n)))
        assert len(channel.pending) == MAX_PENDING
        redis.come_back()
        assert await channel.settled(5)

    assert await texts(redis, channel) == [str(n) for n in range(12, MAX_PENDING + 12)]


async def test_a_higher_attempt_silences_the_writer() -> None:
    redis = MemoryRedis()
    fenced: list[bool] = []
    async with writing(redis) as writer:
        channel = writer.open(uuid4(), lambda: fenced.append(True))
        writer.put(channel, generating(1))
        assert await channel.settled(5)
        await MemoryLiveStream(redis).append(channel.turn_id, [fence(2)])

        writer.put(channel, content_delta(EntryId(1, 2), "late"))
        await until(lambda: bool(fenced), "the fence is noticed")
        writer.put(channel, content_delta(EntryId(1, 3), "later"))

    assert (fenced, channel.is_fenced, list(channel.pending)) == ([True], True, [])
    assert await texts(redis, channel) == ["", ""]


async def test_a_repeated_append_is_success_and_no_fence() -> None:
    redis = MemoryRedis()
    async with writing(redis) as writer:
        channel = writer.open(uuid4(), ignore)
        entry = content_delta(EntryId(1, 2), "a")
        await MemoryLiveStream(redis).append(channel.turn_id, [entry])  # its answer was lost
        writer.put(channel, entry)
        assert await channel.settled(5)

    assert not channel.is_fenced
    assert await texts(redis, channel) == ["a"]


async def test_a_closed_channel_sends_nothing_more() -> None:
    redis = MemoryRedis()
    redis.go_away()
    async with writing(redis) as writer:
        channel, other = writer.open(uuid4(), ignore), writer.open(uuid4(), ignore)
        writer.put(channel, content_delta(EntryId(1, 2), "a"))
        writer.put(other, content_delta(EntryId(1, 2), "b"))
        writer.close(channel)
        redis.come_back()
        assert await other.settled(5)

    assert await texts(redis, channel) == []
    assert await texts(redis, other) == ["b"]
