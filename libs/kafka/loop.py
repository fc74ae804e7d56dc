"""The batch loop: what a poll brought becomes one batch, one decision, one transaction.

Serial batches keep the order of every key without lanes. The loop decides only about failure: a
record that is to blame is parked after bounded retries, a lost database connection repeats the
batch, and whatever else goes wrong seeks back to the batch's first offsets.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog

from libs.clock import Clock
from libs.errors import ChatError, StoreUnavailable, Terminal
from libs.kafka.outcomes import attempt
from libs.kafka.parking import Parking
from libs.kafka.records import DeadRecord, Delivery, Partition, RawRecord, RecordSource
from libs.outbox import OutboxMessage
from libs.postgres import Transaction
from libs.retry import Backoff
from libs.telemetry.metrics import Metrics
from schemas.envelope import Event
from schemas.errors import UnreadableRecord

RETRY_BUDGET_S = 30.0
"""Total time for one record, or for a batch without a database; then it is parked or read again.
It must stay below the consumer's rebalance time-out of 60 s."""

RECORD_BACKOFF = Backoff(base_s=0.05, cap_s=5.0)
SEEK_BACKOFF = Backoff(base_s=0.2, cap_s=5.0)
"""A seek brings the same batch back at once: without a pause, thousands of times a second."""

MAX_RECORD_ATTEMPTS = 6
"""Tries of one record by itself; with the backoff they spread over about 1.5 s."""

COMMIT_EVERY_S = 1.0
"""How much work a crash repeats at most; repeats are cheap, commits are not."""

COMMIT_TIMEOUT_S = 5.0
"""The client retries a commit for ever when the broker is away."""

BUG = "bug"
"""Reason of a record whose handler raised an error that nobody foresaw."""


class BatchHandler(Protocol):
    """What a service does with the records of its topics."""

    @property
    def consumer(self) -> str:
        """Name of the consumer group, and of the inbox it fills."""
        ...

    @property
    def topics(self) -> Sequence[str]:
        """Topics it reads."""
        ...

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        """For each delivery the reason why it may not be handled at all, or None.

        Such a record is parked at once and never ends a turn.
        """
        ...

    async def handle(self, batch: Sequence[Delivery]) -> None:
        """Read, decide, write: one transaction for all, ordered by key, then offset.

        Idempotent: the same records may come again, alone or in other company.
        """
        ...

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        """Inside the parking transaction: the events that end the turn of a parked record."""
        ...


class BatchLoop:
    """One consumer group member: handles polls one after the other, and keeps its offsets."""

    def __init__(
        self,
        handler: BatchHandler,
        *,
        decode: Callable[[bytes | None], Event[Any]],
        parking: Parking,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._handler = handler
        self._decode = decode
        self._parking = parking
        self._clock = clock
        self._metrics = metrics
        self._log = structlog.get_logger(__name__).bind(consumer=handler.consumer)
        self._busy = asyncio.Lock()
        self._epoch = 0
        self._done: dict[Partition, int] = {}
        self._committed_at_s = clock.monotonic()
        self._failures = 0
        self.source: RecordSource | None = None
        self._turned_at_s = clock.monotonic()

    def note_turn(self) -> None:
        """The poll loop came round: it is alive, whether or not there was something to read."""
        self._turned_at_s = self._clock.monotonic()

    @property
    def stalled_s(self) -> float:
        """Seconds since the loop last came round; grows when a handler waits for ever."""
        return self._clock.monotonic() - self._turned_at_s

    @property
    def handler(self) -> BatchHandler:
        """The handler this loop feeds."""
        return self._handler

    async def __call__(self, records: Sequence[RawRecord]) -> None:
        """Handle one poll. Nothing but the task's own cancellation leaves here."""
        async with self._busy:
            epoch = self._epoch
            error = await attempt(self._process(records))
            if error is None:
                self._failures = 0
                self._mark(records, epoch)
            else:
                await self._seek_back(records, epoch, error)
        self.note_turn()
        if self._clock.monotonic() - self._committed_at_s >= COMMIT_EVERY_S:
            await self.commit()

    async def handle_again(self, record: RawRecord) -> DeadRecord | None:
        """Handle a record that had been set aside, on behalf of an operator; parks nothing.

        Returns:
            None once it is handled; otherwise the record with the reason why it still cannot be.

        Raises:
            StoreUnavailable: No database; the record is to be tried again.
        """
        async with self._busy:
            good, dead = self._read([record])
            if dead:
                return dead[0]
            (reason,) = await self._handler.screen(good)
            if reason is not None:
                text = "the record may not be handled: " + reason
                return _dead_delivery(good[0], reason, text, 0)
            error = await attempt(self._handler.handle(good))
        if error is None:
            return None
        if isinstance(error, StoreUnavailable):
            raise error
        code, text = _blame(error)
        return _dead_delivery(good[0], code, text, 1)

    async def park_unreadable(self, partition: Partition, offset: int) -> None:
        """Park a record that the client library itself cannot read; its bytes are unknown."""
        topic, number = partition
        dead = DeadRecord(
            topic=topic,
            partition=number,
            offset=offset,
            key=None,
            headers=(),
            value=None,
            reason="unreadable",
            error="a header name is not UTF-8; the client library cannot hand the record out",
        )
        await self._parking.park([dead], ending_of=self._handler.ending_of)
        self._done[partition] = max(self._done.get(partition, 0), offset + 1)

    async def commit(self) -> None:
        """Store the offsets of finished work; what cannot be stored now is tried again later."""
        self._committed_at_s = self._clock.monotonic()
        if not self._done or self.source is None:
            return
        offsets = dict(self._done)
        if await self.source.commit(offsets):
            for partition, offset in offsets.items():
                if self._done.get(partition) == offset:
                    del self._done[partition]

    async def end_epoch(self) -> None:
        """Before partitions go away: finish the running batch, store offsets, forget the rest."""
        async with self._busy:
            await self.commit()
            self._epoch += 1
            self._done.clear()

    async def _process(self, records: Sequence[RawRecord]) -> None:
        ordered = sorted(records, key=lambda record: (record.key or b"", record.offset))
        good, dead = self._read(ordered)
        if dead:
            await self._parking.park(dead, ending_of=self._handler.ending_of)
        if good:
            good = await self._screen(good)
        if good:
            started_s = self._clock.monotonic()
            await self._handle_together(good)
            self._metrics.kafka_batch_records.observe(len(good))
            self._metrics.kafka_batch_seconds.observe(self._clock.monotonic() - started_s)

    def _read(self, records: Sequence[RawRecord]) -> tuple[list[Delivery], list[DeadRecord]]:
        good: list[Delivery] = []
        dead: list[DeadRecord] = []
        for record in records:
            try:
                event = self._decode(record.value)
            except UnreadableRecord as error:
                dead.append(_dead(record, error.reason, str(error)))
                continue
            good.append(
                Delivery(
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    key=record.key,
                    headers=tuple(record.headers),
                    value=record.value or b"",
                    event=event,
                )
            )
        return good, dead

    async def _screen(self, deliveries: list[Delivery]) -> list[Delivery]:
        verdicts = list(await self._handler.screen(deliveries))
        refused = [
            _dead_delivery(delivery, reason, "the record may not be handled: " + reason, 0)
            for delivery, reason in zip(deliveries, verdicts, strict=True)
            if reason is not None
        ]
        if refused:
            await self._parking.park(refused, ending_of=_ends_nothing)
        return [d for d, reason in zip(deliveries, verdicts, strict=True) if reason is None]

    async def _handle_together(self, batch: Sequence[Delivery]) -> None:
        deadline_s = self._clock.monotonic() + RETRY_BUDGET_S
        failures = 0
        while True:
            error = await attempt(self._handler.handle(batch))
            if error is None:
                return
            failures += 1
            if not isinstance(error, StoreUnavailable):
                break
            # No record's fault: never one by one, never parked. The outcome may even be a commit.
            if self._clock.monotonic() >= deadline_s:
                raise error
            self._log.warning("kafka.batch_repeated", reason=str(error), failures=failures)
            await self._clock.sleep(RECORD_BACKOFF.delay_s(failures, jitter=random.random()))
        # The log writes an error's type and place, never its text: that may quote a record.
        self._log.warning(
            "kafka.batch_split", records=len(batch), error=_name(error), exc_info=error
        )
        for delivery in batch:
            await self._handle_alone(delivery)

    async def _handle_alone(self, delivery: Delivery) -> None:
        deadline_s = self._clock.monotonic() + RETRY_BUDGET_S
        for tries in range(1, MAX_RECORD_ATTEMPTS + 1):
            error = await attempt(self._handler.handle([delivery]))
            if error is None:
                return
            if isinstance(error, StoreUnavailable):
                raise error
            is_over = tries == MAX_RECORD_ATTEMPTS or self._clock.monotonic() >= deadline_s
            if is_over or isinstance(error, Terminal):
                await self._park_alone(delivery, error, tries)
                return
            await self._clock.sleep(RECORD_BACKOFF.delay_s(tries, jitter=random.random()))

    async def _park_alone(self, delivery: Delivery, error: Exception, tries: int) -> None:
        reason, text = _blame(error)
        dead = _dead_delivery(delivery, reason, text, tries)
        failure = await attempt(self._parking.park([dead], ending_of=self._handler.ending_of))
        if isinstance(failure, StoreUnavailable):
            raise failure
        if failure is not None:
            # What breaks its handler may break the end of its turn as well. The partition goes on
            # all the same; the turn is left to its deadline.
            self._log.error("kafka.ending_failed", reason=reason, error=_name(failure))
            await self._parking.park([dead], ending_of=_ends_nothing)

    def _mark(self, records: Sequence[RawRecord], epoch: int) -> None:
        if epoch != self._epoch:
            return  # the partitions may be somebody else's by now
        for partition, offset in _next_offsets(records).items():
            self._done[partition] = offset

    async def _seek_back(self, records: Sequence[RawRecord], epoch: int, error: Exception) -> None:
        self._failures += 1
        self._log.error(
            "kafka.batch_failed", error=_name(error), failures=self._failures, exc_info=error
        )
        if epoch == self._epoch and self.source is not None:
            self.source.seek(_first_offsets(records))
        await self._clock.sleep(SEEK_BACKOFF.delay_s(self._failures, jitter=random.random()))


async def _ends_nothing(
    _delivery: Delivery, _transaction: Transaction, _reason: str
) -> Sequence[OutboxMessage]:
    return ()


def _blame(error: Exception) -> tuple[str, str]:
    """Reason and text of a dead letter: only a foreseen error's text is safe to be kept."""
    if isinstance(error, ChatError):
        return error.code, str(error)
    return BUG, _name(error)


def _name(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _first_offsets(records: Sequence[RawRecord]) -> Mapping[Partition, int]:
    first: dict[Partition, int] = {}
    for record in records:
        place = (record.topic, record.partition)
        first[place] = min(record.offset, first.get(place, record.offset))
    return first


def _next_offsets(records: Sequence[RawRecord]) -> Mapping[Partition, int]:
    following: dict[Partition, int] = {}
    for record in records:
        place = (record.topic, record.partition)
        following[place] = max(record.offset + 1, following.get(place, 0))
    return following


def _dead(record: RawRecord, reason: str, error: str) -> DeadRecord:
    return DeadRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        headers=tuple(record.headers),
        value=record.value,
        reason=reason,
        error=error,
    )


def _dead_delivery(delivery: Delivery, reason: str, error: str, tries: int) -> DeadRecord:
    return DeadRecord(
        topic=delivery.topic,
        partition=delivery.partition,
        offset=delivery.offset,
        key=delivery.key,
        headers=delivery.headers,
        value=delivery.value,
        reason=reason,
        error=error,
        delivery=delivery,
        attempts=tries,
    )
