"""Builds what is published at the door from what a client asked; ids follow from their cause."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from libs import ids
from schemas.envelope import Event
from schemas.requests import (
    ConversationCreateRequestedV1,
    FirstMessage,
    Policy,
    TextPart,
    TurnRequestedV1,
)

SOURCE = "frontend_gateway"


@dataclass(frozen=True, slots=True)
class Origin:
    """Who asks, and when; the ids are fresh for every request.

    Attributes:
        request_id: Also the event's id: a repeat of the request is a new event with the same key.
    """

    tenant_id: UUID
    principal_id: UUID
    request_id: UUID
    at: datetime
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class Said:
    """What a client wants answered, and how.

    Attributes:
        nul_removed: U+0000 that stood in the text and were taken out.
    """

    content: str
    policy: Policy | None = None
    parent: UUID | None = None
    model: str | None = None
    options: Mapping[str, Any] | None = None
    time_zone: str | None = None
    nul_removed: int = 0

    @property
    def part(self) -> TextPart:
        """The text as the event carries it."""
        return TextPart(text=self.content, nul_removed=self.nul_removed)


def turn_requested(
    origin: Origin, conversation: UUID, key: str, said: Said
) -> Event[TurnRequestedV1]:
    """The request for one turn in a conversation that exists."""
    return Event(
        id=origin.request_id,
        source=SOURCE,
        tenant_id=origin.tenant_id,
        conversation_id=conversation,
        correlation_id=ids.turn_id(origin.tenant_id, conversation, key),
        occurred_at=origin.at,
        traceparent=origin.traceparent,
        data=TurnRequestedV1(
            request_id=origin.request_id,
            principal_id=origin.principal_id,
            key=key,
            parts=(said.part,),
            policy=said.policy,
            parent=said.parent,
            model=said.model,
            options=dict(said.options) if said.options else None,
            time_zone=said.time_zone,
        ),
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """A conversation that a client wants; ``first`` is its first message."""

    title: str | None = None
    policy: Policy | None = None
    model: str | None = None
    time_zone: str | None = None
    first: Said | None = None


def conversation_of(origin: Origin, key: str | None) -> UUID:
    """The id of a conversation to be made: the same key of one principal, the same conversation."""
    if key is None:
        return origin.request_id  # fresh, and as good an id as any
    return ids.conversation_id(origin.tenant_id, origin.principal_id, key)


def create_requested(
    origin: Origin, key: str | None, wanted: Wanted
) -> Event[ConversationCreateRequestedV1]:
    """The request for a conversation.

    Raises:
        ValueError: There is a first message but no key to name its turn.
    """
    conversation = conversation_of(origin, key)
    message = None
    if wanted.first is not None:
        if key is None:
            msg = "a first message is owed one answer, so it needs a key"
            raise ValueError(msg)
        message = FirstMessage(
            turn_id=ids.turn_id(origin.tenant_id, conversation, key),
            parts=(wanted.first.part,),
            options=dict(wanted.first.options) if wanted.first.options else None,
        )
    return Event(
        id=origin.request_id,
        source=SOURCE,
        tenant_id=origin.tenant_id,
        conversation_id=conversation,
        correlation_id=conversation if message is None else message.turn_id,
        occurred_at=origin.at,
        traceparent=origin.traceparent,
        data=ConversationCreateRequestedV1(
            request_id=origin.request_id,
            principal_id=origin.principal_id,
            key=key,
            title=wanted.title,
            policy=wanted.policy,
            model=wanted.model,
            message=message,
            time_zone=wanted.time_zone,
        ),
    )
