"""The values that pass between the store and those who do the work."""

from collections.abc import Callable
from dataclasses import dataclass

from schemas.usage import Usage
from services.llm_gateway.core.attempt import AttemptText
from services.llm_gateway.core.outcomes import Measured, Outcome, StepFacts

DEADLINE = "deadline"
"""The turn's time is over."""

STEP_DEADLINE = "step_deadline"
"""The step's time is over, not the turn's."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A step that is ours to run.

    Attributes:
        left_s: Seconds until its deadline, by the database's clock at the claim.
        fingerprint: SHA-256 of the payload, hexadecimal.
        payload: For the provider; None when the turn has ended meanwhile.
        cancel_after_s: How long it may go on while nobody watches; None is until its end.
        deadline_reason: The reason of an end at the deadline: whose time it is.
    """

    facts: StepFacts
    base_attempt: int
    left_s: float
    fingerprint: str
    payload: bytes | None
    cancel_after_s: int | None = None
    deadline_reason: str = DEADLINE


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A running step whose worker is dead or stuck.

    Attributes:
        silent_s: Seconds since its last change of state.
        deadline_reason: As in ``Claim``.
    """

    facts: StepFacts
    base_attempt: int
    left_s: float
    silent_s: float
    cancel_reason: str | None
    is_ours: bool
    deadline_reason: str = DEADLINE


@dataclass(frozen=True, slots=True)
class RecoveryFacts:
    """What Postgres knows of an abandoned attempt: its checkpoint, and what was sent."""

    upto: str | None
    text: str | None
    payload_bytes: int


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Ending:
    """One attempt that is over, ready to be stored and told.

    Attributes:
        usage: None where no request was sent.
        is_lost: True once its worker may not write any more; asked right before the write.
    """

    facts: StepFacts
    outcome: Outcome
    text: AttemptText
    usage: Usage | None
    measured: Measured
    is_lost: Callable[[], bool] = _never
