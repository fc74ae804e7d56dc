"""How an attempt ended, and the event that tells it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias
from uuid import UUID

from libs.ids import caused_id
from schemas.envelope import Data, Event
from schemas.generations import (
    GenerationCompletedV1,
    GenerationFailedV1,
    GenerationInterruptedV1,
)
from schemas.usage import Usage
from services.llm_gateway.core.attempt import AttemptText

SOURCE = "llm_gateway"

WorkState: TypeAlias = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Completed:
    """The model came to its own end: ``stop``, ``length``, ``content_filter`` or ``other``."""

    finish_reason: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Something was shown, and then it stopped."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing was shown, and nothing will be."""

    reason: str


Outcome: TypeAlias = Completed | Interrupted | Failed


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Which attempt of which step of which turn."""

    step_id: UUID
    tenant_id: UUID
    conversation_id: UUID
    turn_id: UUID
    attempt: int
    model: str
    causation_id: UUID
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class Measured:
    """What one attempt took.

    Attributes:
        requests: Requests sent to the provider; 0 where the worker that knew it died.
        failure: Class and code of the last provider failure; None if there was none.
        first_token_ms: From the claim to the first delta; None if there was none or nobody knows.
        duration_ms: From the claim to the end.
    """

    requests: int = 0
    failure: str | None = None
    first_token_ms: int | None = None
    duration_ms: int = 0


def stopped(reason: str, *, is_shown: bool) -> Outcome:
    """The end of an attempt that was stopped, by whether anything was shown."""
    return Interrupted(reason) if is_shown else Failed(reason)


def outcome_name(outcome: Outcome) -> str:
    """Name of the outcome in rows and metrics."""
    return type(outcome).__name__.lower()


def reason_of(outcome: Outcome) -> str:
    """Why it ended so; of a completed one its finish reason."""
    return outcome.finish_reason if isinstance(outcome, Completed) else outcome.reason


def state_of(outcome: Outcome) -> WorkState:
    """State of the work after it."""
    return "failed" if isinstance(outcome, Failed) else "done"


def ending_event(
    facts: StepFacts,
    outcome: Outcome,
    *,
    text: AttemptText,
    usage: Usage | None,
    measured: Measured,
    now: datetime,
) -> Event[Data]:
    """The event of an end. Its id follows from step, attempt and type: told twice, it is one."""
    data: Data
    match outcome:
        case Completed(finish_reason):
            data = GenerationCompletedV1(
                step_id=facts.step_id,
                attempt=facts.attempt,
                usage=usage,
                cost_usd=usage.cost_usd if usage is not None else None,
                length=text.length,
                sha256=text.sha256,
                upto=str(text.upto),
                first_token_ms=measured.first_token_ms,
                duration_ms=measured.duration_ms,
                finish_reason=finish_reason,
            )
        case Interrupted(reason):
            data = GenerationInterruptedV1(
                step_id=facts.step_id,
                attempt=facts.attempt,
                usage=usage,
                cost_usd=usage.cost_usd if usage is not None else None,
                length=text.length,
                sha256=text.sha256,
                upto=str(text.upto),
                first_token_ms=measured.first_token_ms,
                duration_ms=measured.duration_ms,
                reason=reason,
            )
        case Failed(reason):
            data = GenerationFailedV1(step_id=facts.step_id, attempt=facts.attempt, reason=reason)
    return event_of(facts, data, now=now)


def event_of(facts: StepFacts, data: Data, *, now: datetime) -> Event[Data]:
    """An event about a step, in the envelope of its turn."""
    return Event(
        id=caused_id(facts.step_id, f"{data.TYPE}:{facts.attempt}"),
        source=SOURCE,
        tenant_id=facts.tenant_id,
        conversation_id=facts.conversation_id,
        correlation_id=facts.turn_id,
        causation_id=facts.causation_id,
        occurred_at=now,
        traceparent=facts.traceparent,
        data=data,
    )
