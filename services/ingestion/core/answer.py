"""What a turn's answer is: the text that was told by hash, found and compared, or nothing."""

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from schemas.usage import Usage
from services.ingestion.core.endings import INTERNAL
from services.ingestion.core.turn import Ending

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Answer:
    """The end that an event proposes, with the answer it leaves behind.

    Attributes:
        attempt: Highest attempt known of the turn; 0 if none was told.
        length: Bytes of the text in UTF-8.
        sha256: Of the text; None where the turn has no answer.
        upto: Id of the last stream entry that the text covers.
        step_id: The step whose stored result is copied; None where ``text`` is given or absent.
        text: The text itself, where no stored result has it.
        tokens: By tokenizer name; empty where there is nothing to count.
        is_unproven: The stored text is not the one that was told, so there is no answer.
        first_token_at: When its first text was shown; None if none was, or nobody knows.
    """

    ending: Ending
    attempt: int = 0
    length: int = 0
    sha256: str | None = None
    upto: str | None = None
    usage: Usage | None = None
    step_id: UUID | None = None
    text: str | None = None
    tokens: tuple[tuple[str, int], ...] = ()
    is_unproven: bool = False
    first_token_at: datetime | None = None

    def counted(self, tokens: tuple[str, int]) -> "Answer":
        """The same answer with one more token count."""
        return replace(self, tokens=(*self.tokens, tokens))


@dataclass(frozen=True, slots=True)
class Told:
    """What an event says about a finished attempt."""

    turn_id: UUID
    step_id: UUID
    attempt: int
    length: int
    sha256: str
    upto: str
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class Result:
    """What llm_gateway stored of an attempt; ``model`` is the turn's, None for the default."""

    turn_id: UUID
    text: str
    model: str | None


def nothing(ending: Ending, *, attempt: int = 0) -> Answer:
    """An end without any text."""
    return Answer(ending, attempt=attempt)


def compared(ending: Ending, told: Told, result: Result | None) -> Answer:
    """The answer, if the stored text is the one that was told; otherwise the turn fails.

    A missing result, another turn's result, another length or another hash all mean that what the
    client saw cannot be proven; ``tokens`` is left for the caller to add.
    """
    if result is None or result.turn_id != told.turn_id:
        return Answer(INTERNAL, attempt=told.attempt, is_unproven=True)
    raw = result.text.encode()
    if len(raw) != told.length or hashlib.sha256(raw).hexdigest() != told.sha256:
        return Answer(INTERNAL, attempt=told.attempt, is_unproven=True)
    return Answer(
        ending,
        attempt=told.attempt,
        length=told.length,
        sha256=told.sha256,
        upto=told.upto,
        usage=told.usage,
        step_id=told.step_id,
    )


def shown(ending: Ending, text: str, *, upto: str, attempt: int) -> Answer:
    """What the client had seen of a turn whose worker never told an end."""
    raw = text.encode()
    return Answer(
        ending,
        attempt=attempt,
        length=len(raw),
        sha256=hashlib.sha256(raw).hexdigest(),
        upto=upto,
        text=text,
    )
