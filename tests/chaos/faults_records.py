"""Faults of what topics hold: records again, in another order, from the start, and spoilt."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import orjson
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from libs.door import GATEWAY_DOOR_KEY_ID
from libs.kafka.parking import _dead_id
from libs.kafka.records import DeadRecord
from schemas.errors import UnreadableRecord
from schemas.registry import (
    CONTEXT_EVENTS,
    EVENTS_OF_TOPIC,
    GENERATION_EVENTS,
    TURN_REQUESTS,
    decode,
)
from schemas.topic_files import TopicFile, load_topics
from tests.chaos.fault import Fault
from tests.rig.evidence import INNER_TOPICS
from tests.rig.front_end import DoorKey, FrontEnd
from tests.rig.house import Place
from tests.rig.waiting import until

if TYPE_CHECKING:
    from tests.chaos.house import ChaosHouse

FILES: Mapping[str, TopicFile] = {file.topic: file for file in load_topics()}
TOPICS = tuple(sorted(EVENTS_OF_TOPIC))
"""The door and the topics between the services."""

RECENT = 60
"""Records of each partition that are copied at most: the youngest ones."""

MAX_COPIES = 3
ALL = 1_000_000
"""More records than any run leaves in one partition."""

MAX_REPLAYED = 20_000
"""Records of one replay at most; a full run's largest topic is about that long."""

TOPICS_WITHIN_S = 20.0
READ_TIMEOUT_MS = 1_000
FETCH_WAIT_MS = 20
"""A fetch for a partition that was read to its end holds up the others for so long."""

READ_AT_ONCE = 2_000
IN_FLIGHT = 500
"""Records that are sent before their acknowledgements are awaited."""

POISON_SHARE = 0.05
"""Of all records that the topics hold when a dose is given; given after a fifth of a run, that is
more than one in a hundred of what they hold at its end."""

MOST_POISON = 300
LEAST_POISON = 12
DEEP = 10_000
STRANGER = "chaos"
"""Source of spoilt events that are events all the same, by which they are known again."""

PARKED_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Raw:
    """One record as it stands in its topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether a service of ours sent it; what a fault has spoilt is not."""
        try:
            event = decode(self.value)
        except UnreadableRecord:
            return False
        return event.source != STRANGER and self.key == str(event.conversation_id).encode()


# Reading and writing


@asynccontextmanager
async def reading(house: ChaosHouse) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of no group, once all topics are there: an empty broker gets them by and by.

    Raises:
        TimeoutError: They were not there in time.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=house.kafka_bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=FETCH_WAIT_MS,
    )
    await consumer.start()

    async def are_there() -> bool:
        known: set[str] = await consumer.topics()
        return known.issuperset(TOPICS)

    try:
        await until(are_there, within_s=TOPICS_WITHIN_S)
        yield consumer
    finally:
        await consumer.stop()


async def newest(consumer: AIOKafkaConsumer, topic: str, *, at_most: int) -> list[Raw]:
    """The youngest sound records of every partition of a topic, oldest first."""
    found: list[Raw] = []
    partitions = _partitions(topic)
    consumer.assign(partitions)
    starts = await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    for partition in partitions:
        consumer.seek(partition, max(starts[partition], ends[partition] - at_most))
    for partition in partitions:
        while (position := await consumer.position(partition)) < ends[partition]:
            try:
                batch = await consumer.getmany(
                    partition, timeout_ms=READ_TIMEOUT_MS, max_records=READ_AT_ONCE
                )
            except UnicodeDecodeError:
                # A header's name that is not UTF-8 spoils all that was asked for with it.
                found += await _up_to_unreadable(consumer, partition, position)
                continue
            found += [_raw(record) for record in batch.get(partition, [])]
    return [record for record in found if record.is_sound]


async def sound_values(house: ChaosHouse) -> dict[str, list[bytes]]:
    """What our services sent to the inner topics, by topic: the evidence without the poison."""
    async with reading(house) as consumer:
        return {
            topic: [
                record.value
                for record in await newest(consumer, topic, at_most=ALL)
                if record.value is not None
            ]
            for topic in INNER_TOPICS
        }


async def _up_to_unreadable(
    consumer: AIOKafkaConsumer, partition: TopicPartition, position: int
) -> list[Raw]:
    """Records one by one, to the first that the client library cannot read; steps over that."""
    consumer.seek(partition, position)
    found: list[Raw] = []
    while True:
        position = await consumer.position(partition)
        try:
            batch = await consumer.getmany(partition, timeout_ms=READ_TIMEOUT_MS, max_records=1)
        except UnicodeDecodeError:
            consumer.seek(partition, position + 1)
            return found
        records = batch.get(partition, [])
        if not records:
            return found
        found += map(_raw, records)


async def held_records(house: ChaosHouse) -> int:
    """How many records the topics hold now, spoilt ones and copies included."""
    async with reading(house) as consumer:
        return await _count(consumer)


async def _count(consumer: AIOKafkaConsumer) -> int:
    partitions = [partition for topic in TOPICS for partition in _partitions(topic)]
    starts = await consumer.beginning_offsets(partitions)
    ends = await consumer.end_offsets(partitions)
    return sum(ends[one] - starts[one] for one in partitions)


async def publish(house: ChaosHouse, records: Sequence[Raw]) -> list[Place]:
    """Append records to the partitions they name, in this order; says where they stand."""
    producer = AIOKafkaProducer(bootstrap_servers=house.kafka_bootstrap, acks="all", linger_ms=2)
    await producer.start()
    places: list[Place] = []
    try:
        for start in range(0, len(records), IN_FLIGHT):
            some = records[start : start + IN_FLIGHT]
            told = [
                await producer.send(
                    one.topic,
                    value=one.value,
                    key=one.key,
                    headers=list(one.headers),
                    partition=one.partition,
                )
                for one in some
            ]
            for future in told:
                meta = await future
                places.append(Place(meta.topic, meta.partition, meta.offset))
    finally:
        await producer.stop()
    return places


def _partitions(topic: str) -> list[TopicPartition]:
    count = FILES[topic].partitions.of("local")
    return [TopicPartition(topic, number) for number in range(count)]


def _raw(record: Any) -> Raw:
    return Raw(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(record.headers),
    )


# Copies


@dataclass(slots=True)
class Duplicate:
    """Recent records of all topics come once to three times again, shuffled across keys."""

    kind: str = "duplicate_records"
    duration_s: float = 0.0
    touched: dict[str, int] = field(default_factory=dict)

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Publish the copies, each as the record was."""
        async with house.holding("kafka"):
            async with reading(house) as consumer:
                found = [
                    record
                    for topic in TOPICS
                    for record in await newest(consumer, topic, at_most=RECENT)
                ]
            copies = shuffled_across_keys(found, dice)
            await publish(house, copies)
        self.touched = {"records": len(found), "copies": len(copies)}
        return "all topics"

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Nothing to heal."""
        del house
        return self.touched


def shuffled_across_keys(records: Sequence[Raw], dice: random.Random) -> list[Raw]:
    """Every record 1 to ``MAX_COPIES`` times; keys interleaved by chance.

    The first copies of one key keep their order, the others come anywhere after them.
    """
    queues: dict[bytes | None, list[Raw]] = defaultdict(list)
    for record in records:
        queues[record.key].append(record)
    turns = [key for key, queue in queues.items() for _ in queue]
    dice.shuffle(turns)
    waiting = {key: iter(queue) for key, queue in queues.items()}
    placed: list[tuple[float, Raw]] = []
    for place, key in enumerate(turns):
        record = next(waiting[key])
        placed.append((place, record))
        for _ in range(dice.randrange(MAX_COPIES)):
            placed.append((dice.uniform(place, len(turns)), record))
    return [record for _, record in sorted(placed, key=lambda one: one[0])]


@dataclass(slots=True)
class Replay:
    """All records of one topic come again, from the first one on."""

    kind: str = "replay_topic"
    duration_s: float = 0.0
    touched: dict[str, int] = field(default_factory=dict)

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Publish the topic once more; what stands in it twice comes once."""
        topic = dice.choice(TOPICS)
        async with house.holding("kafka"):
            async with reading(house) as consumer:
                found = await newest(consumer, topic, at_most=MAX_REPLAYED)
            distinct = first_of_each(found)
            await publish(house, distinct)
        self.touched = {"records": len(distinct)}
        return f"topic {topic}"

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Nothing to heal."""
        del house
        return self.touched


def first_of_each(records: Sequence[Raw]) -> list[Raw]:
    """Without repeats, in the order of first occurrence."""
    known: dict[tuple[bytes | None, bytes | None], Raw] = {}
    for record in records:
        known.setdefault((record.key, record.value), record)
    return list(known.values())


# Poison


@dataclass(frozen=True, slots=True)
class Spoilt:
    """A record as it was spoilt.

    Attributes:
        parked_by: Schemas that surely park it; another reader may find it harmless.
    """

    record: Raw
    parked_by: tuple[str, ...] = ()


def invalid_json(sound: Raw, dice: random.Random) -> Spoilt:
    """Its value ends in the middle, or is no text at all."""
    value = sound.value or b""
    cut = value[: dice.randrange(1, len(value))] if len(value) > 1 else b"{"
    return Spoilt(replace(sound, value=dice.choice((cut, b"\xff\x00\xfe", b""))), _readers(sound))


def unknown_version(sound: Raw, dice: random.Random) -> Spoilt:
    """Its version is from the future."""
    return Spoilt(_changed(sound, version=dice.randint(2, 99)), _readers(sound))


def missing_key(sound: Raw, dice: random.Random) -> Spoilt:
    """It has no key, so it may stand in any partition; only ingestion reads the key."""
    partition = dice.choice(_partitions(sound.topic)).partition
    parked_by = tuple(reader for reader in _readers(sound) if reader == "ingestion")
    return Spoilt(replace(sound, key=None, partition=partition), parked_by)


def wrong_tenant(sound: Raw, dice: random.Random) -> Spoilt:
    """A fact of somebody who does not own the conversation."""
    strange = _changed(
        sound,
        id=str(UUID(int=dice.getrandbits(128), version=4)),
        tenant_id=str(UUID(int=dice.getrandbits(128), version=4)),
        source=STRANGER,
    )
    inner = sound.topic in (CONTEXT_EVENTS, GENERATION_EVENTS)
    return Spoilt(strange, ("ingestion",) if inner or sound.topic == TURN_REQUESTS else ())


def deep_nesting(sound: Raw, dice: random.Random) -> Spoilt:
    """Brackets in brackets, deeper than any parser's stack."""
    value = dice.choice((b"[" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP))
    return Spoilt(replace(sound, value=value), _readers(sound))


SPOILERS: Sequence[Callable[[Raw, random.Random], Spoilt]] = (
    invalid_json,
    unknown_version,
    missing_key,
    wrong_tenant,
    deep_nesting,
)
"""The sixth kind, a header's name that is not UTF-8, is made by hand: no client library sends one.
"""


@dataclass(slots=True)
class Poison:
    """Spoilt records among the good ones: as many of each kind, all over the topics."""

    kind: str = "poison_records"
    duration_s: float = PARKED_WITHIN_S
    expected: list[tuple[str, UUID]] = field(default_factory=list)
    touched: dict[str, int] = field(default_factory=dict)

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Publish them, and tell the house which dead letters they become."""
        async with house.holding("kafka"):
            async with reading(house) as consumer:
                wanted = dose(await _count(consumer))
                sound = [
                    record
                    for topic in TOPICS
                    for record in await newest(consumer, topic, at_most=RECENT)
                ]
            if not sound:
                return "nothing, the topics are empty"
            spoilt = [
                spoil(dice.choice(sound), dice)
                for spoil in itertools.islice(itertools.cycle(SPOILERS), wanted - 1)
            ]
            await self._publish(house, spoilt)
            await self._publish_raw_header(house, dice.choice(sound))
        self.touched = {"records": len(spoilt) + 1}
        return "all topics"

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Count what has been parked; a broker that lost its data has lost some of it as well."""
        parked = 0
        for schema in sorted({schema for schema, _ in self.expected}):
            ids = [dead for reader, dead in self.expected if reader == schema]
            rows = await house.rows(
                f"select count(*) as n from {schema}.dead_letters where id = any(%s)",  # noqa: S608
                ids,
            )
            parked += rows[0]["n"]
        return {**self.touched, "to_be_parked": len(self.expected), "parked": parked}

    async def _publish(self, house: ChaosHouse, spoilt: Sequence[Spoilt]) -> None:
        places = await publish(house, [one.record for one in spoilt])
        for one, place in zip(spoilt, places, strict=True):
            self._expect(house, place, one.record.value, one.parked_by)

    async def _publish_raw_header(self, house: ChaosHouse, sound: Raw) -> None:
        nobody = DoorKey(GATEWAY_DOOR_KEY_ID, UUID(int=0), b"")
        async with FrontEnd(house, nobody) as front:
            place = await front.publish_raw_header(
                sound.topic, sound.key or b"", sound.value or b""
            )
        self._expect(house, place, None, _readers(sound))

    def _expect(
        self, house: ChaosHouse, place: Place, value: bytes | None, parked_by: Sequence[str]
    ) -> None:
        dead = dead_letter_id(place, value)
        house.known_dead_letters.add(dead)
        self.expected += [(schema, dead) for schema in parked_by]


def dose(records: int) -> int:
    """How many to spoil where the topics hold so many."""
    return min(MOST_POISON, max(LEAST_POISON, round(POISON_SHARE * records)))


def dead_letter_id(place: Place, value: bytes | None) -> UUID:
    """The id that a record at that place gets when it is parked, whoever parks it."""
    return _dead_id(
        DeadRecord(
            topic=place.topic,
            partition=place.partition,
            offset=place.offset,
            key=None,
            headers=(),
            value=value,
            reason="",
            error="",
        )
    )


def _changed(sound: Raw, **fields: Any) -> Raw:
    return replace(sound, value=orjson.dumps({**orjson.loads(sound.value or b"{}"), **fields}))


def _readers(sound: Raw) -> tuple[str, ...]:
    return FILES[sound.topic].consumers


FAULTS: Mapping[str, Callable[[random.Random], Fault]] = {
    "duplicate_records": lambda _: Duplicate(),
    "replay_topic": lambda _: Replay(),
    "poison_records": lambda _: Poison(),
}
"""How a fault of each kind is made."""
