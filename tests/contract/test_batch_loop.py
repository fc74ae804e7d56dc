"""The batch loop on a real Kafka and a real Postgres: poison, redelivery, rebalance, offsets."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import orjson
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.record._crc32c import crc as crc32c

from libs import inbox
from libs.clock import SystemClock
from libs.kafka.frame import Consumer, ConsumerSettings, make_broker
from libs.kafka.loop import BatchLoop
from libs.kafka.parking import Parking
from libs.kafka.publisher import KafkaPublisher
from libs.kafka.records import Delivery
from libs.outbox import OutboxMessage, Relay, append_statement
from libs.postgres import Database, Transaction
from schemas.envelope import Envelope, Event, encode
from schemas.registry import decode
from schemas.turns import TurnAcceptedV1
from tests.contract.test_publisher import make_topic, read_all
from tests.rig.mechanics import make_mechanics, make_metrics, mechanics_database
from tests.rig.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

WITHIN_S = 40


def event(key: uuid.UUID, number: int) -> Event[TurnAcceptedV1]:
    return Event(
        id=uuid.uuid4(),
        source="test",
        tenant_id=uuid.UUID(int=1),
        conversation_id=key,
        correlation_id=uuid.uuid4(),
        occurred_at=datetime.now(UTC),
        data=TurnAcceptedV1(seq=number + 1, policy="serialize", position=0),
    )


class Effects:
    """A handler whose effect is one row per event, in the order of handling."""

    def __init__(self, database: Database, relay: Relay, *, consumer: str, topic: str) -> None:
        self._database = database
        self._relay = relay
        self.consumer = consumer
        self.topics = (topic,)
        self.fail_on: set[int] = set()
        self.cannot_end_turns = False
        self.stall: asyncio.Event | None = None
        self.started = asyncio.Event()
        self.batches = 0

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        return [
            "refused" if delivery.header("door") == b"closed" else None for delivery in deliveries
        ]

    async def handle(self, batch: Sequence[Delivery]) -> None:
        self.batches += 1
        self.started.set()
        if self.stall is not None:
            await self.stall.wait()
        ids = [delivery.event.id for delivery in batch]
        async with self._database.transaction() as transaction:
            keys = sorted({str(delivery.event.conversation_id) for delivery in batch})
            await transaction.fetch(
                "select pg_advisory_xact_lock(hashtext(k)) from unnest(%(keys)s::text[]) k",
                {"keys": keys},
            )
            seen = {
                row["event_id"]
                for row in await transaction.fetch(*inbox.seen_statement(self.consumer, ids))
            }
            fresh = list({d.event.id: d for d in batch if d.event.id not in seen}.values())
            if any(delivery.event.data.seq - 1 in self.fail_on for delivery in fresh):
                raise ZeroDivisionError
            await transaction.commit_with(
                [
                    (
                        "insert into ingestion.effects (event_id, key, said, place) "
                        "select i, k, s, (select count(*) from ingestion.effects) + o "
                        "from unnest(%(ids)s::uuid[], %(keys)s::text[], %(said)s::text[]) "
                        "with ordinality as e (i, k, s, o)",
                        {
                            "ids": [d.event.id for d in fresh],
                            "keys": [str(d.event.conversation_id) for d in fresh],
                            "said": [str(d.event.data.seq - 1) for d in fresh],
                        },
                    ),
                    inbox.record_statement(self.consumer, [d.event.id for d in fresh]),
                ]
            )

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        del delivery, reason
        if self.cannot_end_turns:
            await transaction.fetch("select 1 / 0")
        return ()


@asynccontextmanager
async def member(
    url: str, effects: Effects, database: Database, relay: Relay
) -> AsyncIterator[Consumer]:
    """One process's worth of consumer: it joins the group and leaves it."""
    metrics = make_metrics()
    broker = make_broker(url, client_id="test")
    loop = BatchLoop(
        effects,
        decode=decode,
        parking=Parking(database, relay, consumer=effects.consumer, metrics=metrics),
        clock=SystemClock(),
        metrics=metrics,
    )
    consumer = Consumer(broker, loop, settings=ConsumerSettings(), event=Envelope)
    await broker.start()
    try:
        yield consumer
        await consumer.stop_reading()
    finally:
        await broker.stop()


class Rig:
    """Topic, database, relay and producer of one test."""

    def __init__(self, url: str, topic: str, database: Database, relay: Relay) -> None:
        self.url = url
        self.topic = topic
        self.group = topic + ".group"
        self.database = database
        self.relay = relay

    def effects(self) -> Effects:
        return Effects(self.database, self.relay, consumer=self.group, topic=self.topic)

    async def send(
        self, values: Sequence[bytes | None], *, headers: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.url)
        await producer.start()
        try:
            for value in values:
                key = b"none"  # the client library refuses to send neither key nor value
                if value is not None and value.startswith(b"{"):
                    key = (
                        orjson.loads(value)["conversation_id"].encode()
                        if b"conversation_id" in value
                        else b"none"
                    )
                await producer.send_and_wait(self.topic, value, key=key, headers=list(headers))
        finally:
            await producer.stop()

    async def said(self) -> list[str]:
        rows = await self.database.fetch("select said from ingestion.effects order by place")
        return [row["said"] for row in rows]

    async def dead(self) -> list[tuple[str, bytes | None]]:
        rows = await self.database.fetch(
            'select reason, value from ingestion.dead_letters order by "offset"'
        )
        return [(row["reason"], row["value"]) for row in rows]

    async def committed(self) -> int | None:
        client = AIOKafkaConsumer(bootstrap_servers=self.url, group_id=self.group)
        await client.start()
        try:
            partition = TopicPartition(self.topic, 0)
            client.assign([partition])
            offset: int | None = await client.committed(partition)
            return offset
        finally:
            await client.stop()

    async def until_said(self, count: int) -> None:
        async def has() -> bool:
            return len(await self.said()) >= count

        await until(has)


@pytest.fixture
async def rig(empty_database_url: str, kafka_url: str, topic_prefix: str) -> AsyncIterator[Rig]:
    topic = topic_prefix + "events"
    await make_mechanics(empty_database_url)
    await make_topic(kafka_url, topic)
    await make_topic(kafka_url, topic + ".dlq")
    publisher = KafkaPublisher(kafka_url, client_id="test-relay")
    async with mechanics_database(empty_database_url) as database:
        relay = Relay(database, publisher, clock=SystemClock(), metrics=make_metrics())
        running = asyncio.create_task(relay.run())
        try:
            yield Rig(kafka_url, topic, database, relay)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await publisher.stop()


async def test_unreadable_records_become_dead_letters_and_the_partition_goes_on(rig: Rig) -> None:
    key = uuid.uuid4()
    good = [encode(event(key, n)) for n in range(3)]
    unknown = orjson.dumps({**orjson.loads(good[0]), "type": "never.heard_of", "id": str(key)})
    newer = orjson.dumps({**orjson.loads(good[0]), "version": 99, "id": str(key)})
    deep = b'{"id":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    poison: list[bytes | None] = [b"\xff\x00", unknown, newer, None, deep, b"", b"[]"]
    await rig.send([good[0], poison[0], good[1], *poison[1:], good[2]])

    async with member(rig.url, rig.effects(), rig.database, rig.relay):
        await rig.until_said(3)

        async def all_mirrored() -> bool:
            return len(await read_all(rig.url, rig.topic + ".dlq")) == len(poison)

        await until(all_mirrored)

    dead = await rig.dead()
    mirror = await read_all(rig.url, rig.topic + ".dlq")
    assert await rig.said() == ["0", "1", "2"]
    assert sorted(reason for reason, _ in dead) == sorted(
        ["malformed", "unknown_type", "unsupported_version"] + ["malformed"] * 4
    )
    assert {value for _, value in dead} == set(poison)
    assert {h["original-topic"] for _, _, h in mirror} == {rig.topic.encode()}
    assert {h["original-offset"] for _, _, h in mirror} == {
        b"1",
        b"3",
        b"4",
        b"5",
        b"6",
        b"7",
        b"8",
    }
    assert await rig.committed() == 10


async def test_a_record_whose_header_name_is_not_utf_8_is_stepped_over(rig: Rig) -> None:
    """The client library raises on it in every poll and throws the other records away."""
    key = uuid.uuid4()
    await rig.send([encode(event(key, 0))])
    await rig.send([encode(event(key, 1))], headers=[("naïve", b"x")])
    await send_with_raw_header(rig, encode(event(key, 2)))
    await rig.send([encode(event(key, 3))])

    async with member(rig.url, rig.effects(), rig.database, rig.relay):
        await rig.until_said(3)

    assert await rig.said() == ["0", "1", "3"]
    assert await rig.dead() == [("unreadable", None)]
    assert await rig.committed() == 4


async def send_with_raw_header(rig: Rig, value: bytes) -> None:
    """A header name that no UTF-8 decoder takes, as producers in other languages can send.

    The batch is built with a name of the same length, which is then replaced in its bytes; the
    checksum (CRC-32C over everything from byte 21, at byte 17) is made anew.
    """
    producer = AIOKafkaProducer(bootstrap_servers=rig.url)
    await producer.start()
    try:
        batch = producer.create_batch()
        batch.append(key=None, value=value, timestamp=None, headers=[("RAWNAME", b"y")])
        batch.close()
        raw = bytearray(batch._build().replace(b"RAWNAME", b"\xff" * 7))
        raw[17:21] = crc32c(bytes(raw[21:])).to_bytes(4, "big")
        batch._buffer = bytes(raw)
        await (await producer.send_batch(batch, rig.topic, partition=0))
    finally:
        await producer.stop()


async def test_a_screened_record_is_parked_and_never_handled(rig: Rig) -> None:
    key = uuid.uuid4()
    await rig.send([encode(event(key, 0))], headers=[("door", b"closed")])
    await rig.send([encode(event(key, 1))])

    async with member(rig.url, rig.effects(), rig.database, rig.relay):
        await rig.until_said(1)

    assert await rig.said() == ["1"]
    assert [reason for reason, _ in await rig.dead()] == ["refused"]


async def test_a_record_that_always_fails_is_parked_and_its_neighbours_go_on(rig: Rig) -> None:
    key = uuid.uuid4()
    effects = rig.effects()
    effects.fail_on = {1}
    await rig.send([encode(event(key, n)) for n in range(3)])

    async with member(rig.url, effects, rig.database, rig.relay):
        await rig.until_said(2)

        async def is_parked() -> bool:
            return bool(await rig.dead())

        await until(is_parked)

    assert await rig.said() == ["0", "2"]
    assert [reason for reason, _ in await rig.dead()] == ["bug"]
    assert await rig.committed() == 3


async def test_a_record_whose_turn_cannot_even_be_ended_is_parked_all_the_same(rig: Rig) -> None:
    key = uuid.uuid4()
    effects = rig.effects()
    effects.fail_on = {1}
    effects.cannot_end_turns = True
    await rig.send([encode(event(key, n)) for n in range(3)])

    async with member(rig.url, effects, rig.database, rig.relay):
        await rig.until_said(2)

    assert await rig.said() == ["0", "2"]
    assert [reason for reason, _ in await rig.dead()] == ["bug"]


async def test_the_same_records_three_times_have_one_effect_each(rig: Rig) -> None:
    key = uuid.uuid4()
    values = [encode(event(key, n)) for n in range(20)]
    await rig.send([*values, *values, *reversed(values)])

    async with member(rig.url, rig.effects(), rig.database, rig.relay) as consumer:
        await rig.until_said(20)

        async def is_read() -> bool:
            return await consumer.lag_records() == {rig.topic: 0}

        await until(is_read)

    assert await rig.said() == [str(n) for n in range(20)]


async def test_the_offset_stays_until_the_effect_is_committed(rig: Rig) -> None:
    key = uuid.uuid4()
    effects = rig.effects()
    effects.stall = asyncio.Event()
    await rig.send([encode(event(key, 0))])

    async with member(rig.url, effects, rig.database, rig.relay):
        async with asyncio.timeout(WITHIN_S):
            await effects.started.wait()
        during = await rig.committed()
        effects.stall.set()
        await rig.until_said(1)

    assert during is None
    assert await rig.committed() == 1


async def test_a_member_that_dies_in_the_middle_leaves_its_records_to_the_next(rig: Rig) -> None:
    key = uuid.uuid4()
    dying = rig.effects()
    dying.stall = asyncio.Event()
    await rig.send([encode(event(key, n)) for n in range(10)])

    with pytest.raises(ZeroDivisionError):
        async with member(rig.url, dying, rig.database, rig.relay):
            async with asyncio.timeout(WITHIN_S):
                await dying.started.wait()
            dying.fail_on = set(range(10))
            raise ZeroDivisionError
    async with member(rig.url, rig.effects(), rig.database, rig.relay):
        await rig.until_said(10)

    assert await rig.said() == [str(n) for n in range(10)]
    assert await rig.committed() == 10


async def test_a_second_member_joins_without_loss_repeat_or_disorder(rig: Rig) -> None:
    keys = [uuid.uuid4() for _ in range(5)]
    values = [encode(event(keys[n % 5], n)) for n in range(300)]
    first, second = rig.effects(), rig.effects()

    async with member(rig.url, first, rig.database, rig.relay):
        await rig.send(values[:150])
        async with member(rig.url, second, rig.database, rig.relay):
            await rig.send(values[150:])
            await rig.until_said(300)

    rows = await rig.database.fetch("select key, said from ingestion.effects order by place")
    for number, key in enumerate(keys):
        said = [row["said"] for row in rows if row["key"] == str(key)]
        assert said == [str(n) for n in range(300) if n % 5 == number]
    assert len(rows) == 300


async def test_an_outbox_row_written_beside_the_effect_reaches_the_topic(rig: Rig) -> None:
    one = OutboxMessage(uuid.uuid4(), rig.topic, str(uuid.uuid4()), "t", {"ce_type": "t"}, b"{}")
    rows = await rig.database.fetch(*append_statement([one]))
    rig.relay.hand_over([one], [row["id"] for row in rows])

    async def is_there() -> bool:
        return bool(await read_all(rig.url, rig.topic))

    await until(is_there)
    assert await read_all(rig.url, rig.topic) == [(one.key.encode(), b"{}", {"ce_type": b"t"})]
