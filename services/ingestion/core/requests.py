"""Reads a request at the door as one value: cleaned, fingerprinted, its ids recomputed."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from libs import ids
from libs.text import storable
from schemas.envelope import Event
from schemas.requests import (
    AnswerRequestedV1,
    ConversationCreateRequestedV1,
    ConversationDeleteRequestedV1,
    ConversationRestoreRequestedV1,
    ConversationUpdateRequestedV1,
    MessageDeleteRequestedV1,
    MessageEditRequestedV1,
    Policy,
    TextPart,
    TurnRequestedV1,
)
from schemas.turns import TurnCancelRequestedV1
from services.ingestion.core.fingerprint import fingerprint

MAX_TEXT_BYTES = 256 * 1024
"""Of one message in UTF-8, over all its parts; above it the client should upload a document."""

PART_SEPARATOR = "\n"
"""Stands between the parts of a message where it is stored as one text."""

Wish = Literal[
    "create",
    "message",
    "edit",
    "regenerate",
    "continue",
    "cancel",
    "delete_message",
    "update",
    "delete",
    "restore",
]
"""What a request wants; the first five may want a turn."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was not carried out; ``code`` is a problem slug of the HTTP interface."""

    code: str
    detail: str
    turn_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user said, as it will be stored; ``length`` is its bytes in UTF-8."""

    text: str
    length: int
    nul_removed: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The turn that a request asks for.

    Attributes:
        key: Names the turn inside the conversation.
        parent: The turn it says it follows; None for the latest.
    """

    turn_id: UUID
    key: str
    options: dict[str, Any] | None = None
    parent: UUID | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a front end.

    Attributes:
        asked: The turn it asks for; None where it asks for none.
        message: What the user said with it; None where nothing was said.
        turn_id: The turn it is about: to cancel, to answer again, or to go on from.
        message_id: The message it is about: to edit or to delete.
        policy: For the turn it asks for, or the conversation's new one.
        fault: What is wrong with it whatever the rows say.
    """

    id: UUID
    tenant_id: UUID
    principal_id: UUID
    conversation_id: UUID
    wish: Wish
    fingerprint: str = ""
    title: str | None = None
    policy: Policy | None = None
    model: str | None = None
    asked: Asked | None = None
    message: UserMessage | None = None
    turn_id: UUID | None = None
    message_id: UUID | None = None
    said_at: datetime | None = None
    time_zone: str | None = None
    traceparent: str | None = None
    fault: Problem | None = None

    @property
    def creates(self) -> bool:
        """Whether it asks for a conversation."""
        return self.wish == "create"


_Asking = TurnRequestedV1 | MessageEditRequestedV1 | AnswerRequestedV1
_Said = ConversationCreateRequestedV1 | TurnRequestedV1 | MessageEditRequestedV1
_About = (
    MessageDeleteRequestedV1,
    ConversationUpdateRequestedV1,
    ConversationDeleteRequestedV1,
    ConversationRestoreRequestedV1,
)


def wrong_ids(event: Event[Any]) -> bool:
    """Whether ids of a request do not follow from its tenant, principal, conversation and key."""
    data = event.data
    if data.request_id != event.id:
        return True
    if isinstance(data, _Asking):
        return event.correlation_id != ids.turn_id(event.tenant_id, event.conversation_id, data.key)
    if isinstance(data, TurnCancelRequestedV1):
        return data.principal_id is None
    if isinstance(data, _About):
        return event.correlation_id != event.conversation_id
    return not isinstance(data, ConversationCreateRequestedV1) or _wrong_creation(event, data)


def _wrong_creation(event: Event[Any], data: ConversationCreateRequestedV1) -> bool:
    if data.key is not None and event.conversation_id != ids.conversation_id(
        event.tenant_id, data.principal_id, data.key
    ):
        return True
    return data.message is not None and data.message.turn_id != ids.turn_id(
        event.tenant_id, event.conversation_id, _first_key(event, data)
    )


def read_request(event: Event[Any]) -> Request:
    """The request that an event of ``turn.requests`` holds; its ids were checked before."""
    data = event.data
    if isinstance(data, _Said):
        return _said(event, data)
    if isinstance(data, AnswerRequestedV1):
        return _answer(event, data)
    if isinstance(data, ConversationUpdateRequestedV1):
        return _update(event, data)
    wish: Wish
    if isinstance(data, TurnCancelRequestedV1):
        wish = "cancel"
    elif isinstance(data, MessageDeleteRequestedV1):
        wish = "delete_message"
    elif isinstance(data, ConversationDeleteRequestedV1):
        wish = "delete"
    else:
        wish = "restore"
    return Request(
        id=event.id,
        tenant_id=event.tenant_id,
        principal_id=data.principal_id,
        conversation_id=event.conversation_id,
        wish=wish,
        turn_id=event.correlation_id if wish == "cancel" else None,
        message_id=data.message_id if wish == "delete_message" else None,
        traceparent=event.traceparent,
    )


def _said(event: Event[Any], data: _Said) -> Request:
    asked, parts = _asked(event, data)
    texts, nul_removed = _cleaned(parts)
    message = None if asked is None else _message(texts, nul_removed)
    title = None
    wish: Wish = "message"
    if isinstance(data, ConversationCreateRequestedV1):
        wish = "create"
        title = None if data.title is None else storable(data.title).text
    edits = data.message_id if isinstance(data, MessageEditRequestedV1) else None
    settings = {
        "options": None if asked is None else asked.options,
        "title": title,
        "message": None if edits is None else str(edits),
    }
    return Request(
        id=event.id,
        tenant_id=event.tenant_id,
        principal_id=data.principal_id,
        conversation_id=event.conversation_id,
        wish="edit" if edits is not None else wish,
        fingerprint=fingerprint(
            data.TYPE,
            texts=None if asked is None else texts,
            policy=data.policy,
            parent=None if asked is None else asked.parent,
            model=data.model,
            settings=settings,
        ),
        title=title,
        policy=data.policy,
        model=data.model,
        asked=asked,
        message=message,
        message_id=edits,
        said_at=data.said_at,
        time_zone=data.time_zone,
        traceparent=event.traceparent,
        fault=None if message is None else _fault(message),
    )


def _answer(event: Event[Any], data: AnswerRequestedV1) -> Request:
    return Request(
        id=event.id,
        tenant_id=event.tenant_id,
        principal_id=data.principal_id,
        conversation_id=event.conversation_id,
        wish=data.kind,
        fingerprint=fingerprint(
            data.TYPE,
            texts=None,
            policy=data.policy,
            model=data.model,
            settings={"options": data.options, "answer": data.kind, "turn": str(data.turn_id)},
        ),
        policy=data.policy,
        model=data.model,
        asked=Asked(event.correlation_id, data.key, data.options),
        turn_id=data.turn_id,
        traceparent=event.traceparent,
    )


def _update(event: Event[Any], data: ConversationUpdateRequestedV1) -> Request:
    return Request(
        id=event.id,
        tenant_id=event.tenant_id,
        principal_id=data.principal_id,
        conversation_id=event.conversation_id,
        wish="update",
        title=None if data.title is None else storable(data.title).text,
        policy=data.policy,
        traceparent=event.traceparent,
    )


def _first_key(event: Event[Any], data: ConversationCreateRequestedV1) -> str:
    """A conversation made without a key is new in any case, so its first turn needs no name."""
    return str(event.id) if data.key is None else data.key


def _asked(event: Event[Any], data: _Said) -> tuple[Asked | None, tuple[TextPart, ...]]:
    """The turn that is asked for, and the parts of what was said with it."""
    if isinstance(data, ConversationCreateRequestedV1):
        first = data.message
        if first is None:
            return None, ()
        return Asked(first.turn_id, _first_key(event, data), first.options), first.parts
    parent = data.parent if isinstance(data, TurnRequestedV1) else None
    return Asked(event.correlation_id, data.key, data.options, parent), data.parts


def _cleaned(parts: tuple[TextPart, ...]) -> tuple[list[str], int]:
    cleaned = [storable(part.text) for part in parts]
    removed = sum(a.nul_removed + b.nul_removed for a, b in zip(parts, cleaned, strict=True))
    return [part.text for part in cleaned], removed


def _message(texts: list[str], nul_removed: int) -> UserMessage:
    text = PART_SEPARATOR.join(texts)
    return UserMessage(text, len(text.encode()), nul_removed)


def _fault(message: UserMessage) -> Problem | None:
    if not message.text.strip():
        return Problem("validation-error", "the message has no text; send at least one character")
    if message.length > MAX_TEXT_BYTES:
        return Problem(
            "payload-too-large",
            f"the message has {message.length} bytes of UTF-8; at most {MAX_TEXT_BYTES} are taken",
        )
    return None
