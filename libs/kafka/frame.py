"""FastStream as the frame of a consumer, and our batch loop inside it.

FastStream keeps the consumer, its group, its life cycle and the AsyncAPI declaration; records come
raw, as one poll, and none of its parsing, injection or acknowledging is on the path.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    IllegalStateError,
    KafkaError,
    UnsupportedCodecError,
)
from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaMessage
from pydantic import BaseModel

from libs.kafka.internals import coordination_is_over, is_rejoining
from libs.kafka.loop import COMMIT_TIMEOUT_S, BatchLoop
from libs.kafka.outcomes import attempt
from libs.kafka.records import Partition
from libs.kafka.security import KafkaSecurity

POLL_TIMEOUT_MS = 1_000
"""Longest wait of one poll; records end it at once, so a shorter one gains nothing."""

MAX_POLL_RECORDS = 64
"""Records of one batch; larger ones lengthen the transaction more than they save."""

FETCH_WAIT_MS = 500
"""How long the broker keeps a request for which it has no record."""

GATHER_BYTES = 64 * 1024
"""Records of a consumer that gathers are sent at once when so many bytes wait."""

POLL_RETRY_S = 0.5
"""Pause after a poll that failed, so that a broken one is not repeated in a tight loop."""

METADATA_MAX_AGE_MS = 3_000
"""A member that joined while a lost topic was not made again yet has no partitions, and sees new
ones only with the next metadata; the library's five minutes would strand every turn."""

MAX_STALL_S = 120.0
"""A loop comes round every second; a batch with all its retries takes at most 30 s."""

LAG_TIMEOUT_S = 5.0
"""Longest wait for end offsets; for a topic that does not exist the client waits for ever."""


class KafkaRecordSource:
    """The consumer as the batch loop needs it."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._log = structlog.get_logger(__name__)

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        """Read assigned partitions again from these offsets."""
        assigned = self._consumer.assignment()
        for (topic, number), offset in offsets.items():
            partition = TopicPartition(topic, number)
            if partition in assigned:
                self._consumer.seek(partition, offset)

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """Store next offsets; see ``RecordSource.commit``."""
        assigned = self._consumer.assignment()
        wanted = {
            TopicPartition(*partition): offset
            for partition, offset in offsets.items()
            if TopicPartition(*partition) in assigned
        }
        if not wanted:
            return True
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await self._consumer.commit(wanted)
        except (CommitFailedError, IllegalStateError) as error:
            # That epoch is over. Retried, it could overwrite the new owner's offsets.
            self._log.info("kafka.offsets_forgotten", cause=type(error).__name__)
            return True
        except (TimeoutError, KafkaError) as error:
            self._log.warning("kafka.offsets_kept", cause=type(error).__name__)
            return False
        return True


class _Rebalance(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is untyped
    """Ends the loop's epoch before partitions are given to somebody else."""

    def __init__(self, loop: BatchLoop) -> None:
        self._loop = loop

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Finish, commit, forget; heartbeats go on meanwhile."""
        del revoked
        await self._loop.end_epoch()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Nothing: positions come from the group's offsets."""


class ConsumerSettings(BaseModel):
    """Time limits of group membership, in milliseconds."""

    session_timeout_ms: int = 8_000
    heartbeat_interval_ms: int = 2_000
    rebalance_timeout_ms: int = 60_000
    max_poll_interval_ms: int = 300_000


class Consumer:
    """One subscriber of a service: FastStream's declaration with our poll and our loop."""

    def __init__(
        self,
        broker: KafkaBroker,
        loop: BatchLoop,
        *,
        settings: ConsumerSettings,
        event: type[BaseModel],
        gather_ms: int = 0,
    ) -> None:
        """``gather_ms``: how long the broker may hold records back to send more of them at once."""
        self._loop = loop
        self._log = structlog.get_logger(__name__).bind(consumer=loop.handler.consumer)
        self._client: AIOKafkaConsumer | None = None
        name = loop.handler.consumer
        subscriber = broker.subscriber(
            *loop.handler.topics,
            group_id=name,
            batch=True,
            ack_policy=AckPolicy.MANUAL,
            no_reply=True,
            parser=self._parse,
            decoder=_same,
            listener=_Rebalance(loop),
            auto_offset_reset="earliest",
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            fetch_max_wait_ms=gather_ms or FETCH_WAIT_MS,
            fetch_min_bytes=GATHER_BYTES if gather_ms else 1,
            max_partition_fetch_bytes=2 * 1024 * 1024,
            # The assignor keeps its memory in its class, so every subscriber needs its own.
            partition_assignment_strategy=[
                type(f"Sticky_{name.replace('.', '_')}", (StickyPartitionAssignor,), {})
            ],
        )

        self._subscriber = cast("Any", subscriber)  # two of its methods are replaced below

        async def handle(batch: Any) -> None:
            await loop(batch.raw_message)

        handle.__name__ = name.replace(".", "_").replace("-", "_")
        handle.__annotations__ = {"batch": event, "return": None}  # read by AsyncAPI only
        self._subscriber.get_msg = self._poll
        self._subscriber.consume_one = self._consume
        self._subscriber(handle)

    @property
    def loop(self) -> BatchLoop:
        """The batch loop of this subscriber."""
        return self._loop

    async def _parse(self, records: Any) -> KafkaMessage:
        return KafkaMessage(
            raw_message=records,
            body=b"",
            correlation_id="-",
            message_id="-",
            consumer=self._subscriber.consumer,
        )

    async def _poll(self, consumer: AIOKafkaConsumer) -> tuple[Any, ...]:
        self._loop.note_turn()
        if self._loop.source is None or self._client is not consumer:
            self._client = consumer
            self._loop.source = KafkaRecordSource(consumer)
        try:
            found = await consumer.getmany(timeout_ms=POLL_TIMEOUT_MS, max_records=MAX_POLL_RECORDS)
        except UnicodeDecodeError:
            await self._step_over_unreadable(consumer)
            return ()
        except (ConsumerStoppedError, UnsupportedCodecError):
            raise
        except KafkaError as error:
            self._log.warning("kafka.poll_failed", cause=type(error).__name__)
            await asyncio.sleep(POLL_RETRY_S)
            return ()
        if not found:
            await self._loop.commit()
        return tuple(chain.from_iterable(found.values()))

    async def _consume(self, records: Sequence[Any]) -> None:
        if self._subscriber.running:
            with self._subscriber.lock:  # FastStream's stop waits for this lock
                await self._loop(records)

    async def _step_over_unreadable(self, consumer: AIOKafkaConsumer) -> None:
        """Find the record whose header name is not UTF-8, park it, go on behind it.

        ``getmany`` raised it and threw away what other partitions had delivered, so all of them are
        read again from what this loop has finished.
        """
        await self._loop.commit()
        for partition in consumer.assignment():
            committed = await asyncio.wait_for(consumer.committed(partition), COMMIT_TIMEOUT_S)
            if committed is not None:
                consumer.seek(partition, committed)
            else:
                starts = await asyncio.wait_for(
                    consumer.beginning_offsets([partition]), COMMIT_TIMEOUT_S
                )
                consumer.seek(partition, starts[partition])
        for partition in sorted(consumer.assignment()):
            await self._read_one_by_one(consumer, partition)

    async def _read_one_by_one(self, consumer: AIOKafkaConsumer, partition: TopicPartition) -> None:
        for _ in range(MAX_POLL_RECORDS * 16):  # bounded; the next poll goes on where this stops
            position = await consumer.position(partition)
            try:
                found = await consumer.getmany(partition, timeout_ms=POLL_TIMEOUT_MS, max_records=1)
            except UnicodeDecodeError:
                error = await attempt(
                    self._loop.park_unreadable((partition.topic, partition.partition), position)
                )
                if error is not None:
                    consumer.seek(partition, position)
                    await asyncio.sleep(POLL_RETRY_S)
                    return
                self._log.error("kafka.unreadable_header", topic=partition.topic, offset=position)
                consumer.seek(partition, position + 1)
                continue
            records = tuple(chain.from_iterable(found.values()))
            if not records:
                return
            await self._loop(records)

    async def stop_reading(self) -> None:
        """Take no more records, finish the running batch and store its offsets.

        Comes before the broker stops: a commit sent after that could be accepted for an empty group
        and overwrite what the next member has stored.
        """
        self._subscriber.running = False
        await self._loop.end_epoch()

    async def lag_records(self) -> dict[str, int]:
        """Records that wait, by topic; partitions of other members do not count."""
        consumer = self._subscriber.consumer
        if consumer is None or not consumer.assignment():
            return {}
        assigned = consumer.assignment()
        ends = await asyncio.wait_for(consumer.end_offsets(list(assigned)), LAG_TIMEOUT_S)
        lag: dict[str, int] = {}
        for partition, end in ends.items():
            position = await asyncio.wait_for(consumer.position(partition), LAG_TIMEOUT_S)
            lag[partition.topic] = lag.get(partition.topic, 0) + max(0, end - position)
        return lag

    @property
    def is_assigned(self) -> bool:
        """Whether the group gave this member something, or may simply have nothing left for it."""
        consumer = self._subscriber.consumer
        return consumer is not None and not is_rejoining(consumer)

    @property
    def ailment(self) -> str | None:
        """Why only a restart helps this consumer, in a few words; None while it is well."""
        consumer = self._subscriber.consumer
        if consumer is None:
            return None
        if coordination_is_over(consumer):
            return "its group membership has ended"
        if self._loop.stalled_s > MAX_STALL_S:
            return f"its loop has not come round for {self._loop.stalled_s:.0f} s"
        return None


async def _same(message: Any) -> Any:
    return message


def make_broker(
    bootstrap: str, *, client_id: str, security: KafkaSecurity | None = None
) -> KafkaBroker:
    """FastStream's broker with the settings that its defaults get wrong for us."""
    return KafkaBroker(
        bootstrap,
        client_id=client_id,
        allow_auto_create_topics=False,
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
        enable_idempotence=True,
        acks="all",
        graceful_timeout=40,  # above the longest batch with its retries
        apply_types=False,
        logger=None,
        security=security.faststream() if security is not None else None,
    )
