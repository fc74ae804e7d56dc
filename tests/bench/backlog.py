"""How fast a relay drains what an outage of the broker has left in an outbox."""

import asyncio
import zlib
from dataclasses import dataclass
from time import perf_counter
from uuid import uuid4

import psycopg
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from libs.outbox.messages import BUCKETS
from tests.bench.bench_house import BenchHouse

TOPIC = "bench.backlog"
PARTITIONS = 4
KEYS = 1_000  # conversations that the backlog belongs to
PAYLOAD = b'{"type":"turn.started","data":"' + b"x" * 570 + b'"}'  # as long as an event is
LOOK_EVERY_S = 0.25
BOUND_S = 90.0

FILL = """
insert into ingestion.outbox (bucket, topic, key, event_id, type, headers, payload, created_at)
select k.bucket, %(topic)s, k.key, gen_random_uuid(), 'turn.started', '{"ce_type": "turn.started"}',
       %(payload)s, turnwire.clock() - interval '1 minute'
  from generate_series(1, %(each)s) as n (n)
 cross join unnest(%(buckets)s::smallint[], %(keys)s::text[]) as k (bucket, key)
 order by n.n
"""


@dataclass(frozen=True, slots=True)
class BacklogResult:
    """What was drained.

    Attributes:
        drained: Rows that were gone at the end; fewer than ``rows`` only after ``BOUND_S``.
        records: What the topic held then: none may be missing, a few may be there twice.
    """

    rows: int
    drained: int
    seconds: float
    records: int

    @property
    def per_s(self) -> float:
        """Rows a second."""
        return self.drained / self.seconds


async def measure_backlog(house: BenchHouse, rows: int) -> BacklogResult:
    """Commit rows that look left behind, and let the running ingestion bring them to the broker."""
    each = -(-rows // KEYS)
    rows = each * KEYS
    await _create_topic(house)
    keys = [str(uuid4()) for _ in range(KEYS)]
    buckets = [zlib.crc32(key.encode()) % BUCKETS for key in keys]
    values = {"topic": TOPIC, "payload": PAYLOAD, "each": each, "buckets": buckets, "keys": keys}
    async with await psycopg.AsyncConnection.connect(
        house.stack.database_url, autocommit=True
    ) as connection:
        await connection.execute(FILL, values)
        began = perf_counter()
        left = rows
        while left and perf_counter() - began < BOUND_S:
            await asyncio.sleep(LOOK_EVERY_S)
            left = await _left(connection)
        took = perf_counter() - began
        await connection.execute("delete from ingestion.outbox where topic = %s", [TOPIC])
    return BacklogResult(rows, rows - left, took, await _records(house))


async def _left(connection: psycopg.AsyncConnection[tuple[int]]) -> int:
    cursor = await connection.execute(
        "select count(*) from ingestion.outbox where topic = %s", [TOPIC]
    )
    row = await cursor.fetchone()
    assert row is not None
    return row[0]


async def _create_topic(house: BenchHouse) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=house.stack.kafka_bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    finally:
        await admin.close()


async def _records(house: BenchHouse) -> int:
    """What the topic holds; its records are then taken away with it."""
    servers = house.stack.kafka_bootstrap_servers
    consumer = AIOKafkaConsumer(bootstrap_servers=servers)
    await consumer.start()
    try:
        partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        ends = await asyncio.wait_for(consumer.end_offsets(partitions), 20)
    finally:
        await consumer.stop()
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.delete_topics([TOPIC])
    finally:
        await admin.close()
    return sum(ends.values())
