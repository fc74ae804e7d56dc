"""What must hold of every plan before it may be sent, each under the name it is counted by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from libs.errors import Terminal
from schemas.prompt_plan import FRAMED
from services.context_assembly.core.candidates import TRUST
from services.context_assembly.core.nonces import holding
from services.context_assembly.core.sections import TRIMMED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from services.context_assembly.core.candidates import Candidate
    from services.context_assembly.core.history import HistoryRow
    from services.context_assembly.core.plan import PromptPlan
    from services.context_assembly.core.planner import Planner

Invariant = Literal[
    "current_turn_once_in_plan",
    "superseded_excluded",
    "plan_within_budget",
    "plan_deterministic",
    "history_contiguous",
    "trust_framed",
]

INVARIANTS: Final[tuple[Invariant, ...]] = (
    "current_turn_once_in_plan",
    "superseded_excluded",
    "plan_within_budget",
    "plan_deterministic",
    "history_contiguous",
    "trust_framed",
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
        candidates: All that the data layers offered, in any order.
        superseded: Ids of messages that were deleted or replaced, beside those that the rows and
            the turn themselves replace.
    """

    planner: Planner
    rows: Sequence[HistoryRow]
    candidates: Sequence[Candidate] = ()
    superseded: frozenset[UUID] = frozenset()


def check(plan: PromptPlan, evidence: Evidence) -> None:
    """Raise the first broken invariant.

    Raises:
        InvariantBroken: With the invariant's name and counts, never a text.
    """
    _current_once(plan)
    _superseded_excluded(plan, evidence)
    _within_budget(plan)
    _contiguous(plan, evidence.rows)
    _framed(plan)
    _deterministic(plan, evidence)


def check_texts(plan: PromptPlan, texts: Iterable[str]) -> None:
    """Raise if the nonce of a rendered plan's frames stands in any text that it shows.

    Raises:
        InvariantBroken: A text could close its own frame, or open another.
    """
    nonce = plan.nonce
    if nonce is None:
        return
    found = holding(nonce, texts)
    if found:
        raise InvariantBroken("trust_framed", f"the nonce stands in {found} texts")


def _current_once(plan: PromptPlan) -> None:
    current = str(plan.turn.user_message_id)
    as_current = [at for at, block in enumerate(plan.blocks) if block.kind == "current"]
    times = plan.message_ids.count(current)
    is_once = times == 1 and len(as_current) == 1 and plan.blocks[as_current[0]].id == current
    continued = [str(one.message_id) for one in plan.turn.continues]
    if not is_once or [block.id for block in plan.blocks[as_current[0] + 1 :]] != continued:
        detail = f"the current message stands {times} times among {len(plan.blocks)} blocks"
        raise InvariantBroken("current_turn_once_in_plan", detail)


def _superseded_excluded(plan: PromptPlan, evidence: Evidence) -> None:
    gone = {str(row.supersedes) for row in evidence.rows if row.supersedes is not None}
    gone.update(str(message) for message in evidence.superseded)
    if plan.turn.supersedes is not None:
        gone.add(str(plan.turn.supersedes))
    for candidate in evidence.candidates:
        gone.update(candidate.supersedes)
    if not gone:
        return
    shown = gone.intersection(block.id for block in plan.blocks)
    if shown:
        detail = f"{len(shown)} deleted or replaced texts are shown"
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
    over = [
        part.section
        for part in plan.sections
        if part.section in TRIMMED and part.used > part.before
    ]
    if over:
        raise InvariantBroken("plan_within_budget", f"{', '.join(over)} exceed what was open")


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


def _framed(plan: PromptPlan) -> None:
    """Data stands in frames that are explained, in messages that do not instruct."""
    data = [block for block in plan.blocks if block.layer in FRAMED or block.trust in _DATA_TRUST]
    explained = sum(block.kind == "framing" for block in plan.blocks)
    is_apart = all(
        block.role == "user" and block.layer in FRAMED and block.trust in _DATA_TRUST
        for block in data
    )
    if not is_apart or explained != int(bool(data)):
        detail = f"{len(data)} blocks of data, explained {explained} times, are not set apart"
        raise InvariantBroken("trust_framed", detail)


def _deterministic(plan: PromptPlan, evidence: Evidence) -> None:
    """Choose again from the same rows in another order: blocks and payload follow from the choice.

    That they do follow is what the tests of other processes and hash seeds show.
    """
    again = evidence.planner.choose(
        plan.turn, tuple(reversed(evidence.rows)), tuple(reversed(evidence.candidates))
    )
    if again != plan.choice:
        detail = f"choosing twice kept {len(plan.choice.suffix.kept)} and "
        raise InvariantBroken("plan_deterministic", f"{detail}{len(again.suffix.kept)} groups")


_DATA_TRUST: Final = frozenset(TRUST.values())
