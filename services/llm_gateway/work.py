"""The values that pass between the store and those who do the work."""

from collections.abc import Callable
from dataclasses import dataclass

from schemas.usage import Usage
from services.llm_gateway.core.attempt import AttemptText
from services.llm_gateway.core.outcomes import Measured, Outcome, StepFacts


@dataclass(frozen=True, slots=True)
class Claim:
    """A step that is ours to run.

    Attributes:
        left_s: Seconds until its deadline, by the database's clock at the claim.
        fingerprint: SHA-256 of the payload, hexadecimal.
        payload: For the provider; None when the turn has ended meanwhile.
    """

    facts: StepFacts
    base_attempt: int
    left_s: float
    fingerprint: str
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A running step whose worker is dead or stuck.

    Attributes:
        silent_s: Seconds since its last change of state.
    """

    facts: StepFacts
    base_attempt: int
    left_s: float
    silent_s: float
    cancel_reason: str | None
    is_ours: bool


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
