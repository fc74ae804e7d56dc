"""Tells of turns that ended here, for those who trace."""

from dataclasses import dataclass
from datetime import datetime

from libs.telemetry.tracing import Tracing
from libs.telemetry.turns import EndedTurn, write_turn
from schemas.usage import Usage
from services.ingestion.core.settlement import Ended


@dataclass(frozen=True, slots=True)
class Life:
    """An ended turn from acceptance on, for those who count and trace."""

    accepted_at: datetime
    ended_at: datetime
    first_token_at: datetime | None
    traceparent: str | None
    usage: Usage | None


def trace_turn(tracing: Tracing, end: Ended, life: Life) -> None:
    """Write the span of one turn; to be called once, after the commit of its end."""
    if not tracing.is_kept:
        return
    turn, ending = end.turn, end.ending
    write_turn(
        tracing,
        EndedTurn(
            turn.id,
            turn.tenant_id,
            turn.conversation_id,
            ending.status,
            ending.reason,
            life.accepted_at,
            life.ended_at,
            life.traceparent,
            life.usage,
        ),
    )
