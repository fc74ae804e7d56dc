"""What a client sent and received, kept by the client itself; the checker believes nobody else."""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from schemas.streams import TERMINAL_ATTEMPT, EntryId

CANARY = re.compile(r"canary-[0-9a-f]{16}")
"""Every tenant of a run says its own in all it says; whoever else sees it was shown too much."""


def canary_of(tenant_id: UUID) -> str:
    """The string that only this tenant's texts hold."""
    return f"canary-{tenant_id.hex[-16:]}"


def marked(text: str, tenant_id: UUID) -> str:
    """The text with the tenant's canary at its end, unless it stands in it."""
    canary = canary_of(tenant_id)
    return text if canary in text else f"{text} {canary}"


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One SSE event as it came over the wire."""

    id: str
    event: str
    data: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The decoded data."""
        decoded: dict[str, Any] = orjson.loads(self.data)
        return decoded


@dataclass(slots=True)
class StreamLog:
    """Everything one reader got of one turn's stream, over all its connections.

    Attributes:
        reconnects: How often it came back, each time with the last id it had.
    """

    turn_id: UUID
    events: list[StreamEvent] = field(default_factory=list)
    reconnects: int = 0

    @property
    def last_id(self) -> str | None:
        """Id of the last event; what ``Last-Event-ID`` says."""
        return self.events[-1].id if self.events else None

    @property
    def done(self) -> dict[str, Any] | None:
        """Data of the terminal event, if it came."""
        return next((e.json for e in reversed(self.events) if e.event == "done"), None)

    @property
    def text(self) -> str:
        """The answer as this reader has assembled it: a snapshot replaces all text so far."""
        text = ""
        for event in self.events:
            if event.event == "content_delta":
                text += event.json["text"]
            elif event.event == "snapshot":
                text = event.json["text"]
        return text

    def faults(self) -> list[str]:
        """What is wrong with the order and number of the events; empty when nothing is."""
        found: list[str] = []
        last: EntryId | None = None
        for event in self.events:
            if event.id == "":
                found.append(f"event {event.event} without an id")
                continue
            current = EntryId.parse(event.id)
            if event.event == "snapshot":
                if last is not None and current < last:
                    found.append(f"snapshot {current} after {last} goes back")
            elif last is not None and current <= last:
                found.append(f"{current} after {last} repeats or goes back")
            elif last is not None and _is_gap(last, current):
                found.append(f"gap between {last} and {current}")
            last = current
        ends = [e for e in self.events if e.event == "done"]
        if len(ends) > 1:
            found.append(f"{len(ends)} terminal events")
        if any(EntryId.parse(e.id).attempt != TERMINAL_ATTEMPT for e in ends):
            found.append("a terminal event with an ordinary id")
        return found


def _is_gap(last: EntryId, current: EntryId) -> bool:
    """Whether text may be missing; attempt 0 only tells places in the queue, newest counts."""
    return 0 < current.attempt == last.attempt and current.n != last.n + 1


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer to one POST; status 0 where the connection broke. Header names in lower case."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def is_accepted(self) -> bool:
        """Whether the turn was promised to be durable."""
        return self.status in (200, 202)


@dataclass(slots=True)
class Post:
    """One message of one client: its key, what it said, and all that came back for it."""

    conversation_id: UUID
    key: str
    text: str
    replies: list[Reply] = field(default_factory=list)
    stream: StreamLog | None = None

    @property
    def body_sha256(self) -> str:
        """Hash of what was said; a repeat of the key must say the same."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def accepted(self) -> Reply | None:
        """The first answer that promised the turn."""
        return next((reply for reply in self.replies if reply.is_accepted), None)

    @property
    def turn_id(self) -> UUID | None:
        """The turn it was promised."""
        reply = self.accepted
        return None if reply is None else UUID(reply.body["turn_id"])


@dataclass(slots=True)
class Ledger:
    """All posts of one client, in the order in which they were sent."""

    tenant_id: UUID
    posts: list[Post] = field(default_factory=list)

    def streams(self) -> list[StreamLog]:
        """The streams that were read."""
        return [post.stream for post in self.posts if post.stream is not None]
