"""Writes the span of a turn that has ended, below which all its work hangs."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from libs.startup import release
from libs.telemetry import names
from libs.telemetry.tracing import Tracing, TurnLife
from schemas.turns import TerminalStatus
from schemas.usage import Usage

FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """A turn that is over.

    Attributes:
        traceparent: Of the turn's row.
        usage: Of the answer that was kept; None where there is none.
    """

    id: UUID
    tenant_id: UUID
    conversation_id: UUID
    status: TerminalStatus
    reason: str | None
    accepted_at: datetime
    ended_at: datetime
    traceparent: str | None
    usage: Usage | None = None


def write_turn(tracing: Tracing, turn: EndedTurn) -> None:
    """Write the span of one turn; to be called once, after the commit of its end."""
    told = tracing.conventions.turn(str(turn.conversation_id), version=release())
    told |= {
        names.TURN_ID: str(turn.id),
        names.TENANT_ID: str(turn.tenant_id),
        names.TURN_STATUS: turn.status,
    }
    if turn.reason is not None:
        told[names.TURN_REASON] = turn.reason
    if turn.usage is not None:
        used = turn.usage
        told |= tracing.conventions.usage(
            {"input": used.input, "output": used.output, "cached": used.cached}
        )
    life = TurnLife(
        turn.id,
        turn.traceparent,
        turn.accepted_at,
        turn.ended_at,
        failure=turn.reason if turn.status == FAILED else None,
    )
    tracing.add_turn(names.turn_span(), life, told)
