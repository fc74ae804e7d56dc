"""Bodies of the plan inspector's answers."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, Field

from services.frontend_gateway.core.timeline import HopName
from services.frontend_gateway.http.models import TurnStatus


class TimelineHop(BaseModel):
    """One point that a turn passed."""

    name: HopName = Field(
        description="accepted, started, planned, called, first_token, call_ended, committed; "
        "refused where the plan was not sent. Those of a call come once for each attempt."
    )
    at: datetime
    duration_ms: float | None = Field(
        description="Since the hop before it, never below 0; null of the first."
    )
    step_no: int | None
    attempt: int | None


class TimelineTransition(BaseModel):
    """A state that a turn entered."""

    status: TurnStatus
    reason: str | None
    at: datetime


class TimelineStep(BaseModel):
    """What was decided about one step."""

    step_id: UUID
    step_no: int
    state: Literal["planned", "refused", "ended"]
    reason: str | None
    invariant: str | None = Field(description="The rule that the plan broke, if it broke one.")
    model: str
    created_at: datetime
    ended_at: datetime | None


class TimelineAttempt(BaseModel):
    """One attempt of a step; its times are null where nobody measured them."""

    step_no: int
    attempt: int
    model: str
    outcome: str = Field(description="running, completed, interrupted, failed or repeated.")
    reason: str | None
    failure: str | None = Field(description="Class and code of the last provider failure.")
    requests: int | None = Field(description="Sent to the provider.")
    first_token_ms: int | None
    duration_ms: int | None
    began_at: datetime | None
    ended_at: datetime | None
    input_tokens: int | None
    output_tokens: int | None


class Timeline(BaseModel):
    """When what happened to a turn."""

    object: Literal["timeline"] = "timeline"
    turn_id: UUID
    conversation_id: UUID
    status: TurnStatus
    reason: str | None
    now: datetime = Field(description="The server's clock, for whose own is wrong.")
    total_ms: float
    hops: list[TimelineHop]
    transitions: list[TimelineTransition]
    steps: list[TimelineStep]
    attempts: list[TimelineAttempt] = Field(description="Kept for 30 days.")


class LeftOutMessage(BaseModel):
    """A message, or another text, that a plan left out."""

    id: str
    reason: str
    seq: int | None
    role: str | None
    status: str | None
    tokens: int | None = Field(description="Of the text alone, where it was counted.")
    length: int | None = Field(description="Bytes of the text in UTF-8.")
    said_at: datetime | None


class LeftOutList(BaseModel):
    """A page of what a plan left out, newest first."""

    object: Literal["left_out"] = "left_out"
    turn_id: UUID
    step_no: int
    total: int | None = Field(description="All that was left out; of the first page only.")
    data: list[LeftOutMessage]
    next_below: int | None = Field(description="Asks for what is older; null at the end.")


class PlanText(BaseModel):
    """The text of one block, or of one message that was left out."""

    object: Literal["plan_text"] = "plan_text"
    turn_id: UUID
    id: str
    text: str | None
    missing: Literal["deleted", "missing"] | None = Field(description="Why there is no text.")
    is_as_sent: bool | None = Field(
        description="Whether it still is the text that the plan was made of; null of what was "
        "left out."
    )


class Excerpt(BaseModel):
    """How a text begins."""

    id: str
    excerpt: str


class ExcerptList(BaseModel):
    """How the texts of blocks and messages begin; those that are gone are left out."""

    object: Literal["plan_excerpts"] = "plan_excerpts"
    turn_id: UUID
    data: list[Excerpt]
