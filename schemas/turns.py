"""What happened to a turn: topic ``turn.events``, told by ingestion alone."""

from datetime import datetime
from typing import Any, ClassVar, Literal
from uuid import UUID

from pydantic import Field

from schemas.envelope import Data
from schemas.requests import Policy
from schemas.usage import Usage

TurnKind = Literal["message", "edit", "regenerate", "continue"]
"""What a turn answers: a new message, a message said again, the same question, its own answer."""

MAX_CONTINUED = 8
"""Answers that one continuation may extend: each is shown in full, so the chain has an end."""

MAX_PURGED_TURNS = 500
"""Turns that one ``conversation.purged`` names: 20 KB of ids, far below a record's limit."""

TerminalStatus = Literal["completed", "partial", "failed", "cancelled"]


class TurnAcceptedV1(Data):
    """A turn is durable. ``position`` is 0 when it starts at once, else its place in the queue."""

    TYPE: ClassVar[str] = "turn.accepted"

    seq: int = Field(ge=1, description="Of the question; the answer's is higher.")
    policy: Policy
    position: int = Field(ge=0)
    kind: TurnKind = "message"
    branch_id: UUID | None = Field(
        default=None, description="None from before there were branches."
    )
    parent_turn_id: UUID | None = Field(
        default=None, description="The turn it follows on its branch; None for a first one."
    )


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
    kind: TurnKind = "message"
    supersedes: UUID | None = Field(
        default=None, description="The message that the user message was said again for."
    )
    continues: tuple[UUID, ...] = Field(
        default=(),
        max_length=MAX_CONTINUED,
        description="The unfinished answers that this one goes on from, oldest first.",
    )


class TurnCancelRequestedV1(Data):
    """Somebody wants the turn to stop.

    Travels twice: as a request at the door, with its request and its principal, and as the event
    that ingestion tells once the wish is durable, with neither.
    """

    TYPE: ClassVar[str] = "turn.cancel_requested"

    reason: str
    request_id: UUID | None = Field(
        default=None, description="At the door: equals the envelope's id."
    )
    principal_id: UUID | None = Field(default=None, description="At the door: who asks.")


class TurnEndedV1(Data):
    """The one committed end of a turn."""

    TYPE: ClassVar[str] = "turn.ended"

    status: TerminalStatus
    reason: str | None = None
    length: int = Field(ge=0, description="Bytes of the answer in UTF-8.")
    usage: Usage | None = None


class MessageDeletedV1(Data):
    """A message is gone from every list, plan and stream; whatever was derived from it goes too."""

    TYPE: ClassVar[str] = "message.deleted"

    message_id: UUID
    turn_id: UUID = Field(description="The turn that the message belongs to.")
    role: Literal["user", "assistant"]


class ConversationDeletedV1(Data):
    """A conversation is gone from sight; until ``purge_at`` it can be restored."""

    TYPE: ClassVar[str] = "conversation.deleted"

    purge_at: datetime


class ConversationRestoredV1(Data):
    """A deleted conversation is back, with everything that was not deleted by itself."""

    TYPE: ClassVar[str] = "conversation.restored"


class ConversationPurgedV1(Data):
    """The rows of a conversation are gone for good, and so must be what others keep about it.

    A conversation of more turns is told in several events, each naming some of them.
    """

    TYPE: ClassVar[str] = "conversation.purged"

    turn_ids: tuple[UUID, ...] = Field(max_length=MAX_PURGED_TURNS)
