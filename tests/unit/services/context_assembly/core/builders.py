"""Values that tests of the planner are built from."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID, uuid5

from services.context_assembly.core.budget import ModelLimits, Sampling
from services.context_assembly.core.history import HistoryRow, Role
from services.context_assembly.core.instructions import SystemPolicy
from services.context_assembly.core.plan import TurnToPlan
from services.context_assembly.core.planner import Planner

ROOT = UUID("6f0e4b6e-8f0c-4f3a-9a52-0d7b0a6f1c11")
CURRENT = uuid5(ROOT, "current")
NO_POLICY = SystemPolicy("", "1")

PLAIN = ModelLimits(
    model="plain",
    window=1_000,
    max_output=100,
    tokenizer="o200k_base",
    per_message_overhead=0,
    reply_overhead=0,
    safety_factor=1.0,
    alternate_roles=False,
)


def message(
    seq: int, tokens: int, *, role: Role | None = None, status: str = "completed"
) -> HistoryRow:
    """A message; odd numbers are the user's, and a turn is an odd and the next even number."""
    turn = (seq + 1) // 2
    return HistoryRow(
        message_id=uuid5(ROOT, f"message {seq}"),
        turn_id=uuid5(ROOT, f"turn {turn}"),
        seq=seq,
        role=role or ("user" if seq % 2 else "assistant"),
        status=status,
        tokens=tokens,
        length=max(1, tokens * 4),
    )


def messages(*tokens: int) -> list[HistoryRow]:
    """Messages 1, 2, 3 … of these sizes."""
    return [message(seq, size) for seq, size in enumerate(tokens, start=1)]


def turn_after(rows: Sequence[HistoryRow], *, current_tokens: int = 10) -> TurnToPlan:
    """The turn whose user message comes right after ``rows``."""
    return TurnToPlan(
        turn_id=uuid5(ROOT, "turn"),
        step_id=uuid5(ROOT, "step"),
        step_no=1,
        base_seq=max((row.seq for row in rows), default=0) + 1,
        user_message_id=CURRENT,
        current_tokens=current_tokens,
    )


def planner(
    limits: ModelLimits = PLAIN, *, window: int | None = None, reply_tokens: int = 100
) -> Planner:
    """A planner without a policy text."""
    chosen = replace(limits, window=window) if window is not None else limits
    return Planner(chosen, NO_POLICY, Sampling(reply_tokens))


def text_of(row_id: str) -> str:
    """A text of its own for every message."""
    return f"text of {row_id}"
