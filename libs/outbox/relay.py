"""Brings committed outbox rows to Kafka, in order for each key, until the broker has them.

The fast way: rows that this process just committed are handed over in memory, sent at once, and
deleted inside the service's next transaction. The sure way: a sweep of the table finds what a crash
or a failure left. A row may be sent twice (a crash between acknowledgement and deletion); its event
id stays the same, and the consumer's inbox drops the repeat.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from libs.clock import Clock
from libs.errors import RecordTooLarge, StoreUnavailable
from libs.failpoints import failpoint
from libs.kafka.publisher import Publisher, Record
from libs.outbox.messages import BUCKETS, OutboxMessage, delete_statement
from libs.postgres import Database, Row, load_queries
from libs.telemetry.metrics import Metrics

MAX_HANDED = 20_000
"""Rows held in memory at most; what does not fit is left to the sweep."""

MAX_SENT_IDS = 50_000
"""Acknowledged ids remembered at most (9 MB), so that a sweep deletes such a row instead of sending
it again."""

REMEMBERED_S = 30.0
"""How long such an id is remembered: longer than the transaction that was to delete its row may
take. A sweep after that would have found the row, so there is none."""

SEND_BATCH = 500
"""Rows sent together; their acknowledgements are awaited together."""

SWEEP_S = 2.0
"""Age at which a row counts as left behind, and the pause between two sweeps."""

SWEEP_ROWS_PER_BUCKET = 60
"""Rows read from one bucket in one sweep; with 64 buckets under 4,000 rows in memory."""

JANITOR_S = 0.25
"""How long an acknowledged row waits for the service's next transaction to delete it."""

MAX_DELETES_PER_TRANSACTION = 2_000
"""Bounds what a service's own transaction carries along."""

TURNS_TO_THE_WIRE = 4
"""Turns of the event loop from a hand-over to the write: relay, producer, its sender, socket."""

RETRY_S = 0.5
"""Pause after a failed round, so that a missing broker is not asked in a tight loop."""

_SQL = load_queries("libs.outbox")


@dataclass(frozen=True, slots=True)
class _Row:
    id: int
    message: OutboxMessage


class Relay:
    """The one publisher of a service's outbox in this process."""

    def __init__(
        self, database: Database, publisher: Publisher, *, clock: Clock, metrics: Metrics
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._clock = clock
        self._metrics = metrics
        self._log = structlog.get_logger(__name__)
        self._fail_point = f"{database.schema}.relay.after_publish"
        self._lock_name = f"{database.schema}.outbox"
        self._session = database.session()
        self._own: list[int] = []
        self._handed: deque[_Row] = deque()
        self._behind: set[int] = set()
        self._wake = asyncio.Event()
        self._acknowledged: deque[tuple[int, float]] = deque()
        self._sent: OrderedDict[int, float] = OrderedDict()  # when acknowledged, oldest first
        self._is_moving = False

    @property
    def remembered(self) -> int:
        """Acknowledged ids in memory."""
        return len(self._sent)

    def hand_over(self, messages: Sequence[OutboxMessage], ids: Sequence[int]) -> None:
        """Send rows that were just committed; never blocks and cannot fail.

        Args:
            ids: What ``append_statement`` returned for ``messages``, in the same order.
        """
        for message, row_id in zip(messages, ids, strict=True):
            if len(self._handed) >= MAX_HANDED:
                # The sweep must come first for this bucket, or a later row would overtake it.
                self._behind.add(message.bucket)
                continue
            self._handed.append(_Row(row_id, message))
        self._wake.set()

    async def let_pass(self) -> None:
        """Let rows that were just handed over reach the wire before something less urgent runs."""
        for _ in range(TURNS_TO_THE_WIRE):
            await asyncio.sleep(0)

    def take_acknowledged(self) -> list[int]:
        """Ids for ``delete_statement`` in the caller's transaction.

        If that transaction fails the rows stay, and the sweep deletes them without sending again.
        """
        count = min(len(self._acknowledged), MAX_DELETES_PER_TRANSACTION)
        return [self._acknowledged.popleft()[0] for _ in range(count)]

    async def run(self) -> None:
        """Publish until cancelled; outages of Postgres or Kafka are waited out."""
        next_sweep_s = self._clock.monotonic()  # at once: a crash may have left rows
        try:
            while True:
                try:
                    is_due = self._clock.monotonic() >= next_sweep_s
                    if is_due or self._behind:
                        await self._sweep()
                    if is_due:
                        await self._measure()
                        self._forget()
                        next_sweep_s = self._clock.monotonic() + SWEEP_S
                    await self._send_handed()
                    await self._delete_stale()
                except StoreUnavailable as error:
                    self._own = []  # the connection that held the locks may be gone
                    self._log.warning("outbox.store_unavailable", reason=str(error))
                    await self._clock.sleep(RETRY_S)
                await self._pause(next_sweep_s)
        finally:
            await self._session.close()

    async def drain(self, *, timeout_s: float) -> None:
        """Send and delete what was handed over, at the end of the process."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_handed()
                await self._delete_stale(at_once=True)
        except (StoreUnavailable, TimeoutError):
            self._log.warning("outbox.drain_incomplete", left=len(self._handed))

    async def _pause(self, next_sweep_s: float) -> None:
        if self._behind:
            if not self._is_moving:
                await self._clock.sleep(RETRY_S)
            return
        wait_s = max(0.0, next_sweep_s - self._clock.monotonic())
        if self._acknowledged:
            wait_s = min(wait_s, self._janitor_due_s())
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _send_handed(self) -> None:
        self._wake.clear()
        while self._handed:
            rows = [self._handed.popleft() for _ in range(min(len(self._handed), SEND_BATCH))]
            # Two loops of one process may hand over in another order than they committed.
            rows.sort(key=lambda row: row.id)
            # A bucket that is behind is read from the table, in id order; never past it.
            await self._send([row for row in rows if row.message.bucket not in self._behind])

    async def _send(self, rows: Sequence[_Row]) -> int:
        """Send rows in order; how many the broker has. Buckets of the others are behind."""
        fresh = [row for row in rows if row.id not in self._sent]
        for row in rows:
            if row.id in self._sent:
                self._acknowledge(row.id)
        if not fresh:
            return len(rows)
        results = await self._publisher.publish([_record(row.message) for row in fresh])
        sent = 0
        for row, error in zip(fresh, results, strict=True):
            if isinstance(error, RecordTooLarge):
                await self._bury(row, error)
            elif error is not None:
                self._behind.add(row.message.bucket)
                self._log.warning(
                    "outbox.publish_failed", topic=row.message.topic, reason=error.code
                )
            elif row.message.bucket not in self._behind:
                self._acknowledge(row.id)
                sent += 1
        if sent:
            self._metrics.outbox_published_total.inc(sent)
            failpoint(self._fail_point)
        return len(rows) - len(fresh) + sent

    def _acknowledge(self, row_id: int) -> None:
        now_s = self._clock.monotonic()
        self._acknowledged.append((row_id, now_s))
        self._sent[row_id] = now_s
        self._sent.move_to_end(row_id)
        if len(self._sent) > MAX_SENT_IDS:
            self._sent.popitem(last=False)

    def _forget(self) -> None:
        """Forget ids whose rows are gone; a row that the last sweep found is acknowledged anew."""
        if self._behind:
            return  # it did not see all rows
        before_s = self._clock.monotonic() - REMEMBERED_S
        while self._sent and next(iter(self._sent.values())) < before_s:
            self._sent.popitem(last=False)

    async def _bury(self, row: _Row, error: RecordTooLarge) -> None:
        """Set a row aside that no broker will take, so that its bucket goes on."""
        await self._database.fetch(_SQL["bury"], {"id": row.id, "error": str(error)})
        self._log.error(
            "outbox.row_buried",
            outbox_id=row.id,
            topic=row.message.topic,
            type=row.message.type,
            size_bytes=error.size_bytes,
        )

    async def _sweep(self) -> None:
        await self._take_locks()
        self._is_moving = False
        behind = frozenset(self._behind)
        for buckets, older_than_s in (
            (behind.intersection(self._own), 0.0),
            (frozenset(self._own).difference(behind), SWEEP_S),
        ):
            if buckets:
                await self._sweep_buckets(sorted(buckets), older_than_s)
        foreign = behind.difference(self._own)
        if foreign:
            # Another relay holds their locks and catches up; until then they stay behind here.
            left = await self._database.fetch(_SQL["occupied"], {"buckets": sorted(foreign)})
            self._behind.difference_update(foreign.difference(row["bucket"] for row in left))

    async def _measure(self) -> None:
        status = (await self._database.fetch(_SQL["status"]))[0]
        self._metrics.outbox_pending.set(status["pending"])
        self._metrics.outbox_oldest_seconds.set(status["oldest_s"])

    async def _sweep_buckets(self, buckets: Sequence[int], older_than_s: float) -> None:
        found = await self._session.fetch(
            _SQL["pending"],
            {"own": list(buckets), "older_than_s": older_than_s, "limit": SWEEP_ROWS_PER_BUCKET},
        )
        counts = dict.fromkeys(buckets, 0)
        for row in found:
            counts[row["bucket"]] += 1
        catching_up = {bucket for bucket in buckets if bucket in self._behind}
        self._behind.difference_update(buckets)
        if await self._send([_row(row) for row in found]):
            self._is_moving = True
            while self._acknowledged:  # or the next round would read them again
                await self._delete_stale(at_once=True)
        full = {b for b, count in counts.items() if count == SWEEP_ROWS_PER_BUCKET}
        self._behind.update(full)
        if catching_up or found:
            self._log.info("outbox.swept", rows=len(found), behind=len(self._behind))

    async def _take_locks(self) -> None:
        """Lock the buckets that nobody holds; a lock ends with this relay's connection."""
        missing = sorted(set(range(BUCKETS)).difference(self._own))
        if missing:
            rows = await self._session.fetch(
                _SQL["try_lock"], {"buckets": missing, "lock_name": self._lock_name}
            )
            self._own = sorted({*self._own, *(row["bucket"] for row in rows)})

    def _janitor_due_s(self) -> float:
        """Seconds until the oldest acknowledged row is the janitor's; 0 when it is now."""
        return max(0.0, self._acknowledged[0][1] + JANITOR_S - self._clock.monotonic())

    async def _delete_stale(self, *, at_once: bool = False) -> None:
        """Delete acknowledged rows that no transaction of the service came along to delete."""
        if not self._acknowledged or (self._janitor_due_s() > 0 and not at_once):
            return
        ids = self.take_acknowledged()
        await self._database.fetch(*delete_statement(ids))


def _record(message: OutboxMessage) -> Record:
    return Record(
        topic=message.topic,
        key=message.key.encode(),
        value=message.payload,
        headers=tuple((name, value.encode()) for name, value in message.headers.items()),
    )


def _row(row: Row) -> _Row:
    message = OutboxMessage(
        event_id=row["event_id"],
        topic=row["topic"],
        key=row["key"],
        type=row["type"],
        headers=row["headers"],
        payload=row["payload"],
    )
    return _Row(row["id"], message)
