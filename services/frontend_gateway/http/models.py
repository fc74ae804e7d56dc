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
from services.frontend_gateway.core.differences import Pattern

TurnStatus = Literal[
    "pending", "generating", "waiting_for_tool", "completed", "partial", "failed", "cancelled"
]
MAX_OUTPUT_TOKENS = 1_000_000  # above every model's window; the catalogue decides what is possible
LONGEST_GRACE_S = 3_600
MAX_EXPLAINED_BYTES = 8 * 1024  # a sentence is enough to find a text; searching costs by its length

TurnKind = Literal["message", "edit", "regenerate", "continue"]


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


class EditBody(_Asked):
    """A message that is said again in other words."""

    content: str = Field(
        min_length=1,
        description="As of a message.",
        examples=["When does the last ferry leave?"],
    )
    policy: Policy | None = Field(
        default=None, description="What happens while a turn of the branch runs."
    )
    model: str | None = Field(default=None, min_length=1, max_length=MAX_MODEL_CHARACTERS)
    options: Options | None = None
    time_zone: str | None = Field(default=None, max_length=MAX_TIME_ZONE_CHARACTERS)


class AnswerBody(_Asked):
    """How an answer is made again or continued; an empty object takes what the conversation has."""

    policy: Policy | None = None
    model: str | None = Field(default=None, min_length=1, max_length=MAX_MODEL_CHARACTERS)
    options: Options | None = None


class ConversationUpdateBody(_Asked):
    """What is changed of a conversation; at least one of both."""

    title: str | None = Field(default=None, max_length=MAX_TITLE_CHARACTERS)
    policy: Policy | None = None


class ExplainBody(_Asked):
    """What is looked for in a turn's plan: a text, or a message. One of both."""

    text: str | None = Field(
        default=None,
        min_length=1,
        description=f"At most {MAX_EXPLAINED_BYTES} bytes of UTF-8.",
    )
    message_id: UUID | None = Field(default=None, strict=False)
    step: int | None = Field(
        default=None, ge=1, le=9_999, description="Which step's plan; left out: the last one."
    )


class InstructionsBody(_Asked):
    """The operator's texts for a tenant; what is left out stays, an empty one is taken back."""

    system_policy: str | None = None
    workspace: str | None = None


class ConversationInstructionsBody(_Asked):
    """The operator's text for one conversation; an empty one is taken back."""

    workspace: str


class CapturePostureBody(_Asked):
    """Whose payloads are kept for a while."""

    posture: Literal["none", "failures"] = Field(
        description="none keeps nothing and deletes what was kept; failures keeps what went wrong."
    )
    sampled_per_mille: int = Field(
        default=0, ge=0, le=1_000, description="Of 1,000 turns that went well, how many are kept."
    )


class CaptureFlagBody(_Asked):
    """Whether all payloads of a conversation are kept for a while."""

    enabled: bool


class LoginBody(_Asked):
    """Exchanges an API key for a browser session."""

    key: str = Field(min_length=1, max_length=200)


class AcceptedTurn(BaseModel):
    """The identity of a turn that is durable."""

    conversation_id: UUID
    turn_id: UUID
    user_message_id: UUID
    assistant_message_id: UUID
    seq: int = Field(description="The answer has the next number.")
    status: TurnStatus
    kind: TurnKind
    branch_id: UUID
    queue_position: int | None = Field(
        description="Open turns of its branch ahead of it; null once it has ended."
    )
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
    branch_id: UUID
    supersedes: UUID | None = Field(description="The message that it was said instead of.")
    kind: TurnKind = Field(description="Of its turn.")
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


class Branch(BaseModel):
    """A line of a conversation: what stands on it is its parent's below fork_seq, then its own."""

    id: UUID
    kind: Literal["main", "sibling"]
    parent_branch_id: UUID | None
    fork_seq: int | None
    is_active: bool = Field(description="A message without a parent goes here.")
    first_turn_id: UUID | None
    last_turn_id: UUID | None
    created_at: datetime


class BranchList(_List):
    """All branches of a conversation, at most 200, oldest first."""

    data: list[Branch]


class Turn(BaseModel):
    """The record of a turn, without its text."""

    id: UUID
    object: Literal["turn"] = "turn"
    conversation_id: UUID
    kind: TurnKind
    branch_id: UUID
    parent_turn_id: UUID | None
    user_message_id: UUID
    assistant_message_id: UUID
    seq: int
    status: TurnStatus
    reason: str | None
    queue_position: int | None
    cancel_requested: bool
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
    invariant: str | None = Field(
        description="The rule that the plan breaks: it was never sent, and the turn failed."
    )


class TurnPlan(BaseModel):
    """The plans of all steps of a turn."""

    object: Literal["plan"] = "plan"
    turn_id: UUID
    conversation_id: UUID
    steps: list[StepPlan]


class VanishedMessage(BaseModel):
    """A message that the earlier plan shows and the later one does not."""

    id: UUID
    reason: str = Field(description="deleted, superseded, budget, other_branch, later, not_found…")


class PlanDiff(BaseModel):
    """What the plan of a turn shows beside, and no longer, than that of an earlier one."""

    object: Literal["plan_diff"] = "plan_diff"
    turn_id: UUID
    against: UUID
    pattern: Pattern = Field(description="The worst of what is seen.")
    patterns: list[Pattern]
    is_healthy: bool = Field(description="Growth, and nothing gone without a good reason.")
    line: str = Field(description="The same for a person.")
    added: list[UUID]
    vanished: list[VanishedMessage]
    twice: list[UUID]
    foreign: list[UUID]
    swapped: list[UUID]
    stale: list[str] = Field(description="Messages and instructions in an older version.")


class SectionBudget(BaseModel):
    """Tokens of a section at that time."""

    before: int = Field(description="Open to it when it was filled.")
    used: int
    after: int


class Explanation(BaseModel):
    """Whether the model was shown something: what is absent was not ignored."""

    object: Literal["explanation"] = "explanation"
    turn_id: UUID
    verdict: Literal["present", "absent"]
    block: int | None = Field(description="Which block it is, from 1; null where absent.")
    to_block: int | None = Field(
        description="The last block that a text runs over; the same where one holds it whole."
    )
    of: int = Field(description="Blocks of the plan.")
    block_id: str | None
    token_offset: int | None = Field(description="Tokens of all blocks before it.")
    of_tokens: int = Field(description="Tokens of the plan.")
    trust: str | None = Field(description="Whose words it is.")
    section: str
    message_id: UUID | None = Field(description="The message that is, or would be, shown.")
    reason: str | None = Field(
        description="Why it is absent: not_stored, deleted, superseded, later, budget…"
    )
    budget: SectionBudget | None
    also_in: list[str] = Field(description="Further blocks that hold it.")


class ChangedBlock(BaseModel):
    """A block whose text is no longer the one that was sent."""

    id: str
    why: Literal["deleted", "text_changed", "missing"]


class Replay(BaseModel):
    """The payload of a step, made again from what is stored."""

    object: Literal["replay"] = "replay"
    turn_id: UUID
    step_no: int
    fingerprint_sent: str
    fingerprint_now: str | None
    equal: bool
    changed: list[ChangedBlock]


class Instruction(BaseModel):
    """A text of the operator's, as it is current; plans name its version."""

    text: str
    version: int
    set_at: datetime | None


class Instructions(BaseModel):
    """The texts of a tenant."""

    object: Literal["instructions"] = "instructions"
    system_policy: Instruction | None
    workspace: Instruction | None


class ConversationInstructions(BaseModel):
    """The text of a conversation."""

    object: Literal["instructions"] = "instructions"
    workspace: Instruction | None


class CapturePosture(BaseModel):
    """What is kept of a tenant's payloads."""

    object: Literal["capture_posture"] = "capture_posture"
    posture: Literal["none", "failures"]
    sampled_per_mille: int


class CaptureFlag(BaseModel):
    """Whether all payloads of a conversation are kept."""

    object: Literal["capture_flag"] = "capture_flag"
    enabled: bool


class Capture(BaseModel):
    """A payload as it was sent to the provider."""

    object: Literal["capture"] = "capture"
    turn_id: UUID
    step_no: int
    cause: str
    captured_at: datetime
    payload: str


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

    scopes: list[Literal["chat", "read", "admin", "captures"]]
