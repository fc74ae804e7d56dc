"""Builds what is published at the door from what a client asked; ids follow from their cause."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar
from uuid import UUID

from libs import ids
from schemas.envelope import Data, Event
from schemas.requests import (
    AnswerRequestedV1,
    ConversationCreateRequestedV1,
    ConversationDeleteRequestedV1,
    ConversationRestoreRequestedV1,
    ConversationUpdateRequestedV1,
    FirstMessage,
    MessageDeleteRequestedV1,
    MessageEditRequestedV1,
    Policy,
    TextPart,
    TurnRequestedV1,
)
from schemas.turns import TurnCancelRequestedV1

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


CANCELLED_BY_USER = "user"
"""Why a turn is cancelled that somebody asked to stop."""

D = TypeVar("D", bound=Data)


def edit_requested(
    origin: Origin, conversation: UUID, key: str, message: UUID, said: Said
) -> Event[MessageEditRequestedV1]:
    """The request to answer a message that was said again in other words."""
    data = MessageEditRequestedV1(
        request_id=origin.request_id,
        principal_id=origin.principal_id,
        key=key,
        message_id=message,
        parts=(said.part,),
        policy=said.policy,
        model=said.model,
        options=dict(said.options) if said.options else None,
        time_zone=said.time_zone,
    )
    turn = ids.turn_id(origin.tenant_id, conversation, key)
    return _event(origin, conversation, turn, data)


@dataclass(frozen=True, slots=True)
class Again:
    """Which answer is wanted again or further, and how."""

    kind: Literal["regenerate", "continue"]
    turn_id: UUID
    policy: Policy | None = None
    model: str | None = None
    options: Mapping[str, Any] | None = None


def answer_requested(
    origin: Origin, conversation: UUID, key: str, again: Again
) -> Event[AnswerRequestedV1]:
    """The request for another answer to the same question, or for the rest of one."""
    data = AnswerRequestedV1(
        request_id=origin.request_id,
        principal_id=origin.principal_id,
        key=key,
        kind=again.kind,
        turn_id=again.turn_id,
        policy=again.policy,
        model=again.model,
        options=dict(again.options) if again.options else None,
    )
    turn = ids.turn_id(origin.tenant_id, conversation, key)
    return _event(origin, conversation, turn, data)


def cancel_requested(
    origin: Origin, conversation: UUID, turn: UUID
) -> Event[TurnCancelRequestedV1]:
    """The request to stop a turn."""
    data = TurnCancelRequestedV1(
        reason=CANCELLED_BY_USER,
        request_id=origin.request_id,
        principal_id=origin.principal_id,
    )
    return _event(origin, conversation, turn, data)


def message_delete_requested(
    origin: Origin, conversation: UUID, message: UUID
) -> Event[MessageDeleteRequestedV1]:
    """The request to delete one message."""
    data = MessageDeleteRequestedV1(
        request_id=origin.request_id, principal_id=origin.principal_id, message_id=message
    )
    return _event(origin, conversation, conversation, data)


def update_requested(
    origin: Origin, conversation: UUID, *, title: str | None, policy: Policy | None
) -> Event[ConversationUpdateRequestedV1]:
    """The request for another title or policy; None leaves what is there."""
    data = ConversationUpdateRequestedV1(
        request_id=origin.request_id,
        principal_id=origin.principal_id,
        title=title,
        policy=policy,
    )
    return _event(origin, conversation, conversation, data)


def delete_requested(origin: Origin, conversation: UUID) -> Event[ConversationDeleteRequestedV1]:
    """The request to delete a conversation."""
    data = ConversationDeleteRequestedV1(
        request_id=origin.request_id, principal_id=origin.principal_id
    )
    return _event(origin, conversation, conversation, data)


def restore_requested(origin: Origin, conversation: UUID) -> Event[ConversationRestoreRequestedV1]:
    """The request to bring a deleted conversation back."""
    data = ConversationRestoreRequestedV1(
        request_id=origin.request_id, principal_id=origin.principal_id
    )
    return _event(origin, conversation, conversation, data)


def _event(origin: Origin, conversation: UUID, correlation: UUID, data: D) -> Event[D]:
    return Event(
        id=origin.request_id,
        source=SOURCE,
        tenant_id=origin.tenant_id,
        conversation_id=conversation,
        correlation_id=correlation,
        occurred_at=origin.at,
        traceparent=origin.traceparent,
        data=data,
    )
