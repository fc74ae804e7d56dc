"""The bodies of requests and answers, as models: what validates the one describes both."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from schemas.requests import (
    MAX_MODEL_CHARACTERS,
    MAX_TIME_ZONE_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    Policy,
)
from schemas.usage import Usage

TurnStatus = Literal[
    "pending", "generating", "waiting_for_tool", "completed", "partial", "failed", "cancelled"
]
MAX_OUTPUT_TOKENS = 1_000_000  # above every model's window; the catalogue decides what is possible
LONGEST_GRACE_S = 3_600


class _Asked(BaseModel):
    """What a client sends: strict types, no field that we do not know."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Options(_Asked):
    """How the answer is made; what is left out follows the model's defaults."""

    max_tokens: int | None = Field(default=None, ge=1, le=MAX_OUTPUT_TOKENS)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    cancel_after_s: int | None = Field(
        default=None,
        ge=0,
        le=LONGEST_GRACE_S,
        description="Cancel the turn this many seconds after its last stream was closed.",
    )


class MessageBody(_Asked):
    """A message that is owed an answer."""

    content: str = Field(
        min_length=1,
        description="At most 256 KiB of UTF-8. U+0000 is removed, a lone surrogate replaced.",
        examples=["When does the ferry leave?"],
    )
    policy: Policy | None = Field(
        default=None, description="What happens while an earlier turn runs; default serialize."
    )
    parent: UUID | None = Field(
        default=None,
        strict=False,
        description="The turn this message follows; 409 stale-parent if there is a later one.",
    )
    model: str | None = Field(default=None, min_length=1, max_length=MAX_MODEL_CHARACTERS)
    options: Options | None = None
    time_zone: str | None = Field(
        default=None, max_length=MAX_TIME_ZONE_CHARACTERS, examples=["Europe/Zurich"]
    )


class FirstMessageBody(_Asked):
    """The message a new conversation begins with."""

    content: str = Field(min_length=1, examples=["When does the ferry leave?"])
    options: Options | None = None


class ConversationBody(_Asked):
    """A new conversation."""

    title: str | None = Field(default=None, max_length=MAX_TITLE_CHARACTERS)
    policy: Policy | None = None
    model: str | None = Field(default=None, min_length=1, max_length=MAX_MODEL_CHARACTERS)
    message: FirstMessageBody | None = None
    time_zone: str | None = Field(default=None, max_length=MAX_TIME_ZONE_CHARACTERS)


class LoginBody(_Asked):
    """Exchanges an API key for a browser session."""

    key: str = Field(min_length=1, max_length=200)


class AcceptedTurn(BaseModel):
    """The identity of a turn that is durable."""

    conversation_id: UUID
    turn_id: UUID
    user_message_id: UUID
    assistant_message_id: UUID
    seq: int = Field(description="Of the user message; the answer has the next number.")
    status: TurnStatus
    stream_url: str
    request_id: UUID


class CreatedConversation(BaseModel):
    """A conversation that is durable, and its first turn if it began with a message."""

    id: UUID
    title: str | None
    policy: Policy
    created_at: datetime
    turn: AcceptedTurn | None = None


class Conversation(BaseModel):
    """A conversation."""

    id: UUID
    title: str | None
    policy: Policy
    created_at: datetime
    updated_at: datetime
    message_count: int


class Message(BaseModel):
    """A message; the content of a running answer is what is stored so far."""

    id: UUID
    role: Literal["user", "assistant"]
    content: str
    seq: int
    status: TurnStatus
    reason: str | None
    turn_id: UUID
    created_at: datetime


class _List(BaseModel):
    object: Literal["list"] = "list"
    first_id: UUID | None
    last_id: UUID | None
    has_more: bool


class ConversationList(_List):
    """A page of conversations."""

    data: list[Conversation]


class MessageList(_List):
    """A page of messages, in the order of their seq."""

    data: list[Message]


class Turn(BaseModel):
    """The record of a turn, without its text."""

    id: UUID
    object: Literal["turn"] = "turn"
    conversation_id: UUID
    user_message_id: UUID
    assistant_message_id: UUID
    seq: int
    status: TurnStatus
    reason: str | None
    policy: Policy | None
    model: str | None
    length: int | None = Field(description="Bytes of the answer in UTF-8, once it has ended.")
    sha256: str | None
    usage: Usage | None
    created_at: datetime | None
    started_at: datetime | None
    deadline_at: datetime | None
    ended_at: datetime | None
    stream_url: str


class StepPlan(BaseModel):
    """What the model was shown in one step, as stored before the call."""

    step_id: UUID
    step_no: int
    created_at: datetime
    plan: dict[str, Any] = Field(
        description="Ordered blocks, exclusions with reason, budgets and the payload's fingerprint."
    )


class TurnPlan(BaseModel):
    """The plans of all steps of a turn."""

    object: Literal["plan"] = "plan"
    turn_id: UUID
    conversation_id: UUID
    steps: list[StepPlan]


class WrongField(BaseModel):
    """One thing that is wrong with the content."""

    where: str = Field(description="JSON Pointer, or the name of a parameter or header.")
    message: str
    nearest: str | None = Field(
        default=None, description="The known name closest to an unknown one."
    )


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
    retryable: bool
    turn_id: UUID | None = None
    errors: list[WrongField] | None = None


class Session(BaseModel):
    """What a browser session may do."""

    scopes: list[Literal["chat", "read", "admin"]]
