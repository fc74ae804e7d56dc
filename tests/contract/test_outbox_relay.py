"""The relay against a real Postgres: nothing lost, order kept, repeats only with the same id."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from libs.clock import SystemClock
from libs.errors import RecordTooLarge
from libs.kafka.publisher import MAX_REQUEST_BYTES, MemoryPublisher
from libs.outbox import OutboxMessage, Relay, append_statement
from libs.outbox.relay import REMEMBERED_S
from libs.postgres import Database
from tests.rig.mechanics import make_mechanics, make_metrics, make_relay, mechanics_database
from tests.rig.waiting import until

pytestmark = pytest.mark.postgres


def message(key: str, number: int, payload: bytes | None = None) -> OutboxMessage:
    body = payload if payload is not None else f"{key}/{number}".encode()
    return OutboxMessage(uuid.uuid4(), "t", key, "test.happened", {"ce_type": "x"}, body)


@pytest.fixture
async def database(empty_database_url: str) -> AsyncIterator[Database]:
    await make_mechanics(empty_database_url)
    async with mechanics_database(empty_database_url) as database:
        yield database


async def append(database: Database, messages: list[OutboxMessage]) -> list[int]:
    rows = await database.fetch(*append_statement(messages))
    return [row["id"] for row in rows]


async def waiting(database: Database) -> int:
    return (await database.fetch("select count(*) as n from ingestion.outbox"))[0]["n"]


async def until_empty(database: Database) -> None:
    async def is_empty() -> bool:
        return await waiting(database) == 0

    await until(is_empty)


class SteppedClock(SystemClock):
    """Monotonic time that goes on when a test says so."""

    at_s = 0.0

    def monotonic(self) -> float:
        return self.at_s


class Running:
    """A relay as a task, ended like a crash: nothing is drained."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay

    async def __aenter__(self) -> Relay:
        self.task = asyncio.create_task(self.relay.run())
        return self.relay

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_rows_handed_over_are_sent_in_order_and_deleted(database: Database) -> None:
    publisher = MemoryPublisher()
    messages = [message(f"k{n % 3}", n) for n in range(50)]
    async with Running(make_relay(database, publisher)) as relay:
        relay.hand_over(messages, await append(database, messages))
        await until_empty(database)

    assert [record.value for record in publisher.records] == [m.payload for m in messages]


async def test_rows_that_a_crash_left_are_swept(database: Database) -> None:
    publisher = MemoryPublisher()
    messages = [message(f"k{n % 7}", n) for n in range(300)]
    await append(database, messages)
    async with Running(make_relay(database, publisher)):
        await until_empty(database)

    by_key: dict[bytes, list[bytes]] = {}
    for record in publisher.records:
        by_key.setdefault(record.key, []).append(record.value)
    expected: dict[bytes, list[bytes]] = {}
    for m in messages:
        expected.setdefault(m.key.encode(), []).append(m.payload)
    assert by_key == expected


async def test_a_later_row_never_overtakes_one_that_could_not_be_sent(database: Database) -> None:
    publisher = MemoryPublisher()
    publisher.is_away = True
    first, second = message("k", 1), message("k", 2)
    async with Running(make_relay(database, publisher)) as relay:
        relay.hand_over([first], await append(database, [first]))

        async def is_behind() -> bool:
            return bool(relay._behind)

        await until(is_behind)
        publisher.is_away = False
        relay.hand_over([second], await append(database, [second]))
        await until_empty(database)

    assert [record.value for record in publisher.records] == [first.payload, second.payload]


async def test_a_row_that_commits_late_is_published(database: Database) -> None:
    """A reader with a cursor would have passed it: its number is lower than a published one."""
    publisher = MemoryPublisher()
    early, late, undone = message("a", 1), message("b", 2), message("c", 3)
    async with Running(make_relay(database, publisher)), database.transaction() as transaction:
        await transaction.fetch(*append_statement([early]))
        with pytest.raises(ZeroDivisionError):
            async with database.transaction() as rolled_back:
                await rolled_back.fetch(*append_statement([undone]))
                raise ZeroDivisionError
        await append(database, [late])

        async def has_late() -> bool:
            return bool(publisher.records)

        await until(has_late)
        assert [record.value for record in publisher.records] == [late.payload]
        await transaction.commit_with([])

        async def has_both() -> bool:
            return len(publisher.records) == 2

        await until(has_both)

    assert {record.value for record in publisher.records} == {early.payload, late.payload}


async def test_three_relays_publish_each_row_once(database: Database) -> None:
    publishers = [MemoryPublisher() for _ in range(3)]
    messages = [message(f"k{n}", n) for n in range(100)]
    await append(database, messages)
    async with (
        Running(make_relay(database, publishers[0])),
        Running(make_relay(database, publishers[1])),
        Running(make_relay(database, publishers[2])),
    ):
        await until_empty(database)

    sent = [record.value for publisher in publishers for record in publisher.records]
    assert sorted(sent) == sorted(m.payload for m in messages)


async def test_a_relay_that_died_between_acknowledgement_and_deletion_repeats_with_the_same_id(
    database: Database,
) -> None:
    publisher = MemoryPublisher()
    messages = [message("k", n) for n in range(5)]
    relay = make_relay(database, publisher)
    relay.hand_over(messages, await append(database, messages))
    await relay._send_handed()  # acknowledged; then the process is gone
    async with Running(make_relay(database, publisher)):
        await until_empty(database)

    payloads = [m.payload for m in messages]
    assert [record.value for record in publisher.records] == payloads + payloads


async def test_a_row_whose_deletion_was_lost_is_never_sent_again_and_one_that_is_gone_is_forgotten(
    database: Database,
) -> None:
    publisher, clock = MemoryPublisher(), SteppedClock()
    messages = [message(f"k{n}", n) for n in range(5)]
    relay = Relay(database, publisher, clock=clock, metrics=make_metrics())

    async def all_are_sent() -> bool:
        return relay.remembered == len(messages)

    async def nothing_is_remembered() -> bool:
        return relay.remembered == 0

    def go_on() -> None:
        clock.at_s += REMEMBERED_S + 1
        relay.hand_over([], [])  # wakes it

    async with Running(relay):
        relay.hand_over(messages, await append(database, messages))
        await until(all_are_sent)
        relay.take_acknowledged()  # by a transaction that is rolled back
        await database.fetch("update outbox set created_at = created_at - interval '1 minute'")
        go_on()
        await until_empty(database)
        assert relay.remembered == len(messages)  # its sweep has only just found them
        go_on()
        await until(nothing_is_remembered)

    assert sorted(r.value for r in publisher.records) == sorted(m.payload for m in messages)


async def test_a_row_that_no_broker_takes_is_buried_and_later_rows_go_on(
    database: Database,
) -> None:
    publisher = MemoryPublisher()
    huge = message("k", 1, b"x" * (MAX_REQUEST_BYTES + 1))
    small = message("k", 2)
    await append(database, [huge, small])
    async with Running(make_relay(database, publisher)):
        await until_empty(database)

    dead = await database.fetch("select event_id, error from ingestion.outbox_dead")
    assert [record.value for record in publisher.records] == [small.payload]
    assert [row["event_id"] for row in dead] == [huge.event_id]
    assert str(MAX_REQUEST_BYTES) in dead[0]["error"]
    assert RecordTooLarge.code == "record.too_large"


async def test_concurrent_writers_of_one_key_lose_and_repeat_nothing(database: Database) -> None:
    publisher = MemoryPublisher()
    committed: list[bytes] = []

    async def write(relay: Relay, number: int) -> None:
        one = message("hot", number)
        async with database.transaction() as transaction:
            await transaction.fetch("select pg_advisory_xact_lock(4711)")
            rows = await transaction.commit_with([append_statement([one])])
            committed.append(one.payload)
        relay.hand_over([one], [rows[0][0]["id"]])

    async with Running(make_relay(database, publisher)) as relay:
        await asyncio.gather(*(write(relay, number) for number in range(32)))
        await until_empty(database)

    stored = await database.fetch("select count(*) as n from ingestion.outbox_dead")
    assert stored[0]["n"] == 0
    assert len(publisher.records) == 32
    assert sorted(r.value for r in publisher.records) == sorted(committed)
