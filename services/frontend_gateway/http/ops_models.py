"""Bodies of the operators' interface: ids, states, counts and times, never what somebody wrote."""

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

EndReason = Literal["internal", "deadline", "user"]
RedrivenBy = Literal["ingestion", "context_assembly", "llm_gateway"]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    dry_run: bool = Field(
        default=True, description="Only say what would happen; nothing of it stays."
    )


class OpsEndBody(_Asked):
    """Ends a turn without an answer."""

    reason: EndReason = Field(
        default="internal", description="internal and deadline fail the turn, user cancels it."
    )


class OpsReapBody(_Asked):
    """Lets the reaper end a turn now, with what was shown of the answer."""


class OpsRedriveBody(_Asked):
    """Lets a service handle a dead letter again."""

    service: RedrivenBy = Field(description="Whose dead letter it is.")


class OpsAct(BaseModel):
    """What was done, or would be."""

    object: Literal["ops_act"]
    act: Literal["redrive", "end", "reap"]
    target_id: UUID
    dry_run: bool
    effect: str


class OpsOverview(BaseModel):
    """The figures of the whole deployment."""

    object: Literal["ops_overview"]
    at: str
    services: list[dict[str, Any]] = Field(description="Health, processes and lag of each.")
    outbox: list[dict[str, Any]] = Field(description="Events that wait, and for how long.")
    dead_letters: list[dict[str, Any]] = Field(description="How many, and how old the oldest is.")
    leases: dict[str, int] = Field(description="Workers with a lease, and calls that lost theirs.")
    turns: list[dict[str, Any]] = Field(description="By state and reason, with ages.")
    counted_among: int = Field(description="Newest accepted requests of which ended turns count.")


class OpsList(BaseModel):
    """A list behind a figure; at most 500 rows."""

    object: Literal["list"]
    data: list[dict[str, Any]]


class OpsOutbox(OpsList):
    """Events that wait, and those that the broker will never take."""

    dead: list[dict[str, Any]]


class OpsLeases(OpsList):
    """Workers, and the calls that wait or run."""

    work: list[dict[str, Any]]


class OpsSearch(BaseModel):
    """What an id or an idempotency key means."""

    object: Literal["ops_search"]
    turns: list[dict[str, Any]]
    request: dict[str, Any] | None
    dead_letter: dict[str, Any] | None


class OpsDeadLetter(BaseModel):
    """Where a record stood and why it was set aside; its size and hash, never its bytes."""

    object: Literal["dead_letter"]
    dead_letter: dict[str, Any]


class TurnStory(BaseModel):
    """One turn over all services: what became of it and why, then its lines in time."""

    object: Literal["turn_story"]
    turn: dict[str, Any]
    sentence: str
    why: str
    next_step: str
    lines: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    attempts: list[dict[str, Any]]
    work: list[dict[str, Any]]
    dead_letters: list[dict[str, Any]]
    waiting: list[dict[str, Any]]
    acts: list[dict[str, Any]]
    may: list[Literal["end", "reap"]]
