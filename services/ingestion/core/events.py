"""Builds the events of topic ``turn.events`` from rows; the same row gives the same event.

Each of them happens once to a turn or a message, so its id follows from that: telling it again is a
repeat that every consumer recognises.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from libs import ids
from libs.traceparents import below_turn
from schemas.envelope import Event
from schemas.turns import (
    ConversationDeletedV1,
    ConversationRestoredV1,
    MessageDeletedV1,
    TurnAcceptedV1,
    TurnCancelRequestedV1,
    TurnEndedV1,
    TurnKind,
    TurnStartedV1,
)
from schemas.usage import Usage
from services.ingestion.core.decisions import Deletion, Mark, NewTurn, Turning
from services.ingestion.core.requests import Request
from services.ingestion.core.settlement import TurnFacts
from services.ingestion.core.turn import Ending

SOURCE = "ingestion"

DataT = TypeVar(
    "DataT",
    TurnAcceptedV1,
    TurnCancelRequestedV1,
    MessageDeletedV1,
    ConversationDeletedV1,
    ConversationRestoredV1,
)


@dataclass(frozen=True, slots=True)
class Startable:
    """What the start of a turn tells.

    Attributes:
        base_seq: Of the question, and with it the boundary of the turn's history.
        user_message_id: The question.
        supersedes: The message that the question was said again for.
        continues: The unfinished answers that the turn goes on from, oldest first.
    """

    tenant_id: UUID
    id: UUID
    conversation_id: UUID
    branch_id: UUID
    request_id: UUID
    base_seq: int
    user_message_id: UUID
    model: str | None
    options: dict[str, Any] | None
    traceparent: str | None
    kind: TurnKind = "message"
    supersedes: UUID | None = None
    continues: tuple[UUID, ...] = ()


def accepted(turn: NewTurn, *, at: datetime) -> Event[TurnAcceptedV1]:
    """A turn is durable."""
    data = TurnAcceptedV1(
        seq=turn.base_seq,
        policy=turn.policy,
        position=turn.position,
        kind=turn.kind,
        branch_id=turn.branch_id,
        parent_turn_id=turn.parent_turn_id,
    )
    below = below_turn(turn.turn_id, turn.request.traceparent)
    request = replace(turn.request, traceparent=below)
    return _of_request(request, data, of=turn.turn_id, about=turn.turn_id, at=at)


def startable(turn: NewTurn) -> Startable:
    """An accepted turn as something that may start."""
    return Startable(
        tenant_id=turn.request.tenant_id,
        id=turn.turn_id,
        conversation_id=turn.request.conversation_id,
        branch_id=turn.branch_id,
        request_id=turn.request.id,
        base_seq=turn.base_seq,
        user_message_id=turn.user_message_id,
        model=turn.model,
        options=turn.asked.options,
        traceparent=turn.request.traceparent,
        kind=turn.kind,
        supersedes=turn.supersedes,
        continues=turn.continues,
    )


def started(turn: Startable, *, at: datetime, deadline_at: datetime) -> Event[TurnStartedV1]:
    """A turn may be planned. Told again after a loss it is the same event."""
    return Event(
        id=ids.caused_id(turn.id, TurnStartedV1.TYPE),
        source=SOURCE,
        tenant_id=turn.tenant_id,
        conversation_id=turn.conversation_id,
        correlation_id=turn.id,
        causation_id=turn.request_id,
        occurred_at=at,
        traceparent=below_turn(turn.id, turn.traceparent),
        data=TurnStartedV1(
            branch_id=turn.branch_id,
            base_seq=turn.base_seq,
            user_message_id=turn.user_message_id,
            assistant_message_id=ids.message_id(turn.id, "assistant"),
            model=turn.model,
            options=turn.options,
            deadline_at=deadline_at,
            kind=turn.kind,
            supersedes=turn.supersedes,
            continues=turn.continues,
        ),
    )


def cancel_requested(mark: Mark, *, at: datetime) -> Event[TurnCancelRequestedV1]:
    """A turn is to stop; told once, with the first reason."""
    data = TurnCancelRequestedV1(reason=mark.reason)
    return _of_request(mark.request, data, of=mark.turn_id, about=mark.turn_id, at=at)


def message_deleted(deletion: Deletion, *, at: datetime) -> Event[MessageDeletedV1]:
    """A message is gone."""
    data = MessageDeletedV1(
        message_id=deletion.message_id, turn_id=deletion.turn_id, role=deletion.role
    )
    return _of_request(
        deletion.request, data, of=deletion.message_id, about=deletion.turn_id, at=at
    )


def turned(
    turning: Turning, *, at: datetime, purge_at: datetime
) -> Event[ConversationDeletedV1] | Event[ConversationRestoredV1]:
    """A conversation is gone from sight, or back.

    That may happen to it more than once, so the ids follow from the request.
    """
    request = turning.request
    if turning.is_deleted:
        return _of_conversation(request, ConversationDeletedV1(purge_at=purge_at), at=at)
    return _of_conversation(request, ConversationRestoredV1(), at=at)


def _of_conversation(request: Request, data: DataT, *, at: datetime) -> Event[DataT]:
    return _of_request(request, data, of=request.id, about=request.conversation_id, at=at)


def _of_request(
    request: Request, data: DataT, *, of: UUID, about: UUID, at: datetime
) -> Event[DataT]:
    """What a request brought about: its id follows from ``of``, it is one of those ``about``."""
    return Event(
        id=ids.caused_id(of, data.TYPE),
        source=SOURCE,
        tenant_id=request.tenant_id,
        conversation_id=request.conversation_id,
        correlation_id=about,
        causation_id=request.id,
        occurred_at=at,
        traceparent=request.traceparent,
        data=data,
    )


@dataclass(frozen=True, slots=True)
class End:
    """What is told of the end of a turn beside its state."""

    ending: Ending
    length: int
    usage: Usage | None
    cause_id: UUID


def ended(
    turn: TurnFacts, end: End, *, at: datetime, traceparent: str | None
) -> Event[TurnEndedV1]:
    """The one end of a turn."""
    return Event(
        id=ids.caused_id(turn.id, TurnEndedV1.TYPE),
        source=SOURCE,
        tenant_id=turn.tenant_id,
        conversation_id=turn.conversation_id,
        correlation_id=turn.id,
        causation_id=end.cause_id,
        occurred_at=at,
        traceparent=below_turn(turn.id, traceparent),
        data=TurnEndedV1(
            status=end.ending.status, reason=end.ending.reason, length=end.length, usage=end.usage
        ),
    )
