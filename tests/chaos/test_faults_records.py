"""Faults of the records, on a real broker: what they append, and what is known of it."""

import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from libs.clock import SystemClock
from libs.kafka.topics import apply_topics, topic_specs
from schemas.envelope import Data, Event, encode, headers
from schemas.errors import MalformedEvent, UnsupportedVersion
from schemas.registry import TURN_EVENTS, TURN_REQUESTS, decode
from schemas.requests import TextPart, TurnRequestedV1
from schemas.topic_files import load_topics
from schemas.turns import TurnCancelRequestedV1
from tests.chaos import faults_records
from tests.chaos.faults_records import (
    MAX_COPIES,
    STRANGER,
    Duplicate,
    Poison,
    Raw,
    Replay,
    dead_letter_id,
    first_of_each,
    shuffled_across_keys,
)
from tests.chaos.house import ChaosHouse
from tests.rig.house import Place

clock = SystemClock()


def event(conversation: UUID, data: Data) -> Event[Any]:
    return Event(
        id=clock.new_id(),
        source="ingestion",
        tenant_id=uuid4(),
        conversation_id=conversation,
        correlation_id=uuid4(),
        occurred_at=clock.now(),
        data=data,
    )


def raw(conversation: UUID, *, topic: str = TURN_EVENTS, partition: int = 0) -> Raw:
    data: Data = TurnCancelRequestedV1(reason="user")
    if topic == TURN_REQUESTS:
        data = TurnRequestedV1(
            request_id=uuid4(), principal_id=uuid4(), key="k", parts=(TextPart(text="hello"),)
        )
    told = event(conversation, data)
    named = tuple((name, value.encode()) for name, value in headers(told).items())
    return Raw(topic, partition, 0, str(conversation).encode(), encode(told), named)


# Without a broker


def test_copies_are_one_to_three_and_the_first_ones_keep_the_order_of_their_key() -> None:
    conversations = [uuid4() for _ in range(20)]
    records = [raw(conversation) for _ in range(6) for conversation in conversations]

    mixed = shuffled_across_keys(records, random.Random(5))

    counts = Counter(one.value for one in mixed)
    assert set(counts) == {one.value for one in records}
    assert set(counts.values()) == set(range(1, MAX_COPIES + 1))
    wanted: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for one in records:
        wanted[one.key].append(one.value)
    seen: dict[bytes | None, list[bytes | None]] = defaultdict(list)
    for one in mixed:
        if one.value not in seen[one.key]:
            seen[one.key].append(one.value)
    assert seen == wanted
    assert [one.key for one in mixed[:20]] != [one.key for one in records[:20]]


def test_a_replay_holds_what_stands_twice_only_once() -> None:
    one, two = raw(uuid4()), raw(uuid4())
    assert first_of_each([one, two, replace(one, offset=7), two]) == [one, two]


def test_what_a_fault_has_spoilt_is_not_sound() -> None:
    dice = random.Random(2)
    sound = raw(uuid4())
    assert sound.is_sound
    for spoil in faults_records.SPOILERS:
        assert not spoil(sound, dice).record.is_sound, spoil


@pytest.mark.parametrize("seed", range(6))
def test_spoilt_records_are_wrong_in_the_way_they_are_called(seed: int) -> None:
    dice = random.Random(seed)
    sound = raw(uuid4(), topic=TURN_REQUESTS)
    for spoil in (faults_records.invalid_json, faults_records.deep_nesting):
        with pytest.raises(MalformedEvent):
            decode(spoil(sound, dice).record.value)
    with pytest.raises(UnsupportedVersion):
        decode(faults_records.unknown_version(sound, dice).record.value)
    stranger = decode(faults_records.wrong_tenant(sound, dice).record.value)
    mine = decode(sound.value)
    assert stranger.conversation_id == mine.conversation_id
    assert stranger.tenant_id != mine.tenant_id
    assert (stranger.id != mine.id, stranger.source) == (True, STRANGER)
    keyless = faults_records.missing_key(sound, dice).record
    assert (keyless.key, keyless.value) == (None, sound.value)


def test_the_id_of_a_dead_letter_is_that_of_its_place_and_value() -> None:
    place = Place(TURN_EVENTS, 1, 7)
    known = {
        dead_letter_id(place, b"x"),
        dead_letter_id(place, b"y"),
        dead_letter_id(place, None),
        dead_letter_id(Place(TURN_EVENTS, 2, 7), b"x"),
    }
    assert len(known) == 4
    assert dead_letter_id(place, b"x") in known


# With one


@dataclass
class Stack:
    kafka_bootstrap_servers: str


@dataclass
class Premises:
    """What these faults touch of a house."""

    kafka_bootstrap: str
    known_dead_letters: set[UUID] = field(default_factory=set)
    parked: int = 0

    @property
    def stack(self) -> Stack:
        return Stack(self.kafka_bootstrap)

    def note_unreadable(self, place: Place) -> None:
        """What the house's own reader leaves out."""

    async def rows(self, _sql: str, ids: list[UUID]) -> list[dict[str, Any]]:
        assert set(ids) <= self.known_dead_letters
        return [{"n": self.parked}]

    @asynccontextmanager
    async def holding(self, resource: str) -> AsyncIterator[None]:
        assert resource == "kafka"
        yield


@pytest.fixture
async def house(kafka_url: str) -> AsyncIterator[ChaosHouse]:
    """A broker with empty topics of the real names."""
    files = load_topics()
    names = [name for file in files for name in (file.topic, file.dead_letter_topic)]
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_url)
    await admin.start()
    try:
        await apply_topics(admin, topic_specs(files, profile="local"))
        yield cast("ChaosHouse", Premises(kafka_url))
    finally:
        await admin.delete_topics(names)
        await admin.close()


async def fill(house: ChaosHouse, *, conversations: int = 10, events: int = 3) -> list[Raw]:
    """Sound records in two topics, each key in one partition."""
    found = [
        raw(conversation, topic=topic, partition=number % 4)
        for topic in (TURN_REQUESTS, TURN_EVENTS)
        for number, conversation in enumerate(uuid4() for _ in range(conversations))
        for _ in range(events)
    ]
    await faults_records.publish(house, found)
    return found


async def held(house: ChaosHouse, topic: str) -> list[Raw]:
    async with faults_records.reading(house) as consumer:
        return await faults_records.newest(consumer, topic, at_most=1_000)


def content(record: Raw) -> tuple[object, ...]:
    return record.topic, record.partition, record.key, record.value, record.headers


@pytest.mark.kafka
async def test_duplicates_are_the_records_as_they_were(house: ChaosHouse) -> None:
    filled = await fill(house)
    fault = Duplicate()
    await fault.inject(house, random.Random(1))
    touched = await fault.heal(house)

    after = [*await held(house, TURN_REQUESTS), *await held(house, TURN_EVENTS)]
    assert touched["records"] == len(filled)
    assert len(after) == len(filled) + touched["copies"]
    assert {content(one) for one in after} == {content(one) for one in filled}
    assert set(Counter(map(content, after)).values()) == {2, 3, 4}


@pytest.mark.kafka
async def test_a_replay_appends_one_topic_once_more_in_order(house: ChaosHouse) -> None:
    await fill(house)
    before = {topic: await held(house, topic) for topic in (TURN_REQUESTS, TURN_EVENTS)}
    dice = random.Random(0)
    while (target := await (fault := Replay()).inject(house, dice)) != f"topic {TURN_EVENTS}":
        assert target.startswith("topic ")
    touched = await fault.heal(house)

    after = await held(house, TURN_EVENTS)
    assert touched == {"records": len(before[TURN_EVENTS])}
    for partition in range(4):
        old = [content(one) for one in before[TURN_EVENTS] if one.partition == partition]
        new = [content(one) for one in after if one.partition == partition]
        assert new == old + old


@pytest.mark.kafka
async def test_poison_is_known_by_its_dead_letters_and_left_out_of_what_is_sound(
    house: ChaosHouse,
) -> None:
    filled = await fill(house, conversations=120, events=3)
    fault = Poison()
    await fault.inject(house, random.Random(4))
    touched = await fault.heal(house)

    assert touched["records"] == faults_records.dose(len(filled)) > 0.01 * len(filled)
    assert touched["to_be_parked"] > 0
    assert await faults_records.held_records(house) == len(filled) + touched["records"]
    assert len(house.known_dead_letters) == touched["records"]
    after = [*await held(house, TURN_REQUESTS), *await held(house, TURN_EVENTS)]
    assert Counter(map(content, after)) == Counter(map(content, filled))
    sound = await faults_records.sound_values(house)
    assert Counter(sound[TURN_EVENTS]) == Counter(
        one.value for one in filled if one.topic == TURN_EVENTS
    )


@pytest.mark.kafka
async def test_poison_finds_nothing_to_spoil_in_empty_topics(house: ChaosHouse) -> None:
    assert "nothing" in await Poison().inject(house, random.Random(4))
