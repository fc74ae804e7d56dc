"""The topics as somebody else's producer meets them: what is refused, and what that costs nobody.

Every spoiled record stands between two good ones of the same partition.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition

from libs.door import DOOR_KEY_ID_HEADER, DOOR_MAC_HEADER
from schemas.envelope import Event, encode
from schemas.registry import TURN_REQUESTS
from schemas.turns import TurnEndedV1
from tests.rig.front_end import FrontEnd, Headers, Visitor, make_door_key
from tests.rig.house import House, Place
from tests.rig.scrape import counted
from tests.rig.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

CACHED_S = 5.0
"""What is signed later than this after its key was revoked is refused."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def neighbour(house: House) -> UUID:
    """Another tenant, whom the visitor's key does not speak for."""
    return (await make_door_key(house, f"neighbour-{uuid4().hex[:6]}")).tenant_id


async def test_a_front_end_with_a_key_of_its_own_gets_its_outcome_and_its_answer(
    house: House, visitor: Visitor
) -> None:
    event = visitor.turn("A question from elsewhere")
    await visitor.front.ask(event)

    outcome = await visitor.front.outcome(event)
    assert (outcome["outcome"], outcome["tenant_id"]) == ("accepted", visitor.front.key.tenant_id)
    assert outcome["turn_id"] == event.correlation_id

    await house.come_to_rest()
    (turn,) = await house.rows("select * from ingestion.turns where id = %s", event.turn_id)
    assert (turn["status"], turn["principal_id"]) == ("completed", visitor.principal)


# What is wrong with a record: from a good request to (key, value, headers).

Record = tuple[bytes | None, bytes | None, Headers]


def good(visitor: Visitor, event: Event[Any]) -> Record:
    value = encode(event)
    return str(event.conversation_id).encode(), value, visitor.front.key.sign(value)


def changed(visitor: Visitor, **changes: Any) -> Record:
    """A request with other fields, signed as it is."""
    event = visitor.turn()
    record = {**orjson.loads(encode(event)), **changes}
    value = orjson.dumps(record)
    return str(event.conversation_id).encode(), value, visitor.front.key.sign(value)


def bare(visitor: Visitor, value: bytes | None) -> Record:
    """Bytes of any kind, signed where there are any."""
    return str(visitor.conversation).encode(), value, visitor.front.key.sign(value or b"")


def forged_tenant(visitor: Visitor, neighbour: UUID) -> Record:
    return changed(visitor, tenant_id=str(neighbour))


def text_changed_after_signing(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    key, value, headers = good(visitor, visitor.turn("pay 10"))
    return key, (value or b"").replace(b"pay 10", b"pay 99"), headers


def without_mac(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    key, value, headers = good(visitor, visitor.turn())
    return key, value, [one for one in headers if one[0] != DOOR_MAC_HEADER]


def without_key_id(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    key, value, headers = good(visitor, visitor.turn())
    return key, value, [one for one in headers if one[0] != DOOR_KEY_ID_HEADER]


def two_macs(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    key, value, headers = good(visitor, visitor.turn())
    return key, value, [*headers, (DOOR_MAC_HEADER, b"0" * 64)]


def wrong_mac(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    key, value, headers = good(visitor, visitor.turn())
    return key, value, [headers[0], (DOOR_MAC_HEADER, b"0" * 64)]


def unknown_door_key(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    key, value, headers = good(visitor, visitor.turn())
    return key, value, [(DOOR_KEY_ID_HEADER, str(uuid4()).encode()), headers[1]]


def key_of_another_conversation(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    _, value, headers = good(visitor, visitor.turn())
    return str(uuid4()).encode(), value, headers


def without_a_key(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    _, value, headers = good(visitor, visitor.turn())
    return b"", value, headers


def turn_id_of_another_key(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    return changed(visitor, correlation_id=str(uuid4()))


def request_id_that_is_not_the_events(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    return changed(visitor, id=str(uuid4()))


def event_of_another_topic(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    data = TurnEndedV1(status="completed", reason=None, length=0, usage=None)
    return good(visitor, replace(visitor.turn(), data=data))


def unknown_type(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    return changed(visitor, type="turn.wished_for")


def future_version(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    return changed(visitor, version=2)


def wrong_types(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    return changed(visitor, data={"request_id": 7})


def undecodable_bytes(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    return bare(visitor, b"\xff\x00")


def null_value(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    return bare(visitor, None)


def nested_too_deeply(visitor: Visitor, neighbour: UUID) -> Record:
    del neighbour
    return bare(visitor, b"[" * 10_000 + b"]" * 10_000)


SPOILED: list[tuple[Callable[[Visitor, UUID], Record], str]] = [
    (forged_tenant, "door_tenant_foreign"),
    (text_changed_after_signing, "door_mac_wrong"),
    (without_mac, "door_unsigned"),
    (without_key_id, "door_unsigned"),
    (two_macs, "door_unsigned"),
    (wrong_mac, "door_mac_wrong"),
    (unknown_door_key, "door_key_unknown"),
    (key_of_another_conversation, "key_mismatch"),
    (without_a_key, "key_mismatch"),
    (turn_id_of_another_key, "ids_mismatch"),
    (request_id_that_is_not_the_events, "ids_mismatch"),
    (event_of_another_topic, "wrong_topic"),
    (unknown_type, "unknown_type"),
    (future_version, "unsupported_version"),
    (wrong_types, "malformed"),
    (undecodable_bytes, "malformed"),
    (null_value, "malformed"),
    (nested_too_deeply, "malformed"),
]


async def written(house: House, *tenants: UUID) -> dict[str, int]:
    """How many rows are stored of these tenants, by table."""
    found = {}
    for table in ("conversations", "turns", "messages", "request_outcomes", "open_turns"):
        rows = await house.rows(
            f"select count(*) as n from ingestion.{table} where tenant_id = any(%s)",  # noqa: S608
            list(tenants),
        )
        found[table] = rows[0]["n"]
    return found


@dataclass(frozen=True, slots=True)
class Aside:
    """What became of all spoiled requests, published one after the other.

    Attributes:
        records: By the name of what was wrong.
        dead: Their dead letters, by the same names.
        stored: Rows of both tenants before and after.
        parked: How much the counter of each reason has grown.
        good: The outcomes of the good requests between them.
    """

    records: dict[str, Record]
    dead: dict[str, dict[str, Any]]
    stored: tuple[dict[str, int], dict[str, int]]
    parked: dict[str, float]
    good: list[str]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def aside(house: House, visitor: Visitor, neighbour: UUID) -> Aside:
    front = visitor.front
    own = str(visitor.conversation).encode()
    reasons = {reason for _, reason in SPOILED}
    await house.come_to_rest()
    stored = await written(house, front.key.tenant_id, neighbour)
    counted_before = {reason: await parked_at_the_door(house, reason) for reason in reasons}
    records: dict[str, Record] = {}
    places: dict[str, Place] = {}
    between: list[tuple[Event[Any], Place]] = []
    for spoil, _ in SPOILED:
        name = spoil.__name__
        key, value, headers = records[name] = spoil(visitor, neighbour)
        places[name] = await front.publish_beside(TURN_REQUESTS, key or b"", value, headers, at=own)
        # A turn for a conversation that is not there leaves an outcome and nothing else.
        good_one = front.turn(visitor.conversation, uuid4(), "Not mine")
        between.append((good_one, await front.ask(good_one)))
    assert {place.partition for place in places.values()} == {
        place.partition for _, place in between
    }
    dead = {name: await house.dead_letter("ingestion", place) for name, place in places.items()}
    good = [(await front.outcome(event))["outcome"] for event, _ in between]
    await house.come_to_rest()
    after = await written(house, front.key.tenant_id, neighbour)
    parked = {
        reason: await parked_at_the_door(house, reason) - counted_before[reason]
        for reason in reasons
    }
    return Aside(records, dead, (stored, after), parked, good)


async def parked_at_the_door(house: House, reason: str) -> float:
    """The counter of one reason."""
    url = house.process("ingestion").url
    return await counted(url, "dead_letters_total", topic=TURN_REQUESTS, reason=reason)


@pytest.mark.parametrize(("spoil", "reason"), SPOILED, ids=[spoil.__name__ for spoil, _ in SPOILED])
async def test_at_the_door_a_spoiled_request_is_set_aside(
    aside: Aside, spoil: Callable[[Visitor, UUID], Record], reason: str
) -> None:
    key, value, _ = aside.records[spoil.__name__]
    dead = aside.dead[spoil.__name__]

    assert dead["reason"] == reason
    assert (dead["consumer"], dead["topic"]) == ("ingestion.requests", TURN_REQUESTS)
    assert (dead["key"] or b"", dead["value"]) == (key, value)
    assert value is None or value.decode("latin-1") not in dead["error"]


async def test_spoiled_requests_are_counted_and_leave_nothing_else_behind(aside: Aside) -> None:
    before, after = aside.stored

    assert aside.parked == dict(Counter(reason for _, reason in SPOILED))
    assert aside.good == ["not_found"] * len(SPOILED)
    assert {t: n - before[t] for t, n in after.items() if n != before[t]} == {
        "request_outcomes": len(SPOILED)
    }


async def test_a_header_name_that_is_not_utf_8_is_stepped_over(
    house: House, visitor: Visitor
) -> None:
    front = visitor.front
    first, spoiled, after = visitor.turn(), visitor.turn(), visitor.turn()
    url = house.process("ingestion").url
    before = await counted(url, "dead_letters_total", reason="unreadable")
    await front.ask(first)
    place = await front.publish_raw_header(
        TURN_REQUESTS, str(visitor.conversation).encode(), encode(spoiled)
    )
    await front.ask(after)

    dead = await house.dead_letter("ingestion", place)

    assert dead["reason"] == "unreadable"
    assert (await front.outcome(first))["outcome"] == "accepted"
    assert (await front.outcome(after))["outcome"] == "accepted"
    assert await counted(url, "dead_letters_total", reason="unreadable") == before + 1


async def test_one_unreadable_message_among_good_ones_stops_nothing(
    house: House, visitor: Visitor, neighbour: UUID
) -> None:
    """Good, bytes, good, unknown type, later version, no value, good: three are done."""
    front = visitor.front
    talk = front.create(visitor.principal, uuid4().hex)
    await front.ask(talk)
    url = house.process("ingestion").url
    before = await counted(url, "dead_letters_total", topic=TURN_REQUESTS)
    own = str(talk.conversation_id).encode()
    turns: list[Event[Any]] = []
    places: list[Place] = []
    for spoil in (None, undecodable_bytes, None, unknown_type, future_version, null_value, None):
        if spoil is None:
            turns.append(front.turn(talk.conversation_id, visitor.principal, "Good"))
            await front.ask(turns[-1])
        else:
            _, value, headers = spoil(visitor, neighbour)
            places.append(await front.publish(TURN_REQUESTS, own, value, headers))

    for turn in turns:
        assert (await front.outcome(turn))["outcome"] == "accepted"
    dead = [await house.dead_letter("ingestion", place) for place in places]

    assert [one["reason"] for one in dead] == [
        "malformed", "unknown_type", "unsupported_version", "malformed",
    ]  # fmt: skip
    assert await counted(url, "dead_letters_total", topic=TURN_REQUESTS) == before + 4
    mirrored = await mirrors(house, {(one["partition"], one["offset"]) for one in dead})
    assert mirrored == {
        (one["partition"], one["offset"], one["reason"], one["value"] or b"") for one in dead
    }


async def mirrors(house: House, wanted: set[tuple[int, int]]) -> set[tuple[int, int, str, bytes]]:
    """Records of the topic of dead letters that tell of these places; waits until all are there."""
    topic = f"{TURN_REQUESTS}.dlq"
    consumer = AIOKafkaConsumer(
        bootstrap_servers=house.stack.kafka_bootstrap_servers, auto_offset_reset="earliest"
    )
    await consumer.start()
    found: set[tuple[int, int, str, bytes]] = set()
    try:
        await consumer._client.force_metadata_update()
        numbers = await consumer._client.fetch_all_metadata()
        parts = [TopicPartition(topic, n) for n in numbers.partitions_for_topic(topic)]
        consumer.assign(parts)
        async with asyncio.timeout(20):
            while {(told[0], told[1]) for told in found} < wanted:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for record in records:
                        told = {name: value.decode() for name, value in record.headers}
                        place = int(told["original-partition"]), int(told["original-offset"])
                        if place in wanted:
                            found.add((*place, told["reason"], record.value or b""))
    finally:
        await consumer.stop()
    return found


async def test_a_revoked_door_key_is_refused_within_the_cache_time(
    house: House, visitor: Visitor
) -> None:
    key = await make_door_key(house, f"leaver-{uuid4().hex[:6]}")
    async with FrontEnd(house, key) as front:
        talk = front.create(visitor.principal, "mine")
        await front.ask(talk)
        assert (await front.outcome(talk))["outcome"] == "accepted"

        await house.operate("select frontend_gateway.op_revoke_key(%s, 'tests')", key.id)
        revoked_at = time.monotonic()
        async with asyncio.timeout(60):
            while True:
                asked_at = time.monotonic()
                asked = front.turn(talk.conversation_id, visitor.principal, "Still me")
                place = await front.ask(asked)
                if await was_refused(house, asked, place):
                    break
                assert asked_at - revoked_at <= CACHED_S, "let in with a key that was revoked"
        dead = await house.dead_letter("ingestion", place)

        assert dead["reason"] == "door_key_revoked"
        last = front.turn(talk.conversation_id, visitor.principal, "And now?")
        assert (await house.dead_letter("ingestion", await front.ask(last)))["reason"] == (
            "door_key_revoked"
        )


async def was_refused(house: House, asked: Event[Any], place: Place) -> bool:
    """Wait for a request's fate: parked or decided."""
    fate: list[bool] = []

    async def is_known() -> bool:
        rows = await house.rows(
            "select (select count(*) from ingestion.request_outcomes where request_id = %s) good, "
            "(select count(*) from ingestion.dead_letters where topic = %s and partition = %s "
            'and "offset" = %s) bad',
            asked.id,
            place.topic,
            place.partition,
            place.offset,
        )
        fate[:] = [bool(rows[0]["bad"])]
        return bool(rows[0]["good"] or rows[0]["bad"])

    await until(is_known)
    return fate[0]


async def test_a_replayed_record_changes_nothing(house: House, visitor: Visitor) -> None:
    front = visitor.front
    event = visitor.turn("Once")
    await front.ask(event)
    outcome = await front.outcome(event)
    await house.come_to_rest()
    stored = await written(house, front.key.tenant_id)
    url = house.process("ingestion").url
    repeats = await counted(url, "inbox_duplicates_total", consumer="ingestion.requests")

    for _ in range(3):
        await front.ask(event)
    marker = front.create(visitor.principal, uuid4().hex)
    await front.ask(marker)
    await front.outcome(marker)

    async def were_recognised() -> bool:
        now = await counted(url, "inbox_duplicates_total", consumer="ingestion.requests")
        return now >= repeats + 3

    await until(were_recognised)
    await house.come_to_rest()
    grown = await written(house, front.key.tenant_id)
    added = {table: count - stored[table] for table, count in grown.items()}
    assert {table for table, count in added.items() if count} == {
        "conversations",
        "request_outcomes",
    }
    assert await front.outcome(event) == outcome
