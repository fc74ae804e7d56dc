"""What the model will be shown: topic ``context.events``, told by context_assembly alone."""

from datetime import datetime
from typing import ClassVar, Literal
from uuid import UUID

from pydantic import Field

from schemas.envelope import Data


class StepPlannedV1(Data):
    """The plan and the payload of a step are stored; the model may be called."""

    TYPE: ClassVar[str] = "step.planned"

    step_id: UUID
    step_no: int = Field(ge=1)
    branch_id: UUID
    seq: int = Field(ge=1, description="Of the turn's user message: the order inside a branch.")
    model: str
    fingerprint: str = Field(description="SHA-256 of the payload, hexadecimal.")
    deadline_at: datetime
    limited_by: Literal["turn", "step"] = Field(
        default="turn", description="Whose time ends first at ``deadline_at``."
    )


class StepRefusedV1(Data):
    """The step will not be sent to a model; its turn fails with ``reason``."""

    TYPE: ClassVar[str] = "step.refused"

    reason: str
    invariant: str | None = Field(default=None, description="Name of the broken invariant.")
