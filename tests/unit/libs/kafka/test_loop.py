"""The batch loop's decisions about failure, without a broker and without a database."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from libs.errors import StoreUnavailable, Terminal
from libs.kafka.loop import MAX_RECORD_ATTEMPTS, RETRY_BUDGET_S, BatchLoop
from libs.kafka.parking import EndingOf, Parking
from libs.kafka.records import DeadRecord, Delivery, Partition
from libs.outbox import OutboxMessage
from libs.postgres import Transaction
from schemas.envelope import Event, encode
from schemas.registry import decode
from schemas.turns import TurnAcceptedV1
from tests.rig.mechanics import make_metrics


@dataclass(frozen=True)
class Raw:
    """A record as a consumer hands it out."""

    offset: int
    value: bytes | None
    key: bytes | None = b"k"
    topic: str = "turn.events"
    partition: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


def record(offset: int, *, key: bytes = b"k", partition: int = 0) -> Raw:
    event = Event(
        id=uuid.uuid4(),
        source="test",
        tenant_id=uuid.UUID(int=1),
        conversation_id=uuid.UUID(int=2),
        correlation_id=uuid.UUID(int=3),
        occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
        data=TurnAcceptedV1(seq=offset + 1, policy="serialize", position=0),
    )
    return Raw(offset, encode(event), key=key, partition=partition)


class Clock:
    """Sleeping is the only thing that takes time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, delay_s: float) -> None:
        self.seconds += delay_s

    def new_id(self) -> uuid.UUID:
        return uuid.uuid4()


@dataclass
class Source:
    """Remembers seeks and commits."""

    seeks: list[Mapping[Partition, int]] = field(default_factory=list)
    commits: list[Mapping[Partition, int]] = field(default_factory=list)
    takes_commits: bool = True

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        self.seeks.append(dict(offsets))

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        self.commits.append(dict(offsets))
        return self.takes_commits


@dataclass
class Lot:
    """A parking that keeps what is parked, or is away."""

    parked: list[DeadRecord] = field(default_factory=list)
    is_away: bool = False

    async def park(self, dead: Sequence[DeadRecord], *, ending_of: EndingOf) -> None:
        del ending_of
        if self.is_away:
            msg = "away"
            raise StoreUnavailable(msg)
        self.parked += dead


class Handler:
    """Handles by a script: an error per call, or none."""

    consumer = "test.loop"
    topics = ("turn.events",)

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = list(errors)
        self.calls: list[list[int]] = []
        self.always: dict[int, Exception] = {}

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        return [None] * len(deliveries)

    async def handle(self, batch: Sequence[Delivery]) -> None:
        self.calls.append([delivery.offset for delivery in batch])
        for delivery in batch:
            if delivery.offset in self.always:
                raise self.always[delivery.offset]
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        del delivery, transaction, reason
        return ()


@dataclass
class Rig:
    loop: BatchLoop
    handler: Handler
    source: Source
    lot: Lot
    clock: Clock


def rig(handler: Handler) -> Rig:
    lot, source, clock = Lot(), Source(), Clock()
    loop = BatchLoop(
        handler,
        decode=decode,
        parking=cast("Parking", lot),
        clock=clock,
        metrics=make_metrics(),
    )
    loop.source = source
    return Rig(loop, handler, source, lot, clock)


PLACE = ("turn.events", 0)


async def test_a_batch_is_sorted_by_key_and_its_offsets_are_committed() -> None:
    r = rig(Handler())

    await r.loop([record(3, key=b"b"), record(1, key=b"b"), record(2, key=b"a")])
    await r.loop.commit()

    assert r.handler.calls == [[2, 1, 3]]
    assert r.source.commits == [{PLACE: 4}]


async def test_a_lost_database_repeats_the_batch_and_parks_nothing() -> None:
    away = StoreUnavailable("away")
    r = rig(Handler(away, away, None))

    await r.loop([record(0), record(1)])
    await r.loop.commit()

    assert r.handler.calls == [[0, 1]] * 3
    assert (r.lot.parked, r.source.seeks) == ([], [])
    assert r.source.commits == [{PLACE: 2}]


async def test_a_database_that_stays_away_seeks_back_after_the_budget() -> None:
    r = rig(Handler(*[StoreUnavailable("away")] * 1_000))

    await r.loop([record(7), record(5), record(9, partition=1)])
    await r.loop.commit()

    assert r.clock.seconds >= RETRY_BUDGET_S
    assert r.source.seeks == [{PLACE: 5, ("turn.events", 1): 9}]
    assert (r.source.commits, r.lot.parked) == ([], [])


async def test_a_record_that_is_to_blame_is_found_retried_and_parked() -> None:
    r = rig(Handler())
    r.handler.always = {1: ZeroDivisionError("the text of somebody's message")}

    await r.loop([record(0), record(1), record(2)])
    await r.loop.commit()

    assert r.handler.calls == [[0, 1, 2], [0], *[[1]] * MAX_RECORD_ATTEMPTS, [2]]
    assert [(d.offset, d.reason, d.attempts) for d in r.lot.parked] == [
        (1, "bug", MAX_RECORD_ATTEMPTS)
    ]
    assert "somebody" not in r.lot.parked[0].error
    assert r.source.commits == [{PLACE: 3}]


async def test_an_error_that_can_never_succeed_is_parked_at_once_by_its_code() -> None:
    r = rig(Handler())
    r.handler.always = {0: Terminal("never")}

    await r.loop([record(0)])

    assert len(r.handler.calls) == 2
    assert [(d.reason, d.error) for d in r.lot.parked] == [("terminal", "never")]


async def test_when_parking_fails_the_batch_is_read_again() -> None:
    r = rig(Handler())
    r.lot.is_away = True

    await r.loop([Raw(4, b"\xff")])
    await r.loop.commit()

    assert r.source.seeks == [{PLACE: 4}]
    assert r.source.commits == []


async def test_a_stray_cancellation_is_a_failure_and_a_real_one_goes_through() -> None:
    r = rig(Handler(asyncio.CancelledError(), None))

    await r.loop([record(0)])

    assert r.handler.calls == [[0], [0]]

    class Hanging(Handler):
        async def handle(self, batch: Sequence[Delivery]) -> None:
            del batch
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    task = asyncio.create_task(rig(Hanging()).loop([record(0)]))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_batch_that_outlives_its_epoch_marks_nothing() -> None:
    r = rig(Handler())
    inner = r.handler.handle

    async def handle(batch: Sequence[Delivery]) -> None:
        r.loop._epoch += 1
        await inner(batch)

    cast("Any", r.handler).handle = handle
    await r.loop([record(0)])
    await r.loop.commit()

    assert r.source.commits == []


async def test_offsets_that_could_not_be_stored_are_tried_again() -> None:
    r = rig(Handler())
    r.source.takes_commits = False

    await r.loop([record(0)])
    await r.loop.commit()
    r.source.takes_commits = True
    await r.loop.commit()
    await r.loop.commit()

    assert r.source.commits == [{PLACE: 1}, {PLACE: 1}]


async def test_a_loop_that_does_not_come_round_is_seen() -> None:
    r = rig(Handler())
    await r.loop([record(0)])
    assert r.loop.stalled_s == 0

    r.clock.seconds += 90
    assert r.loop.stalled_s == 90
