"""One suite for the publisher's twin and for the real one on Apache Kafka."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from libs.errors import QueueUnavailable, RecordTooLarge
from libs.kafka.publisher import (
    MAX_REQUEST_BYTES,
    KafkaPublisher,
    MemoryPublisher,
    Publisher,
    Record,
)
from libs.kafka.topics import TopicSpec, apply_topics

Stored = Callable[[], Awaitable[list[tuple[bytes, bytes]]]]


@asynccontextmanager
async def memory(_url: str, _topic: str) -> AsyncIterator[tuple[Publisher, Stored]]:
    publisher = MemoryPublisher()

    async def stored() -> list[tuple[bytes, bytes]]:
        return [(record.key, record.value) for record in publisher.records]

    yield publisher, stored


@asynccontextmanager
async def kafka(url: str, topic: str) -> AsyncIterator[tuple[Publisher, Stored]]:
    await make_topic(url, topic)
    publisher = KafkaPublisher(url, client_id="test", timeout_s=20)
    await publisher.start()

    async def stored() -> list[tuple[bytes, bytes]]:
        return [(key, value) for key, value, _ in await read_all(url, topic)]

    try:
        yield publisher, stored
    finally:
        await publisher.stop()


async def make_topic(url: str, topic: str, *, partitions: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=url)
    await admin.start()
    try:
        await apply_topics(admin, [TopicSpec(topic, partitions, 1, {})])
    finally:
        await admin.close()


async def read_all(url: str, topic: str) -> list[tuple[bytes, bytes, dict[str, bytes]]]:
    """Every record of partition 0, in order: key, value, headers."""
    consumer = AIOKafkaConsumer(bootstrap_servers=url, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = (await consumer.end_offsets([partition]))[partition]
        records = []
        while await consumer.position(partition) < end:
            found = await consumer.getmany(partition, timeout_ms=500)
            records += [
                (r.key, r.value, dict(r.headers)) for batch in found.values() for r in batch
            ]
        return records
    finally:
        await consumer.stop()


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> str | None:
    """The broker's address, or None for the twin; started outside the test's event loop."""
    return None if request.param == "memory" else request.getfixturevalue("kafka_url")


@pytest.fixture
async def rig(
    broker: str | None, topic_prefix: str
) -> AsyncIterator[tuple[Publisher, Stored, str]]:
    topic = topic_prefix + "records"
    async with (memory if broker is None else kafka)(broker or "", topic) as (publisher, stored):
        yield publisher, stored, topic


async def test_records_are_stored_in_the_order_given(rig: tuple[Publisher, Stored, str]) -> None:
    publisher, stored, topic = rig
    records = [Record(topic, b"k", str(n).encode(), (("h", b"v"),)) for n in range(200)]

    results = await publisher.publish(records)

    assert results == [None] * 200
    assert await stored() == [(b"k", str(n).encode()) for n in range(200)]


async def test_a_record_that_is_too_large_is_named_and_its_neighbours_go_through(
    rig: tuple[Publisher, Stored, str],
) -> None:
    publisher, stored, topic = rig
    huge = Record(topic, b"k", b"x" * MAX_REQUEST_BYTES)
    exact = Record(topic, b"k", b"y" * (MAX_REQUEST_BYTES - 1))

    results = await publisher.publish(
        [Record(topic, b"k", b"before"), huge, exact, Record(topic, b"k", b"after")]
    )
    again = await publisher.publish([Record(topic, b"k", b"later")])

    assert [type(result) for result in results] == [type(None), RecordTooLarge] + [type(None)] * 2
    assert again == [None]
    assert [value for _, value in await stored()] == [b"before", exact.value, b"after", b"later"]


@pytest.mark.kafka
async def test_an_absent_broker_is_an_answer_within_the_time_limit() -> None:
    publisher = KafkaPublisher("127.0.0.1:9", client_id="test", timeout_s=1.0)

    results = await publisher.publish([Record("t", b"k", b"v")])

    assert [type(result) for result in results] == [QueueUnavailable]


@pytest.mark.kafka
async def test_a_record_that_the_broker_refuses_does_not_break_later_ones(
    kafka_url: str, topic_prefix: str
) -> None:
    """A refused record burns its partition's sequence; the producer must be made anew."""
    topic = topic_prefix + "narrow"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_url)
    await admin.start()
    await apply_topics(admin, [TopicSpec(topic, 1, 1, {"max.message.bytes": "2000"})])
    await admin.close()
    publisher = KafkaPublisher(kafka_url, client_id="test", timeout_s=20)
    await publisher.start()
    try:
        refused = await publisher.publish([Record(topic, b"k", b"x" * 5_000)])
        later = await publisher.publish([Record(topic, b"k", b"small")])
    finally:
        await publisher.stop()

    assert [type(result) for result in refused] == [QueueUnavailable]
    assert later == [None]
    assert publisher.rebuilds == 1
