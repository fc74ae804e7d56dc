"""Sets records aside that will never be handled, so that their partition goes on.

The truth is the table ``dead_letters``; in the same transaction the record is mirrored to the topic
of dead letters for tools, and a turn that would wait for it for ever is ended.
"""

import base64
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias
from uuid import NAMESPACE_OID, UUID, uuid5

import orjson
import structlog

from libs.kafka.records import DeadRecord, Delivery
from libs.outbox import OutboxMessage, Relay, append_statement
from libs.postgres import Database, Statement, Transaction, load_queries
from libs.telemetry.metrics import Metrics
from schemas.envelope import MAX_RECORD_BYTES
from schemas.registry import DEAD_LETTER_SUFFIX

EndingOf: TypeAlias = Callable[[Delivery, Transaction, str], Awaitable[Sequence[OutboxMessage]]]
"""The events by which a service ends the turn of a record it parks; empty where none waits."""

DEAD_LETTER_TYPE = "dead_letter"
MAX_HEADER_BYTES = 8_192
"""Headers of a foreign producer kept at most; more is cut, the value is what matters."""

_SQL = load_queries("libs.kafka")


class Parking:
    """The dead letters of one consumer."""

    def __init__(
        self, database: Database, relay: Relay, *, consumer: str, metrics: Metrics
    ) -> None:
        self._database = database
        self._relay = relay
        self._consumer = consumer
        self._metrics = metrics
        self._log = structlog.get_logger(__name__)

    async def park(self, dead: Sequence[DeadRecord], *, ending_of: EndingOf) -> None:
        """Store records as they came, in one transaction; a repeat changes nothing.

        An event that was readable is recorded in the inbox as well: its fate is decided.
        """
        tenants = {d.delivery.event.tenant_id for d in dead if d.delivery is not None}
        mirrors = [mirror for record in dead if (mirror := _mirror(record)) is not None]
        mirrored = {mirror.event_id for mirror in mirrors}
        async with self._database.transaction(tenants) as transaction:
            messages = list(mirrors)
            for record in dead:
                if record.delivery is not None:
                    messages += await ending_of(record.delivery, transaction, record.reason)
            statements = [self._park_statement(dead, mirrored)]
            statements.append(append_statement(messages))
            rows = await transaction.commit_with(statements)
        self._relay.hand_over(messages, [row["id"] for row in rows[1]])
        for record in dead:
            self._metrics.dead_letters_total.labels(topic=record.topic, reason=record.reason).inc()
            self._log.error(
                "kafka.record_parked",
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                reason=record.reason,
                error=record.error,
                attempts=record.attempts,
            )

    def _park_statement(self, dead: Sequence[DeadRecord], mirrored: set[UUID]) -> Statement:
        events = [d.delivery.event if d.delivery is not None else None for d in dead]
        ids = [_dead_id(record) for record in dead]
        return _SQL["park"], {
            "consumer": self._consumer,
            "ids": ids,
            "tenant_ids": [event.tenant_id if event else None for event in events],
            "topics": [record.topic for record in dead],
            "partitions": [record.partition for record in dead],
            "offsets": [record.offset for record in dead],
            "keys": [record.key for record in dead],
            "headers": [_headers_json(record) for record in dead],
            "values": [record.value for record in dead],
            "event_ids": [event.id if event else None for event in events],
            "event_types": [event.type if event else None for event in events],
            "reasons": [record.reason for record in dead],
            "errors": [record.error for record in dead],
            "attempts": [record.attempts for record in dead],
            "mirrored": [dead_id in mirrored for dead_id in ids],
        }


def purge_statement(keep_s: float, *, max_rows: int) -> Statement:
    """Drop dead letters older than ``keep_s`` seconds, ``max_rows`` at most; rows tell how many."""
    return _SQL["purge"], {"keep_s": keep_s, "max_rows": max_rows}


def _dead_id(record: DeadRecord) -> UUID:
    """The same record gives the same id; after a topic was made anew its offsets repeat."""
    digest = hashlib.sha256(record.value or b"").hexdigest()
    place = f"{record.topic}/{record.partition}/{record.offset}/{digest}"
    return uuid5(NAMESPACE_OID, place)


def _mirror(record: DeadRecord) -> OutboxMessage | None:
    """The copy for the topic of dead letters; None where it would not fit into a record."""
    value = record.value or b""
    if len(value) > MAX_RECORD_BYTES:
        return None
    event = record.delivery.event if record.delivery is not None else None
    key = str(event.conversation_id) if event else f"{record.topic}-{record.partition}"
    return OutboxMessage(
        event_id=_dead_id(record),
        topic=record.topic + DEAD_LETTER_SUFFIX,
        key=key,
        type=DEAD_LETTER_TYPE,
        headers={
            "original-topic": record.topic,
            "original-partition": str(record.partition),
            "original-offset": str(record.offset),
            "reason": record.reason,
            "attempts": str(record.attempts),
        },
        payload=value,
    )


def _headers_json(record: DeadRecord) -> str:
    """Names and values as base64 pairs: neither has to be text."""
    pairs: list[list[str | None]] = []
    size_bytes = 0
    for name, value in record.headers:
        size_bytes += len(name) + len(value or b"")
        if size_bytes > MAX_HEADER_BYTES:
            break
        encoded_name = base64.b64encode(name.encode("utf-8", "surrogateescape")).decode()
        encoded_value = None if value is None else base64.b64encode(value).decode()
        pairs.append([encoded_name, encoded_value])
    return orjson.dumps(pairs).decode()
