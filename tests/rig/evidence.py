"""What a lane can lay before the checker beside ledgers and rows, and how it is gathered."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaConsumer, TopicPartition

from libs.postgres.database import LOCK_TIMEOUT_MS
from libs.redis.live_stream import MAX_ENTRIES, RedisLiveStream
from schemas.registry import CONTEXT_EVENTS, GENERATION_EVENTS, TURN_EVENTS
from schemas.streams import BEFORE_ALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path
    from uuid import UUID

    from libs.catalogue import Catalogue
    from schemas.streams import Entry

INNER_TOPICS = (TURN_EVENTS, CONTEXT_EVENTS, GENERATION_EVENTS)
"""Topics between our own services: ids, counts and reasons, never a text."""

READ_TIMEOUT_MS = 2_000
"""Wait for one more batch of a topic whose end is known."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything here may be None: then what rests on it is reported as not checked.

    Attributes:
        topics: Raw records of the inner topics, by topic.
        streams: What Redis holds of each turn's stream, in the order of the ids.
        prompts: Bodies of all requests that the provider got.
        open_calls: Requests that the provider is still answering.
        logs: Log files of the services; no text of anybody may stand in them.
        catalogue: The models of the run; None means the one that ships.
        policy_text: The operator's text at the head of every prompt.
        overlap_s: So much may the stored times of two turns overlap that did not run at once: a
            time is that of a transaction's beginning, and it may have waited for a lock.
    """

    topics: Mapping[str, Sequence[bytes]] | None = None
    streams: Mapping[UUID, Sequence[Entry]] | None = None
    prompts: Sequence[bytes] | None = None
    open_calls: int | None = None
    logs: Sequence[Path] | None = None
    catalogue: Catalogue | None = None
    policy_text: str = ""
    overlap_s: float = LOCK_TIMEOUT_MS / 1000


Ends = Mapping[tuple[str, int], int]
"""Where each partition, by topic and number, ended at some moment."""


async def topic_ends(bootstrap_servers: str) -> Ends:
    """Where the inner topics end now."""
    async with _consumer(bootstrap_servers) as consumer:
        ends = await consumer.end_offsets(_partitions(consumer))
        return {(part.topic, part.partition): end for part, end in ends.items()}


async def read_topics(
    bootstrap_servers: str, *, after: Ends | None = None
) -> dict[str, list[bytes]]:
    """What the inner topics hold now, by topic; order holds inside a partition.

    Args:
        after: Only what was told since then; a topic that was emptied meanwhile is read whole.
    """
    async with _consumer(bootstrap_servers) as consumer:
        partitions = _partitions(consumer)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        begins = await consumer.beginning_offsets(partitions)
        found: dict[str, list[bytes]] = {topic: [] for topic in INNER_TOPICS}
        for part in partitions:
            wanted = (after or {}).get((part.topic, part.partition), 0)
            consumer.seek(part, wanted if begins[part] <= wanted <= ends[part] else begins[part])
            while await consumer.position(part) < ends[part]:
                batch = await consumer.getmany(part, timeout_ms=READ_TIMEOUT_MS)
                found[part.topic] += [one.value for one in batch.get(part, []) if one.value]
        return found


@asynccontextmanager
async def _consumer(bootstrap_servers: str) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(*INNER_TOPICS, bootstrap_servers=bootstrap_servers, group_id=None)
    await consumer.start()
    try:
        consumer.unsubscribe()
        yield consumer
    finally:
        await consumer.stop()


def _partitions(consumer: AIOKafkaConsumer) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in INNER_TOPICS
        for number in sorted(consumer.partitions_for_topic(topic) or ())
    ]


async def read_streams(url: str, turn_ids: Sequence[UUID]) -> dict[UUID, list[Entry]]:
    """What Redis still holds of these turns' streams; a turn without a stream is left out."""
    found: dict[UUID, list[Entry]] = {}
    async with RedisLiveStream.open(url) as live:
        for turn_id in turn_ids:
            entries = await live.read(turn_id, BEFORE_ALL, MAX_ENTRIES)
            if entries:
                found[turn_id] = entries
    return found
