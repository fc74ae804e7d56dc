"""What must hold of every plan before it may be sent, each under the name it is counted by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from libs.errors import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from services.context_assembly.core.history import HistoryRow
    from services.context_assembly.core.plan import Planner, PromptPlan

Invariant = Literal[
    "current_turn_once_in_plan",
    "superseded_excluded",
    "plan_within_budget",
    "plan_deterministic",
    "history_contiguous",
]

INVARIANTS: Final[tuple[Invariant, ...]] = (
    "current_turn_once_in_plan",
    "superseded_excluded",
    "plan_within_budget",
    "plan_deterministic",
    "history_contiguous",
)


class InvariantBroken(Terminal):
    """A plan breaks a rule that holds of every plan; it is never sent.

    Attributes:
        invariant: Name of the rule.
    """

    code = "context.invariant"

    def __init__(self, invariant: Invariant, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}; the turn is stopped, report it with its plan")
        self.invariant: Invariant = invariant


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a plan is judged against: the rows it was made from.

    Attributes:
        rows: All messages that were loaded, in any order.
        superseded: Ids of messages that were deleted or replaced by a newer revision.
    """

    planner: Planner
    rows: Sequence[HistoryRow]
    superseded: frozenset[UUID] = frozenset()


def check(plan: PromptPlan, evidence: Evidence) -> None:
    """Raise the first broken invariant.

    Raises:
        InvariantBroken: With the invariant's name and counts, never a text.
    """
    _current_once(plan)
    _superseded_excluded(plan, evidence.superseded)
    _within_budget(plan)
    _contiguous(plan, evidence.rows)
    _deterministic(plan, evidence)


def _current_once(plan: PromptPlan) -> None:
    current = str(plan.turn.user_message_id)
    as_current = [block for block in plan.blocks if block.kind == "current"]
    times = plan.message_ids.count(current)
    if times != 1 or len(as_current) != 1 or plan.blocks[-1].id != current:
        detail = f"the current message stands {times} times among {len(plan.blocks)} blocks"
        raise InvariantBroken("current_turn_once_in_plan", detail)


def _superseded_excluded(plan: PromptPlan, superseded: Iterable[UUID]) -> None:
    shown = {str(gone) for gone in superseded}.intersection(plan.message_ids)
    if shown:
        detail = f"{len(shown)} deleted or replaced messages are shown"
        raise InvariantBroken("superseded_excluded", detail)


def _within_budget(plan: PromptPlan) -> None:
    offset = 0
    for block in plan.blocks:
        if block.token_offset != offset or block.tokens < 0:
            detail = f"a block begins at {block.token_offset} where {offset} tokens were used"
            raise InvariantBroken("plan_within_budget", detail)
        offset += block.tokens
    if offset > plan.budget_tokens:
        detail = f"{offset} tokens are planned, {plan.budget_tokens} are allowed"
        raise InvariantBroken("plan_within_budget", detail)


def _contiguous(plan: PromptPlan, rows: Sequence[HistoryRow]) -> None:
    """History in the plan is exactly the newest rows that may be shown, oldest first, each once."""
    base_seq = plan.turn.base_seq
    may_show = [
        row for row in rows if row.seq < base_seq and (row.length > 0 or row.role == "user")
    ]
    may_show.sort(key=lambda row: (row.seq, row.message_id.int))
    shown = [block.id for block in plan.blocks if block.kind == "message"]
    newest = [str(row.message_id) for row in may_show[len(may_show) - len(shown) :]]
    seqs = [block.seq for block in plan.blocks if block.kind == "message"]
    if len(shown) > len(may_show) or shown != newest or len(set(seqs)) < len(seqs):
        detail = f"the {len(shown)} messages shown are not the newest of {len(may_show)}"
        raise InvariantBroken("history_contiguous", detail)


def _deterministic(plan: PromptPlan, evidence: Evidence) -> None:
    """Choose again from the same rows in another order: blocks and payload follow from the choice.

    That they do follow is what the tests of other processes and hash seeds show.
    """
    again = evidence.planner.choose(plan.turn, tuple(reversed(evidence.rows)))
    if again != plan.suffix:
        detail = f"choosing twice kept {len(plan.suffix.kept)} and {len(again.kept)} groups"
        raise InvariantBroken("plan_deterministic", detail)
