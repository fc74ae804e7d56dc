"""What a client sent and received, kept by the client itself; the checker believes nobody else."""

import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import orjson

from libs.ids import message_id
from schemas.streams import TERMINAL_ATTEMPT, EntryId

PostKind = Literal["message", "edit", "regenerate", "continue"]
ActKind = Literal["cancel", "delete_message", "delete", "restore"]

SAYING: frozenset[PostKind] = frozenset({"message", "edit"})
"""Kinds of posts that say something; the others ask for an answer alone."""

CANARY = re.compile(r"canary-[0-9a-f]{16}")
"""Every tenant of a run says its own in all it says; whoever else sees it was shown too much."""


WORD_CHARACTERS = 16
"""A word this long that only one message has is not somebody else's by chance."""

TEXT_CHARACTERS = 32
"""The same of a whole text."""


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
        gone: The status that said that there is nothing to be read any more: 404 or 410.
    """

    turn_id: UUID
    events: list[StreamEvent] = field(default_factory=list)
    reconnects: int = 0
    gone: int | None = None

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
    """One wish for an answer: its key, what was said, and all that came back for it.

    Attributes:
        text: What was said; empty where nothing was, see ``SAYING``.
        target: The message that is edited, or the turn that is answered again or continued.
        policy: Where it names one of its own.
        model: Likewise.
    """

    conversation_id: UUID
    key: str
    text: str
    replies: list[Reply] = field(default_factory=list)
    stream: StreamLog | None = None
    kind: PostKind = "message"
    target: UUID | None = None
    policy: str | None = None
    model: str | None = None

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
class Act:
    """Something done to a turn, a message or a conversation, and all that came back for it.

    Attributes:
        target: The turn, the message or the conversation.
        done_at: When it was answered that it is done.
        looks: How often the client looked for it after all was done.
        shown_after: Where the client still saw it after that.
        shown_before: Of a cancel: what the client had been shown of the answer when it asked.
    """

    kind: ActKind
    conversation_id: UUID
    target: UUID
    replies: list[Reply] = field(default_factory=list)
    done_at: datetime | None = None
    looks: int = 0
    shown_after: list[str] = field(default_factory=list)
    shown_before: str = ""

    @property
    def is_done(self) -> bool:
        """Whether it was promised to be durable."""
        return any(reply.status in (200, 202, 204) for reply in self.replies)


@dataclass(slots=True)
class Ledger:
    """All posts and acts of one client, each in the order in which they were sent."""

    tenant_id: UUID
    posts: list[Post] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)

    def texts(self) -> dict[UUID, str]:
        """What this client said and read, by message."""
        found: dict[UUID, str] = {}
        for post in self.posts:
            if post.turn_id is None:
                continue
            if post.kind in SAYING:
                found[message_id(post.turn_id, "user")] = post.text
            if post.stream is not None:
                found[message_id(post.turn_id, "assistant")] = post.stream.text
        return found

    def canary_of_message(self, message: UUID) -> str | None:
        """Words that stand in this message alone; None if none of them would be known again."""
        texts = self.texts()
        own = texts.pop(message, "")
        everywhere = canary_of(self.tenant_id)  # stands in more than messages
        words = [w for w in own.split() if len(w) >= WORD_CHARACTERS and everywhere not in w]
        whole = [own] if len(own) >= TEXT_CHARACTERS else []
        for canary in [*sorted(words, key=len, reverse=True), *whole]:
            if not any(canary in text for text in texts.values()):
                return canary
        return None

    def deletions(self) -> list[Act]:
        """Deletions of single messages that were promised to be durable."""
        return [act for act in self.acts if act.kind == "delete_message" and act.is_done]

    def streams(self) -> list[StreamLog]:
        """The streams that were read."""
        return [post.stream for post in self.posts if post.stream is not None]

    def shown_of(self, turn_id: UUID) -> str:
        """What this client has been shown of a turn's answer so far."""
        logs = (log for log in self.streams() if log.turn_id == turn_id)
        return next((log.text for log in logs), "")
