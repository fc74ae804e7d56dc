"""The envelope around every event, and its one encoding: JSON in the record's value.

Attribute names follow CloudEvents 1.0 where it has one. Inside a version only optional fields with
defaults are added; readers ignore what they do not know.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.errors import MalformedEvent, UnknownEvent, UnsupportedVersion

MAX_RECORD_BYTES = 900 * 1024
"""Limit of an encoded record, below the brokers' 1 MiB so that headers and framing fit."""

MAX_NESTING = 64
"""Deepest JSON a record may hold; a parser's stack is not the sender's to choose."""


class Data(BaseModel):
    """Payload of one event type in one version; frozen, tolerant of unknown fields."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

D = TypeVar("D", bound=Data, covariant=True)  # noqa: PLC0105 -- the short name reads better in Event[D]


@dataclass(frozen=True, slots=True)
class Event(Generic[D]):
    """One fact that a service told, or one request at the door.

    Attributes:
        id: Identity of the fact; consumers recognise a repeat by it.
        correlation_id: The turn it belongs to; a request without a turn names its conversation.
        causation_id: The event that caused this one.
        occurred_at: When the producer decided it, in UTC; never used for order.
        traceparent: W3C trace context of the turn.
        replay: Told again to rebuild a projection; handlers with effects refuse it.
    """

    id: UUID
    source: str
    tenant_id: UUID
    conversation_id: UUID
    correlation_id: UUID
    occurred_at: datetime
    data: D
    causation_id: UUID | None = None
    traceparent: str | None = None
    replay: bool = False

    @property
    def type(self) -> str:
        """Name of the event, in the past tense."""
        return self.data.TYPE

    @property
    def version(self) -> int:
        """Version of the data."""
        return self.data.VERSION

    @property
    def turn_id(self) -> UUID:
        """The turn this event belongs to."""
        return self.correlation_id


class Envelope(BaseModel):
    """The envelope as it stands in the record, before its data is read."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: UUID
    type: str = Field(max_length=100)
    version: int = Field(ge=1)
    source: str = Field(max_length=100)
    tenant_id: UUID
    conversation_id: UUID
    occurred_at: datetime
    correlation_id: UUID
    causation_id: UUID | None = None
    traceparent: str | None = Field(default=None, max_length=100)
    replay: bool = False
    data: dict[str, Any]


def encode(event: Event[Data]) -> bytes:
    """The record's value: JSON with the envelope's fields in a fixed order."""
    return orjson.dumps(
        {
            "id": event.id,
            "type": event.type,
            "version": event.version,
            "source": event.source,
            "tenant_id": event.tenant_id,
            "conversation_id": event.conversation_id,
            "occurred_at": event.occurred_at.astimezone(UTC),
            "correlation_id": event.correlation_id,
            "causation_id": event.causation_id,
            "traceparent": event.traceparent,
            "replay": event.replay,
            "data": event.data.model_dump(mode="json"),
        }
    )


def headers(event: Event[Data]) -> dict[str, str]:
    """The routing copy in the record's headers; the truth is the envelope in the value."""
    routing = {
        "ce_id": str(event.id),
        "ce_type": event.type,
        "ce_source": event.source,
        "event-version": str(event.version),
    }
    if event.traceparent is not None:
        routing["traceparent"] = event.traceparent
    return routing


class Codec:
    """Reads records as events, given the event types it shall know."""

    def __init__(self, known: tuple[type[Data], ...]) -> None:
        self._known = {(data.TYPE, data.VERSION): data for data in known}
        self._latest: dict[str, int] = {}
        for data in known:
            self._latest[data.TYPE] = max(data.VERSION, self._latest.get(data.TYPE, 0))

    def decode(self, raw: bytes | None) -> Event[Any]:
        """Read one record's value.

        Raises:
            MalformedEvent: Not JSON, nested too deeply, no envelope, or data that does not fit.
            UnknownEvent: A type that is not in this codec.
            UnsupportedVersion: A later version than this codec knows.
        """
        envelope = _envelope(raw)
        latest = self._latest.get(envelope.type)
        if latest is None:
            msg = "no event of that type is known here"
            raise UnknownEvent(msg)
        if envelope.version > latest:
            msg = f"version {envelope.version} of {envelope.type}; known up to {latest}"
            raise UnsupportedVersion(msg)
        data_model = self._known.get((envelope.type, envelope.version))
        if data_model is None:
            msg = f"version {envelope.version} of {envelope.type} was never published"
            raise MalformedEvent(msg)
        try:
            data = data_model.model_validate(envelope.data)
        except ValidationError as error:
            raise MalformedEvent(_where(error)) from None
        return Event(
            id=envelope.id,
            source=envelope.source,
            tenant_id=envelope.tenant_id,
            conversation_id=envelope.conversation_id,
            correlation_id=envelope.correlation_id,
            occurred_at=envelope.occurred_at,
            data=data,
            causation_id=envelope.causation_id,
            traceparent=envelope.traceparent,
            replay=envelope.replay,
        )


def _envelope(raw: bytes | None) -> Envelope:
    if raw is None or not raw:
        msg = "the record has no value"
        raise MalformedEvent(msg)
    if _is_nested_too_deeply(raw):
        msg = f"the record is nested deeper than {MAX_NESTING} levels"
        raise MalformedEvent(msg)
    if b"\\u0000" in raw and _has_nul_escape(raw):
        msg = "the record holds U+0000, which Postgres cannot store"
        raise MalformedEvent(msg)
    try:
        return Envelope.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError:
        msg = "the record is not JSON in UTF-8"
        raise MalformedEvent(msg) from None
    except ValidationError as error:
        raise MalformedEvent(_where(error)) from None


def _has_nul_escape(raw: bytes) -> bool:
    """A backslash of the text itself is escaped, so only an odd run of them makes u0000 a NUL."""
    start = raw.find(b"\\u0000")
    while start != -1:
        backslashes = 1
        while start - backslashes >= 0 and raw[start - backslashes] == ord("\\"):
            backslashes += 1
        if backslashes % 2 == 1:
            return True
        start = raw.find(b"\\u0000", start + 1)
    return False


def _is_nested_too_deeply(raw: bytes) -> bool:
    """Count open brackets outside strings, without parsing."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_NESTING:
        return False
    depth = 0
    for byte in _STRING.sub(b"", raw):
        if byte in b"[{":
            depth += 1
            if depth > MAX_NESTING:
                return True
        elif byte in b"]}":
            depth -= 1
    return False


def _where(error: ValidationError) -> str:
    """Which fields are wrong and how, without the values: they may be somebody's text."""
    places = [
        f"{'.'.join(str(part) for part in problem['loc'])}: {problem['type']}"
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return "the record does not fit its schema at " + "; ".join(places[:8])
