"""What happened to a turn: topic ``turn.events``, told by ingestion alone."""

from datetime import datetime
from typing import Any, ClassVar, Literal
from uuid import UUID

from pydantic import Field

from schemas.envelope import Data
from schemas.requests import Policy
from schemas.usage import Usage

TerminalStatus = Literal["completed", "partial", "failed", "cancelled"]


class TurnAcceptedV1(Data):
    """A turn is durable. ``position`` is 0 when it starts at once, else its place in the queue."""

    TYPE: ClassVar[str] = "turn.accepted"

    seq: int = Field(ge=1, description="Of the user message.")
    policy: Policy
    position: int = Field(ge=0)


class TurnStartedV1(Data):
    """A turn may be planned now; its history is what stands before ``base_seq``."""

    TYPE: ClassVar[str] = "turn.started"

    branch_id: UUID
    base_seq: int = Field(ge=1, description="Seq of the user message; history is below it.")
    user_message_id: UUID
    assistant_message_id: UUID
    model: str | None = None
    options: dict[str, Any] | None = None
    deadline_at: datetime


class TurnCancelRequestedV1(Data):
    """Somebody wants the turn to stop."""

    TYPE: ClassVar[str] = "turn.cancel_requested"

    reason: str


class TurnEndedV1(Data):
    """The one committed end of a turn."""

    TYPE: ClassVar[str] = "turn.ended"

    status: TerminalStatus
    reason: str | None = None
    length: int = Field(ge=0, description="Bytes of the answer in UTF-8.")
    usage: Usage | None = None
