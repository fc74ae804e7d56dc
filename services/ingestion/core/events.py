"""Builds the events of topic ``turn.events`` from rows; the same row gives the same event.

Each of them happens once to a turn, so its id follows from the turn: telling it again is a repeat
that every consumer recognises.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from libs import ids
from schemas.envelope import Event
from schemas.turns import TurnAcceptedV1, TurnEndedV1, TurnStartedV1
from schemas.usage import Usage
from services.ingestion.core.acceptance import NewTurn
from services.ingestion.core.settlement import TurnFacts
from services.ingestion.core.turn import Ending

SOURCE = "ingestion"


@dataclass(frozen=True, slots=True)
class Startable:
    """What the start of a turn tells.

    Attributes:
        seq: Of the user message, and with it the boundary of the turn's history.
    """

    tenant_id: UUID
    id: UUID
    conversation_id: UUID
    branch_id: UUID
    request_id: UUID
    seq: int
    model: str | None
    options: dict[str, Any] | None
    traceparent: str | None


def accepted(turn: NewTurn, *, at: datetime) -> Event[TurnAcceptedV1]:
    """A turn is durable."""
    return Event(
        id=ids.caused_id(turn.message.turn_id, TurnAcceptedV1.TYPE),
        source=SOURCE,
        tenant_id=turn.request.tenant_id,
        conversation_id=turn.request.conversation_id,
        correlation_id=turn.message.turn_id,
        causation_id=turn.request.id,
        occurred_at=at,
        traceparent=turn.request.traceparent,
        data=TurnAcceptedV1(seq=turn.seq, policy=turn.policy, position=turn.position),
    )


def startable(turn: NewTurn) -> Startable:
    """An accepted turn as something that may start."""
    return Startable(
        tenant_id=turn.request.tenant_id,
        id=turn.message.turn_id,
        conversation_id=turn.request.conversation_id,
        branch_id=turn.branch_id,
        request_id=turn.request.id,
        seq=turn.seq,
        model=turn.model,
        options=turn.message.options,
        traceparent=turn.request.traceparent,
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
        traceparent=turn.traceparent,
        data=TurnStartedV1(
            branch_id=turn.branch_id,
            base_seq=turn.seq,
            user_message_id=ids.message_id(turn.id, "user"),
            assistant_message_id=ids.message_id(turn.id, "assistant"),
            model=turn.model,
            options=turn.options,
            deadline_at=deadline_at,
        ),
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
        traceparent=traceparent,
        data=TurnEndedV1(
            status=end.ending.status, reason=end.ending.reason, length=end.length, usage=end.usage
        ),
    )
