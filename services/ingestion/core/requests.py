"""Reads a request at the door as one value: cleaned, fingerprinted, its ids recomputed."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from libs import ids
from libs.text import storable
from schemas.envelope import Event
from schemas.requests import (
    ConversationCreateRequestedV1,
    FirstMessage,
    Policy,
    TextPart,
    TurnRequestedV1,
)
from services.ingestion.core.fingerprint import fingerprint
from services.ingestion.core.policy import SUPPORTED

MAX_TEXT_BYTES = 256 * 1024
"""Of one message in UTF-8, over all its parts; above it the client should upload a document."""

PART_SEPARATOR = "\n"
"""Stands between the parts of a message where it is stored as one text."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was not carried out; ``code`` is a problem slug of the HTTP interface."""

    code: str
    detail: str
    turn_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What the user said, as it will be stored.

    Attributes:
        turn_id: The turn that answers it.
        key: Names the turn inside the conversation.
        length: Bytes of ``text`` in UTF-8.
        parent: The turn it says it follows; None for the latest.
    """

    turn_id: UUID
    key: str
    text: str
    length: int
    nul_removed: int
    options: dict[str, Any] | None
    parent: UUID | None


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a front end.

    Attributes:
        creates: Whether it asks for a conversation.
        message: None where a conversation is asked for without a first message.
        fault: What is wrong with it whatever the rows say.
    """

    id: UUID
    tenant_id: UUID
    principal_id: UUID
    conversation_id: UUID
    creates: bool
    fingerprint: str
    title: str | None
    policy: Policy | None
    model: str | None
    message: UserMessage | None
    said_at: datetime | None
    time_zone: str | None
    traceparent: str | None
    fault: Problem | None


RequestEvent = Event[ConversationCreateRequestedV1] | Event[TurnRequestedV1]


def wrong_ids(event: Event[Any]) -> bool:
    """Whether ids of a request do not follow from its tenant, principal, conversation and key."""
    data = event.data
    if data.request_id != event.id:
        return True
    if isinstance(data, TurnRequestedV1):
        return event.correlation_id != ids.turn_id(event.tenant_id, event.conversation_id, data.key)
    if not isinstance(data, ConversationCreateRequestedV1):
        return True
    if data.key is not None and event.conversation_id != ids.conversation_id(
        event.tenant_id, data.principal_id, data.key
    ):
        return True
    return data.message is not None and data.message.turn_id != ids.turn_id(
        event.tenant_id, event.conversation_id, _first_key(event, data)
    )


def read_request(event: Event[Any]) -> Request:
    """The request that an event of ``turn.requests`` holds; its ids were checked before."""
    data: ConversationCreateRequestedV1 | TurnRequestedV1 = event.data
    message = _message(event, data)
    creates = isinstance(data, ConversationCreateRequestedV1)
    title = None
    if isinstance(data, ConversationCreateRequestedV1) and data.title is not None:
        title = storable(data.title).text
    return Request(
        id=event.id,
        tenant_id=event.tenant_id,
        principal_id=data.principal_id,
        conversation_id=event.conversation_id,
        creates=creates,
        fingerprint=_fingerprint(data, title),
        title=title,
        policy=data.policy,
        model=data.model,
        message=message,
        said_at=data.said_at,
        time_zone=data.time_zone,
        traceparent=event.traceparent,
        fault=_fault(data.policy, message),
    )


def _first_key(event: Event[Any], data: ConversationCreateRequestedV1) -> str:
    """A conversation made without a key is new in any case, so its first turn needs no name."""
    return str(event.id) if data.key is None else data.key


def _cleaned(parts: tuple[TextPart, ...]) -> tuple[list[str], int]:
    cleaned = [storable(part.text) for part in parts]
    removed = sum(a.nul_removed + b.nul_removed for a, b in zip(parts, cleaned, strict=True))
    return [part.text for part in cleaned], removed


def _message(
    event: Event[Any], data: ConversationCreateRequestedV1 | TurnRequestedV1
) -> UserMessage | None:
    source: FirstMessage | TurnRequestedV1 | None
    if isinstance(data, TurnRequestedV1):
        source, turn_id, key, parent = data, event.correlation_id, data.key, data.parent
    elif data.message is not None:
        source, turn_id, parent = data.message, data.message.turn_id, None
        key = _first_key(event, data)
    else:
        return None
    texts, nul_removed = _cleaned(source.parts)
    text = PART_SEPARATOR.join(texts)
    return UserMessage(
        turn_id=turn_id,
        key=key,
        text=text,
        length=len(text.encode()),
        nul_removed=nul_removed,
        options=source.options,
        parent=parent,
    )


def _fingerprint(data: ConversationCreateRequestedV1 | TurnRequestedV1, title: str | None) -> str:
    if isinstance(data, TurnRequestedV1):
        return fingerprint(
            data.TYPE,
            texts=_cleaned(data.parts)[0],
            policy=data.policy,
            parent=data.parent,
            model=data.model,
            settings={"options": data.options},
        )
    return fingerprint(
        data.TYPE,
        texts=None if data.message is None else _cleaned(data.message.parts)[0],
        policy=data.policy,
        model=data.model,
        settings={
            "options": None if data.message is None else data.message.options,
            "title": title,
        },
    )


def _fault(policy: Policy | None, message: UserMessage | None) -> Problem | None:
    if policy is not None and policy not in SUPPORTED:
        known = ", ".join(sorted(SUPPORTED))
        return Problem(
            "validation-error", f"policy {policy} is not available in this release; use {known}"
        )
    if message is None:
        return None
    if not message.text.strip():
        return Problem("validation-error", "the message has no text; send at least one character")
    if message.length > MAX_TEXT_BYTES:
        return Problem(
            "payload-too-large",
            f"the message has {message.length} bytes of UTF-8; at most {MAX_TEXT_BYTES} are taken",
        )
    return None
