"""Sends records to Kafka and waits until the brokers have them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError

from libs.errors import ChatError, QueueUnavailable, RecordTooLarge
from libs.kafka.internals import close_producer_hard
from libs.kafka.security import KafkaSecurity

MAX_REQUEST_BYTES = 1_000_000
"""Below the brokers' message.max.bytes of 1 MiB: a refused record breaks its partition's sequence,
so a record that is too large must be found here."""

SEND_TIMEOUT_S = 30.0
"""Longest wait for an acknowledgement before the producer is thrown away."""

CLOSE_TIMEOUT_S = 5.0
"""Longest wait for an orderly stop; a missing broker would hold it for ever."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record to send."""

    topic: str
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


class Publisher(Protocol):
    """Sends records in the order given."""

    async def publish(self, records: Sequence[Record]) -> list[ChatError | None]:
        """Send and wait for all acknowledgements.

        Returns:
            For each record, in order: None when the brokers have it; ``RecordTooLarge`` when they
            never will; ``QueueUnavailable`` when that is unknown. Records of one partition are
            stored in order; a later one may be stored though an earlier one is unknown.
        """
        ...


class KafkaPublisher:
    """Publishes through one idempotent producer, made anew after any failure."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str,
        security: KafkaSecurity | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._security = security or KafkaSecurity()
        self._timeout_s = timeout_s
        self._producer: AIOKafkaProducer | None = None
        self._building = asyncio.Lock()
        self._log = structlog.get_logger(__name__)
        self.rebuilds = 0

    @property
    def is_connected(self) -> bool:
        """Whether a producer is ready; it may still meet a broker that is gone."""
        return self._producer is not None

    async def start(self) -> None:
        """Connect ahead of the first record.

        Raises:
            QueueUnavailable: No broker answered in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._ready()
        except (KafkaError, TimeoutError) as error:
            msg = f"Kafka at {self._bootstrap} does not answer: {type(error).__name__}"
            raise QueueUnavailable(msg) from error

    async def stop(self) -> None:
        """Wait for what is on its way, within a bound, and disconnect."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await producer.stop()
        except (KafkaError, TimeoutError):
            await close_producer_hard(producer)

    async def publish(self, records: Sequence[Record]) -> list[ChatError | None]:
        """See ``Publisher.publish``; bounded by the publisher's time-out."""
        results: list[ChatError | None] = [None] * len(records)
        acknowledgements: list[tuple[int, asyncio.Future[Any]]] = []
        producer: AIOKafkaProducer | None = None
        failure: str | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                producer = await self._ready()
                for place, record in enumerate(records):
                    size_bytes = len(record.value) + len(record.key)
                    if size_bytes > MAX_REQUEST_BYTES:
                        results[place] = RecordTooLarge(
                            size_bytes=size_bytes, limit_bytes=MAX_REQUEST_BYTES
                        )
                        continue
                    future = await producer.send(
                        record.topic, record.value, key=record.key, headers=list(record.headers)
                    )
                    acknowledgements.append((place, future))
                await asyncio.wait([future for _, future in acknowledgements] or [_done()])
        except TimeoutError:
            failure = f"no acknowledgement within {self._timeout_s:g} s"
        except (KafkaError, MessageSizeTooLargeError) as error:
            failure = type(error).__name__
        sent = {place for place, _ in acknowledgements}
        for place, future in acknowledgements:
            results[place] = _result(future)
        if failure is not None:
            for place, result in enumerate(results):
                if result is None and place not in sent:
                    results[place] = QueueUnavailable(f"Kafka did not take the record: {failure}")
        if producer is not None and any(isinstance(r, QueueUnavailable) for r in results):
            await self._discard(producer)
        return results

    async def _ready(self) -> AIOKafkaProducer:
        if self._producer is not None:
            return self._producer
        async with self._building:
            if self._producer is None:
                producer = AIOKafkaProducer(
                    bootstrap_servers=self._bootstrap,
                    client_id=self._client_id,
                    enable_idempotence=True,
                    acks="all",
                    linger_ms=0,
                    max_batch_size=131_072,
                    max_request_size=1_048_576,
                    request_timeout_ms=30_000,
                    metadata_max_age_ms=60_000,
                    **self._security.client_arguments(),
                )
                try:
                    await producer.start()
                except BaseException:
                    await close_producer_hard(producer)
                    raise
                self._producer = producer
        return self._producer

    async def _discard(self, producer: AIOKafkaProducer) -> None:
        """Throw a producer away that failed: its sequence numbers cannot be trusted any more."""
        if self._producer is producer:
            self._producer = None
            self.rebuilds += 1
            self._log.warning("kafka.producer_rebuilt", rebuilds=self.rebuilds)
            await close_producer_hard(producer)


def _result(future: "asyncio.Future[Any]") -> ChatError | None:
    if not future.done():
        return QueueUnavailable("Kafka did not acknowledge the record in time")
    if future.cancelled():
        return QueueUnavailable("the producer was closed before the acknowledgement")
    error = future.exception()
    if error is None:
        return None
    return QueueUnavailable(f"Kafka did not take the record: {type(error).__name__}")


def _done() -> "asyncio.Future[None]":
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


class MemoryPublisher:
    """The twin: keeps what was sent, in order; failures are scripted."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_away = False

    async def publish(self, records: Sequence[Record]) -> list[ChatError | None]:
        """Store all records, or say that none could be sent."""
        results: list[ChatError | None] = []
        for record in records:
            size_bytes = len(record.value) + len(record.key)
            if self.is_away:
                results.append(QueueUnavailable("the memory publisher is away"))
            elif size_bytes > MAX_REQUEST_BYTES:
                results.append(RecordTooLarge(size_bytes=size_bytes, limit_bytes=MAX_REQUEST_BYTES))
            else:
                self.records.append(record)
                results.append(None)
        return results
