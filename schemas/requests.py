"""What a front end may ask for at the door: topic ``turn.requests``.

The only events that carry text. Each is answered by one outcome row of the ingestion service.
"""

from datetime import datetime
from typing import Any, ClassVar, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.envelope import Data

Policy = Literal["serialize", "branch", "reject", "queue", "replace"]

MAX_KEY_CHARACTERS = 255
MAX_PARTS = 16
MAX_NUL_REMOVED = 2**26  # far above any request's size; the sum over all parts fits a column
MAX_TITLE_CHARACTERS = 200
MAX_MODEL_CHARACTERS = 100
MAX_TIME_ZONE_CHARACTERS = 64


class TextPart(BaseModel):
    """A part of a message that is plain text."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: Literal["text"] = "text"
    text: str = Field(description="At most 256 KiB of UTF-8 over all parts of a message.")
    nul_removed: int = Field(
        default=0,
        ge=0,
        le=MAX_NUL_REMOVED,
        description="How many U+0000 the front end took out: a record may not hold one.",
    )


class FirstMessage(BaseModel):
    """The message that a new conversation may begin with."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    turn_id: UUID
    parts: tuple[TextPart, ...] = Field(min_length=1, max_length=MAX_PARTS)
    options: dict[str, Any] | None = None


class ConversationCreateRequestedV1(Data):
    """Somebody wants a conversation, and possibly an answer to its first message.

    ``key`` names the conversation for the principal and, inside it, the first message's turn.
    """

    TYPE: ClassVar[str] = "conversation.create_requested"

    request_id: UUID = Field(description="Equals the envelope's id.")
    principal_id: UUID
    key: str | None = Field(default=None, min_length=1, max_length=MAX_KEY_CHARACTERS)
    title: str | None = Field(default=None, max_length=MAX_TITLE_CHARACTERS)
    policy: Policy | None = None
    model: str | None = Field(default=None, max_length=MAX_MODEL_CHARACTERS)
    message: FirstMessage | None = None
    said_at: datetime | None = Field(default=None, description="The author's own clock.")
    time_zone: str | None = Field(default=None, max_length=MAX_TIME_ZONE_CHARACTERS)


class TurnRequestedV1(Data):
    """A user said something in a conversation and is owed an answer.

    ``key`` is the idempotency key; the envelope's ``correlation_id`` is the turn it derives.
    """

    TYPE: ClassVar[str] = "turn.requested"

    request_id: UUID = Field(description="Equals the envelope's id.")
    principal_id: UUID
    key: str = Field(min_length=1, max_length=MAX_KEY_CHARACTERS)
    parts: tuple[TextPart, ...] = Field(min_length=1, max_length=MAX_PARTS)
    policy: Policy | None = None
    parent: UUID | None = None
    model: str | None = Field(default=None, max_length=MAX_MODEL_CHARACTERS)
    options: dict[str, Any] | None = None
    said_at: datetime | None = Field(default=None, description="The author's own clock.")
    time_zone: str | None = Field(default=None, max_length=MAX_TIME_ZONE_CHARACTERS)


class MessageEditRequestedV1(Data):
    """A user said a message again in other words and is owed an answer to the new ones.

    ``key`` is the idempotency key; the envelope's ``correlation_id`` is the turn it derives. The
    message that is edited stays as it is, on the branch it stands on.
    """

    TYPE: ClassVar[str] = "message.edit_requested"

    request_id: UUID = Field(description="Equals the envelope's id.")
    principal_id: UUID
    key: str = Field(min_length=1, max_length=MAX_KEY_CHARACTERS)
    message_id: UUID = Field(description="The user message that the new one supersedes.")
    parts: tuple[TextPart, ...] = Field(min_length=1, max_length=MAX_PARTS)
    policy: Policy | None = None
    model: str | None = Field(default=None, max_length=MAX_MODEL_CHARACTERS)
    options: dict[str, Any] | None = None
    said_at: datetime | None = Field(default=None, description="The author's own clock.")
    time_zone: str | None = Field(default=None, max_length=MAX_TIME_ZONE_CHARACTERS)


class AnswerRequestedV1(Data):
    """A user wants another answer to the same question, or the rest of an unfinished one.

    ``key`` is the idempotency key; the envelope's ``correlation_id`` is the turn it derives.
    """

    TYPE: ClassVar[str] = "answer.requested"

    request_id: UUID = Field(description="Equals the envelope's id.")
    principal_id: UUID
    key: str = Field(min_length=1, max_length=MAX_KEY_CHARACTERS)
    kind: Literal["regenerate", "continue"]
    turn_id: UUID = Field(description="The ended turn whose answer is made again or continued.")
    policy: Policy | None = None
    model: str | None = Field(default=None, max_length=MAX_MODEL_CHARACTERS)
    options: dict[str, Any] | None = None


class MessageDeleteRequestedV1(Data):
    """Somebody wants a message gone; the envelope's ``correlation_id`` is its conversation."""

    TYPE: ClassVar[str] = "message.delete_requested"

    request_id: UUID = Field(description="Equals the envelope's id.")
    principal_id: UUID
    message_id: UUID


class ConversationUpdateRequestedV1(Data):
    """Somebody wants another title or another policy; None leaves what is there."""

    TYPE: ClassVar[str] = "conversation.update_requested"

    request_id: UUID = Field(description="Equals the envelope's id.")
    principal_id: UUID
    title: str | None = Field(default=None, max_length=MAX_TITLE_CHARACTERS)
    policy: Policy | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> "ConversationUpdateRequestedV1":
        if self.title is None and self.policy is None:
            msg = "an update names a title or a policy"
            raise ValueError(msg)
        return self


class ConversationDeleteRequestedV1(Data):
    """Somebody wants a conversation gone: at once from sight, later from the database."""

    TYPE: ClassVar[str] = "conversation.delete_requested"

    request_id: UUID = Field(description="Equals the envelope's id.")
    principal_id: UUID


class ConversationRestoreRequestedV1(Data):
    """Somebody wants a deleted conversation back, while its rows are still there."""

    TYPE: ClassVar[str] = "conversation.restore_requested"

    request_id: UUID = Field(description="Equals the envelope's id.")
    principal_id: UUID
