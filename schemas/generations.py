"""What came of a model call: topic ``generation.events``, told by llm_gateway alone."""

from typing import ClassVar
from uuid import UUID

from pydantic import Field

from schemas.envelope import Data
from schemas.usage import Usage


class _Ended(Data):
    step_id: UUID
    attempt: int = Field(ge=1)
    usage: Usage | None = None
    cost_usd: float | None = None
    length: int = Field(ge=0, description="Bytes of the text in UTF-8.")
    sha256: str = Field(description="Of the text in UTF-8, hexadecimal.")
    upto: str = Field(description="Id of the last stream entry that the text covers.")
    first_token_ms: int | None = Field(default=None, ge=0)
    duration_ms: int = Field(ge=0)


class GenerationCompletedV1(_Ended):
    """The model said all it wanted to say, or reached a declared limit."""

    TYPE: ClassVar[str] = "generation.completed"

    finish_reason: str


class GenerationInterruptedV1(_Ended):
    """Something was shown, and then the answer stopped; it is kept as it was shown."""

    TYPE: ClassVar[str] = "generation.interrupted"

    reason: str


class GenerationFailedV1(Data):
    """Nothing was shown, and nothing will be."""

    TYPE: ClassVar[str] = "generation.failed"

    step_id: UUID | None = Field(default=None, description="None when the step was unreadable.")
    attempt: int = Field(ge=0)
    reason: str
