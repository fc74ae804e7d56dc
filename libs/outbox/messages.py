"""Events as outbox rows, and the statements that write and delete them."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import orjson

from libs.errors import RecordTooLarge
from libs.postgres import Statement, load_queries
from schemas.envelope import MAX_RECORD_BYTES, Data, Event, encode, headers

BUCKETS = 64
"""Share of the keys that one relay lock covers; never changed, the number stands in the rows."""

_SQL = load_queries("libs.outbox")


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """One record that waits for the broker's acknowledgement.

    Attributes:
        key: The conversation's id; it chooses partition and bucket.
        headers: Names and ASCII values.
        payload: The record's value.
    """

    event_id: UUID
    topic: str
    key: str
    type: str
    headers: Mapping[str, str]
    payload: bytes

    @property
    def bucket(self) -> int:
        """The relay lock under which this row is published."""
        return zlib.crc32(self.key.encode()) % BUCKETS


def outbox_message(event: Event[Data], topic: str) -> OutboxMessage:
    """The row of an event.

    Raises:
        RecordTooLarge: Its encoding is above ``MAX_RECORD_BYTES``; such a row would block its
            bucket, so the writer is told before anything is written.
    """
    payload = encode(event)
    if len(payload) > MAX_RECORD_BYTES:
        raise RecordTooLarge(size_bytes=len(payload), limit_bytes=MAX_RECORD_BYTES)
    return OutboxMessage(
        event_id=event.id,
        topic=topic,
        key=str(event.conversation_id),
        type=event.type,
        headers=headers(event),
        payload=payload,
    )


def append_statement(messages: Sequence[OutboxMessage]) -> Statement:
    """Write rows under the locks of their keys; rows ``id`` come back in the order given."""
    return _SQL["append"], {
        "buckets": [message.bucket for message in messages],
        "topics": [message.topic for message in messages],
        "keys": [message.key for message in messages],
        "event_ids": [message.event_id for message in messages],
        "types": [message.type for message in messages],
        "headers": [orjson.dumps(dict(message.headers)).decode() for message in messages],
        "payloads": [message.payload for message in messages],
    }


def closing_statements(
    messages: Sequence[OutboxMessage], acknowledged: Sequence[int]
) -> list[Statement]:
    """What a transaction of the service writes last; nothing to delete or tell costs nothing.

    Where there are messages the very last statement is their ``append_statement``.
    """
    closing = [delete_statement(acknowledged)] if acknowledged else []
    return [*closing, append_statement(messages)] if messages else closing


def delete_statement(ids: Sequence[int]) -> Statement:
    """Delete rows that the broker has acknowledged."""
    return _SQL["delete"], {"ids": list(ids)}
