"""The prompt plan: which blocks a model is shown in a step, in which order, and what was left out.

Same rows, same limits, same plan, in any process: nothing here reads a clock, a setting or a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from libs.errors import Terminal
from libs.tokens import count
from services.context_assembly.core.budget import ModelLimits, Sampling, prompt_budget
from services.context_assembly.core.history import (
    Costs,
    Group,
    HistoryRow,
    Suffix,
    eligible,
    groups,
    is_cut_off,
    newest_that_fit,
    total_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

ASSEMBLY_REVISION: Final = 1
"""Raised with every change of what a plan holds for the same rows, so that plans compare."""

NO_ANSWER: Final = "[no answer]"
INTERRUPTED: Final = "\n\n[interrupted]"

MAX_EXCLUDED_IDS: Final = 50
"""Ids of left out messages a plan lists, nearest first; what is older is told by its boundary."""

Kind = Literal["system", "message", "no_answer", "interrupted", "current"]
Trust = Literal["operator", "user", "model"]
ExclusionReason = Literal["budget"]


class PromptTooLarge(Terminal):
    """The parts that may not be trimmed exceed the budget on their own."""

    code = "context.too_large"

    def __init__(self, *, required_tokens: int, budget_tokens: int) -> None:
        super().__init__(
            f"the message needs {required_tokens} tokens, the prompt may have {budget_tokens}: "
            "shorten it or choose a model with a larger window"
        )
        self.required_tokens = required_tokens
        self.budget_tokens = budget_tokens


@dataclass(frozen=True, slots=True)
class SystemPolicy:
    """The operator's fixed text at the head of every prompt; empty text means no such block."""

    text: str
    version: str


@dataclass(frozen=True, slots=True)
class TurnToPlan:
    """The turn whose step is planned.

    Attributes:
        base_seq: Seq of the user message; history is below it.
        current_tokens: Of the user message's text, in the model's tokenizer.
    """

    turn_id: UUID
    step_id: UUID
    step_no: int
    base_seq: int
    user_message_id: UUID
    current_tokens: int


class Block(NamedTuple):
    """One piece of a prompt; a tuple, since hundreds are made for every plan.

    Attributes:
        id: A message's id, or the name of a fixed text; unique in a plan.
        trust: Whose words they are: only the operator's may instruct.
        source: Where the text lives.
        version: Which revision of the text; messages never change under one id.
        tokens: With the overhead of its message.
        token_offset: Tokens of all blocks before it.
        score: Of retrieved blocks only.
        permission_checked_at: Of blocks with access rules of their own only.
    """

    id: str
    kind: Kind
    trust: Trust
    role: Literal["system", "user", "assistant"]
    source: str
    version: str | None
    seq: int | None
    observed_at: str | None
    tokens: int
    token_offset: int
    score: float | None = None
    permission_checked_at: str | None = None


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A candidate that was loaded and not shown."""

    id: str
    reason: ExclusionReason


@dataclass(frozen=True, slots=True)
class SectionBudget:
    """Tokens open to a section when it was filled, and what it left for the next."""

    section: Literal["system", "current", "history"]
    before: int
    used: int

    @property
    def after(self) -> int:
        """Tokens left for the sections that are filled later."""
        return self.before - self.used


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """What a step shows the model, and why.

    Attributes:
        suffix: The history that was chosen; its blocks follow from it.
        blocks: In the order of the prompt.
        excluded: Loaded and left out, nearest to the boundary first; at most MAX_EXCLUDED_IDS.
        excluded_up_to_seq: Nothing with this seq or a lower one is shown; None if all were shown.
        budget_tokens: What the blocks may use together.
        sections: In the order they were filled: fixed parts first, history with what is left.
        loaded: Rows of history that were read; trimmed = loaded - kept.
        fingerprint: SHA-256 of the payload, hexadecimal; empty until it is rendered.
    """

    turn: TurnToPlan
    limits: ModelLimits
    sampling: Sampling
    suffix: Suffix
    blocks: tuple[Block, ...]
    excluded: tuple[Exclusion, ...]
    excluded_up_to_seq: int | None
    budget_tokens: int
    sections: tuple[SectionBudget, ...]
    loaded: int
    kept: int
    policy_text: str
    fingerprint: str = ""

    @property
    def tokens(self) -> int:
        """Of all blocks, without the reply's reserve."""
        return sum(block.tokens for block in self.blocks)

    @property
    def trimmed(self) -> int:
        """Rows of history that were read and are not shown."""
        return self.loaded - self.kept

    @property
    def message_ids(self) -> tuple[str, ...]:
        """Stored messages that are shown, oldest first, the current one last."""
        return tuple(block.id for block in self.blocks if block.kind in _STORED)

    @property
    def seq_range(self) -> tuple[int, int]:
        """Seq of the oldest and the newest message that is shown."""
        seqs = [block.seq for block in self.blocks if block.seq is not None]
        return min(seqs), max(seqs)


_STORED: Final = frozenset({"message", "current"})


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans the steps of turns that share a model, a policy text and sampling choices."""

    limits: ModelLimits
    policy: SystemPolicy
    sampling: Sampling

    def older_rows_wanted(self, turn: TurnToPlan, rows: Iterable[HistoryRow]) -> int:
        """How many messages older than those loaded may still be shown, judged by their average.

        0 if none can be: what was loaded does not fit whole. An estimate otherwise, at least 1,
        so that a long history is read in few pages and none is much larger than what fits.
        """
        history = eligible(rows, base_seq=turn.base_seq, current_id=turn.user_message_id)
        alternate = self.limits.alternate_roles
        loaded = total_tokens(history, self._costs(), alternate_roles=alternate)
        room = self._available(turn) - loaded
        if room < 0:
            return 0
        return 1 + (room * len(history) // loaded if loaded else 0)

    def choose(self, turn: TurnToPlan, rows: Iterable[HistoryRow]) -> Suffix:
        """Choose the part of the history that fits; everything else in a plan follows from it.

        Args:
            rows: Messages before the turn, in any order; read until ``older_rows_wanted`` is 0 or
                there are no more.

        Raises:
            PromptTooLarge: The policy text and the current message alone exceed the budget.
        """
        available = self._available(turn)
        if available < 0:
            raise PromptTooLarge(
                required_tokens=self._system_tokens() + self._current_tokens(turn),
                budget_tokens=prompt_budget(self.limits, self.sampling.max_tokens),
            )
        history = eligible(rows, base_seq=turn.base_seq, current_id=turn.user_message_id)
        alternate = self.limits.alternate_roles
        candidates = groups(history, self._costs(), alternate_roles=alternate)
        return newest_that_fit(candidates, available)

    def plan(self, turn: TurnToPlan, rows: Iterable[HistoryRow]) -> PromptPlan:
        """Choose the blocks of one step; arguments and errors are those of ``choose``."""
        return self.lay_out(turn, self.choose(turn, rows))

    def lay_out(self, turn: TurnToPlan, suffix: Suffix) -> PromptPlan:
        """The plan that follows from what ``choose`` chose."""
        budget = prompt_budget(self.limits, self.sampling.max_tokens)
        system = self._system_tokens()
        kept = [row for group in suffix.kept for row in group.rows]
        return PromptPlan(
            turn=turn,
            limits=self.limits,
            sampling=self.sampling,
            suffix=suffix,
            blocks=self._blocks(turn, suffix),
            excluded=tuple(
                Exclusion(str(row.message_id), "budget")
                for row in suffix.left_out[:MAX_EXCLUDED_IDS]
            ),
            excluded_up_to_seq=suffix.left_out[0].seq if suffix.left_out else None,
            budget_tokens=budget,
            sections=(
                SectionBudget("system", budget, system),
                SectionBudget("current", budget - system, self._current_tokens(turn)),
                SectionBudget("history", self._available(turn), suffix.tokens),
            ),
            loaded=len(kept) + len(suffix.left_out),
            kept=len(kept),
            policy_text=self.policy.text,
        )

    def _available(self, turn: TurnToPlan) -> int:
        budget = prompt_budget(self.limits, self.sampling.max_tokens)
        return budget - self._system_tokens() - self._current_tokens(turn)

    def _costs(self) -> Costs:
        overhead = self.limits.per_message_overhead
        return Costs(
            per_message=overhead,
            no_answer=count(NO_ANSWER, self.limits.tokenizer) + overhead,
            interrupted=count(INTERRUPTED, self.limits.tokenizer),
        )

    def _system_tokens(self) -> int:
        if not self.policy.text:
            return 0
        text = count(self.policy.text, self.limits.tokenizer)
        return text + self.limits.per_message_overhead

    def _current_tokens(self, turn: TurnToPlan) -> int:
        return turn.current_tokens + self.limits.per_message_overhead

    def _blocks(self, turn: TurnToPlan, suffix: Suffix) -> tuple[Block, ...]:
        line = _Line()
        if self.policy.text:
            line.add_system(self.policy, self._system_tokens())
        costs = self._costs()
        for group in reversed(suffix.kept):
            line.add_group(group, costs)
        line.add_current(turn, self._current_tokens(turn))
        return tuple(line.blocks)


class _Line:
    """Puts blocks one behind the other and keeps the running offset."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._offset = 0

    def add_system(self, policy: SystemPolicy, tokens: int) -> None:
        self._append(
            Block(
                id=f"policy:{policy.version}",
                kind="system",
                trust="operator",
                role="system",
                source="settings",
                version=policy.version,
                seq=None,
                observed_at=None,
                tokens=tokens,
                token_offset=self._offset,
            )
        )

    def add_group(self, group: Group, costs: Costs) -> None:
        for row in group.rows:
            self._append(
                Block(
                    id=str(row.message_id),
                    kind="message",
                    trust="user" if row.role == "user" else "model",
                    role=row.role,
                    source="ingestion.messages",
                    version=None,
                    seq=row.seq,
                    observed_at=row.observed_at,
                    tokens=row.tokens + costs.per_message,
                    token_offset=self._offset,
                )
            )
            if is_cut_off(row):
                self._add_mark(row, "interrupted", costs.interrupted)
        if group.is_unanswered:
            self._add_mark(group.rows[-1], "no_answer", costs.no_answer)

    def add_current(self, turn: TurnToPlan, tokens: int) -> None:
        self._append(
            Block(
                id=str(turn.user_message_id),
                kind="current",
                trust="user",
                role="user",
                source="ingestion.messages",
                version=None,
                seq=turn.base_seq,
                observed_at=None,
                tokens=tokens,
                token_offset=self._offset,
            )
        )

    def _add_mark(
        self, row: HistoryRow, kind: Literal["interrupted", "no_answer"], tokens: int
    ) -> None:
        self._append(
            Block(
                id=f"{row.message_id}:{kind}",
                kind=kind,
                trust="operator",
                role="assistant",
                source="assembly",
                version=str(ASSEMBLY_REVISION),
                seq=None,
                observed_at=None,
                tokens=tokens,
                token_offset=self._offset,
            )
        )

    def _append(self, block: Block) -> None:
        self.blocks.append(block)
        self._offset += block.tokens


def to_document(plan: PromptPlan) -> dict[str, Any]:
    """The plan as it is stored and shown: ids, counts and reasons, never a text."""
    return {
        "assembly_revision": ASSEMBLY_REVISION,
        "turn_id": str(plan.turn.turn_id),
        "step_id": str(plan.turn.step_id),
        "step_no": plan.turn.step_no,
        "model": plan.limits.model,
        "tokenizer": plan.limits.tokenizer,
        "fingerprint": plan.fingerprint,
        "blocks": [_block_document(block) for block in plan.blocks],
        "excluded": [{"id": gone.id, "reason": gone.reason} for gone in plan.excluded],
        "excluded_up_to_seq": plan.excluded_up_to_seq,
        "budget": {
            "window": plan.limits.window,
            "reply_reserve": plan.sampling.max_tokens,
            "reply_overhead": plan.limits.reply_overhead,
            "safety_factor": plan.limits.safety_factor,
            "tokens": plan.budget_tokens,
            "used": plan.tokens,
            "sections": [
                {
                    "section": part.section,
                    "before": part.before,
                    "used": part.used,
                    "after": part.after,
                }
                for part in plan.sections
            ],
        },
        "message_ids": list(plan.message_ids),
        "seq_range": list(plan.seq_range),
        "count": len(plan.message_ids),
        "history": {
            "base_seq": plan.turn.base_seq,
            "loaded": plan.loaded,
            "kept": plan.kept,
            "trimmed": plan.trimmed,
        },
    }


def _block_document(block: Block) -> dict[str, Any]:
    return {
        "id": block.id,
        "kind": block.kind,
        "trust": block.trust,
        "role": block.role,
        "source": block.source,
        "version": block.version,
        "seq": block.seq,
        "observed_at": block.observed_at,
        "tokens": block.tokens,
        "token_offset": block.token_offset,
        "score": block.score,
        "permission_checked_at": block.permission_checked_at,
    }
