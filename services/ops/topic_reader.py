"""Reads a topic from a place to where it ended when the reading began, in no consumer group."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from libs.errors import QueueUnavailable
from libs.kafka.records import RawRecord
from services.ops.settings import OpsSettings
from services.ops.topics import admin_client, kafka_away, security_of

CONNECT_BOUND_S = 15.0
POLL_MS = 1_000  # a poll that brings nothing for so long is asked again
SILENCE_S = 30.0  # a broker that brings nothing for so long is away
MAX_BATCH = 500

Offsets = Mapping[int, int]
"""Partition -> offset of the next record."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is there to be read.

    Attributes:
        begins: Where each partition begins now; retention moves it.
    """

    begins: Offsets
    ends: Offsets

    def starts(self, places: Offsets) -> dict[int, int]:
        """Where reading goes on.

        A place beyond the end was kept before the topic lost its records, so it means nothing any
        more: that partition is read from its beginning.
        """
        return {
            p: begin if places.get(p, 0) > self.ends[p] else max(places.get(p, 0), begin)
            for p, begin in self.begins.items()
        }

    def count_from(self, places: Offsets) -> int:
        """Records between those places and the ends."""
        return sum(self.ends[p] - start for p, start in self.starts(places).items())


class TopicReader:
    """One topic; made by ``opened``."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, stretch: Stretch) -> None:
        self._consumer = consumer
        self._topic = topic
        self.stretch = stretch

    @classmethod
    @asynccontextmanager
    async def opened(cls, settings: OpsSettings, topic: str) -> AsyncIterator["TopicReader"]:
        """Connect and look where the topic ends.

        Raises:
            QueueUnavailable: No broker answered in time, or it has no such topic, or does not let
                this account read it.
        """
        bootstrap = settings.kafka_bootstrap_servers
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id="turnwire-ops",
            enable_auto_commit=False,
            **security_of(settings).client_arguments(),
        )
        try:
            async with asyncio.timeout(CONNECT_BOUND_S):
                await consumer.start()
                numbers = await _numbers(settings, topic)
                partitions = [TopicPartition(topic, number) for number in numbers]
                consumer.assign(partitions)
                begins = await consumer.beginning_offsets(partitions)
                ends = await consumer.end_offsets(partitions)
        except QueueUnavailable:
            await consumer.stop()
            raise
        except (KafkaError, TimeoutError, OSError) as error:
            await consumer.stop()
            raise kafka_away(bootstrap, error) from None
        try:
            stretch = Stretch(
                {p.partition: offset for p, offset in begins.items()},
                {p.partition: offset for p, offset in ends.items()},
            )
            yield cls(consumer, topic, stretch)
        finally:
            await consumer.stop()

    async def batches(self, places: Offsets) -> AsyncIterator[list[RawRecord]]:
        """Records from those places on to the ends, in batches; each partition in its order.

        Raises:
            QueueUnavailable: The broker went away.
        """
        ends, left = self.stretch.ends, self.stretch.starts(places)
        for number, offset in left.items():
            self._consumer.seek(TopicPartition(self._topic, number), offset)
        silent_s = 0.0
        while any(left[p] < ends[p] for p in ends):
            found = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=MAX_BATCH)
            batch = [
                r for records in found.values() for r in records if r.offset < ends[r.partition]
            ]
            for partition, records in found.items():
                left[partition.partition] = records[-1].offset + 1
            for number, offset in list(left.items()):  # gaps and markers are no records
                position = await self._consumer.position(TopicPartition(self._topic, number))
                left[number] = max(offset, position)
            silent_s = 0.0 if found else silent_s + POLL_MS / 1000
            if silent_s >= SILENCE_S:
                msg = f"Kafka brought nothing of {self._topic} for {SILENCE_S:.0f} s."
                raise QueueUnavailable(msg)
            if batch:
                yield batch


async def _numbers(settings: OpsSettings, topic: str) -> list[int]:
    """The partitions of a topic.

    Raises:
        QueueUnavailable: There is no such topic, or this account may not read it.
    """
    bootstrap = settings.kafka_bootstrap_servers
    async with admin_client(bootstrap, security_of(settings)) as admin:
        (described,) = await admin.describe_topics([topic])
    if described["error_code"] == TopicAuthorizationFailedError.errno:
        msg = (
            f"Kafka at {bootstrap} does not let this account read {topic}. Give it the rights of "
            "turnwire_ops, which follow from schemas/topics, or use that account."
        )
        raise QueueUnavailable(msg)
    numbers = sorted(int(one["partition"]) for one in described["partitions"])
    if not numbers:
        msg = f"Kafka at {bootstrap} has no topic {topic}. Run `turnwire topics apply`."
        raise QueueUnavailable(msg)
    return numbers
