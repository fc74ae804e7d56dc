"""Chooses what a step shows the model: the newest history and the best data that fit its window.

Same rows, same limits, same plan, in any process: nothing here reads a clock, a setting or a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from libs.errors import Terminal
from schemas.prompt_plan import (
    INTERRUPTED,
    NO_ANSWER,
    NO_QUESTION,
    NONCE_LENGTH,
    NOTED,
    SYSTEM_JOINT,
    framing_text,
)
from services.context_assembly.core.blocks import FrameCosts, Prices, lay_blocks
from services.context_assembly.core.budget import ModelLimits, Sampling, prompt_budget
from services.context_assembly.core.candidates import Screened, screen
from services.context_assembly.core.counts import fixed_count
from services.context_assembly.core.history import (
    Costs,
    Group,
    HistoryRow,
    Suffix,
    eligible,
    groups,
    least_tokens,
    newest_that_fit,
)
from services.context_assembly.core.instructions import (
    Instruction,
    SystemPolicy,
    shown_instructions,
)
from services.context_assembly.core.plan import (
    MAX_EXCLUDED_IDS,
    Choice,
    Exclusion,
    PromptPlan,
    SectionBudget,
    TurnToPlan,
)
from services.context_assembly.core.sections import fill, open_to, served_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schemas.prompt_plan import ExclusionReason, Section
    from services.context_assembly.core.candidates import Candidate, DataGroup

_HEAD_DATA: Final[frozenset[Section]] = frozenset({"summary", "memory", "retrieved"})
_FIXED: Final[tuple[Literal["system", "workspace", "current"], ...]] = (
    "system",
    "workspace",
    "current",
)
_NOTHING: Final = Screened((), ())
_NO_FRAMES: Final = FrameCosts(0, 0)


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
class Planner:
    """Plans the steps of turns that share a model, the operator's texts and sampling choices."""

    limits: ModelLimits
    policy: SystemPolicy
    sampling: Sampling
    instructions: tuple[Instruction, ...] = ()

    def older_rows_wanted(self, turn: TurnToPlan, rows: Iterable[HistoryRow]) -> int:
        """How many messages older than those loaded may still be shown, judged by their average.

        0 if none can be: what was loaded does not fit whole. An estimate otherwise, at least 1,
        so that a long history is read in few pages and none is much larger than what fits.
        """
        history = eligible(rows, base_seq=turn.base_seq, not_history=turn.not_history)
        alternate = self.limits.alternate_roles
        loaded = least_tokens(history, self.costs(), alternate_roles=alternate)
        room = self._available(turn)
        ceiling = next(r.ceiling for r in self.limits.sections if r.section == "history")
        if ceiling is not None:
            room = min(room, ceiling)
        room -= loaded
        if room < 0:
            return 0
        return 1 + (room * len(history) // loaded if loaded else 0)

    def choose(
        self,
        turn: TurnToPlan,
        rows: Iterable[HistoryRow],
        candidates: Sequence[Candidate] = (),
    ) -> Choice:
        """Choose what fits of the history and of the data; all else in a plan follows from it.

        Args:
            rows: Messages before the turn, in any order; read until ``older_rows_wanted`` is 0 or
                there are no more.
            candidates: What the data layers offer, in any order.

        Raises:
            PromptTooLarge: The operator's texts and the current message alone exceed the budget.
        """
        available = self._available(turn)
        if available < 0:
            budget = prompt_budget(self.limits, self.sampling.max_tokens)
            raise PromptTooLarge(required_tokens=budget - available, budget_tokens=budget)
        history = eligible(rows, base_seq=turn.base_seq, not_history=turn.not_history)
        alternate = self.limits.alternate_roles
        exchanges = groups(history, self.costs(), alternate_roles=alternate)
        if not candidates:
            return self._divide(available, exchanges, _NOTHING)
        screened = screen(candidates, self.limits.tokenizer)
        sections = {group.members[0].section for group in screened.groups}
        frames = self.frame_costs(sections)
        reserve = frames.framing + frames.noted * _data_messages(sections)
        choice = self._divide(available - reserve, exchanges, screened)
        if choice.data:
            return choice
        # Nothing was framed, so nothing need be kept free for frames.
        every = tuple(member for group in screened.groups for member in group.members)
        alone = self._divide(available, exchanges, Screened((), screened.barred))
        over = tuple(Exclusion(candidate.id, "budget") for candidate in every)
        return Choice(alone.suffix, alone.before, excluded=(*alone.excluded, *over))

    def plan(
        self,
        turn: TurnToPlan,
        rows: Iterable[HistoryRow],
        candidates: Sequence[Candidate] = (),
    ) -> PromptPlan:
        """Choose the blocks of one step; arguments and errors are those of ``choose``."""
        return self.lay_out(turn, self.choose(turn, rows, candidates))

    def lay_out(self, turn: TurnToPlan, choice: Choice) -> PromptPlan:
        """The plan that follows from what ``choose`` chose."""
        suffix = choice.suffix
        shown = self.head()
        laid = lay_blocks(turn, choice, shown, self._prices(choice))
        kept = sum(len(group.rows) for group in suffix.kept)
        trimmed = tuple(
            Exclusion(str(row.message_id), "budget") for row in suffix.left_out[:MAX_EXCLUDED_IDS]
        )
        counts: dict[ExclusionReason, int] = {}
        if suffix.left_out:
            counts["budget"] = len(suffix.left_out)
        for gone in choice.excluded:
            counts[gone.reason] = counts.get(gone.reason, 0) + 1
        return PromptPlan(
            turn=turn,
            limits=self.limits,
            sampling=self.sampling,
            choice=choice,
            instructions=shown,
            blocks=laid.blocks,
            excluded=trimmed + choice.excluded[:MAX_EXCLUDED_IDS],
            excluded_counts=counts,
            excluded_up_to_seq=suffix.left_out[0].seq if suffix.left_out else None,
            budget_tokens=prompt_budget(self.limits, self.sampling.max_tokens),
            sections=self._sections(choice, laid.used),
            loaded=kept + len(suffix.left_out),
            kept=kept,
        )

    def head(self) -> tuple[Instruction, ...]:
        """The operator's texts that are shown, in their order."""
        return shown_instructions(self.policy, self.instructions)

    def head_tokens(self) -> list[int]:
        """Tokens of each of them: the first opens the system message, the others are joined."""
        tokenizer = self.limits.tokenizer
        found: list[int] = []
        for one in self.head():
            if found:
                found.append(fixed_count(SYSTEM_JOINT + one.text, tokenizer))
            else:
                opening = self.limits.per_message_overhead
                found.append(fixed_count(one.text, tokenizer) + opening)
        return found

    def frame_costs(self, sections: Iterable[Section]) -> FrameCosts:
        """What it costs to show framed data of these sections, beside the frames themselves.

        The nonce is chosen last, when all texts are known, so each of its digits counts as a token.
        """
        tokenizer = self.limits.tokenizer
        overhead = self.limits.per_message_overhead
        sentence = framing_text("")
        framing = 2 * NONCE_LENGTH + overhead * _data_messages(sections)
        if self.head():
            framing += fixed_count(SYSTEM_JOINT + sentence, tokenizer)
        else:
            framing += fixed_count(sentence, tokenizer) + overhead
        noted = fixed_count(NOTED, tokenizer) + overhead if self.limits.alternate_roles else 0
        return FrameCosts(framing, noted)

    def costs(self) -> Costs:
        """What messages cost beside their texts."""
        overhead = self.limits.per_message_overhead
        tokenizer = self.limits.tokenizer
        return Costs(
            per_message=overhead,
            no_answer=fixed_count(NO_ANSWER, tokenizer) + overhead,
            no_question=fixed_count(NO_QUESTION, tokenizer) + overhead,
            interrupted=fixed_count(INTERRUPTED, tokenizer),
        )

    def _prices(self, choice: Choice) -> Prices:
        frames = _NO_FRAMES
        if choice.data:
            frames = self.frame_costs({candidate.section for candidate in choice.data})
        return Prices(self.head_tokens(), self.costs(), frames, self.limits.tokenizer)

    def _divide(self, left: int, exchanges: Sequence[Group], screened: Screened) -> Choice:
        """Fill the sections that give way, in the order of their priorities."""
        offered: dict[Section, list[DataGroup]] = {}
        for group in screened.groups:
            offered.setdefault(group.members[0].section, []).append(group)
        order = served_order(self.limits.sections)
        floors = [
            rule.floor
            if rule.section in offered or (rule.section == "history" and exchanges)
            else 0
            for rule in order
        ]
        before: dict[Section, int] = {}
        shown: dict[Section, tuple[Candidate, ...]] = {}
        over: list[Exclusion] = []
        suffix = Suffix((), (), 0)
        for at, rule in enumerate(order):
            before[rule.section] = room = open_to(rule, left, sum(floors[at + 1 :]))
            if rule.section == "history":
                suffix = newest_that_fit(exchanges, room)
                left -= suffix.tokens
            elif rule.section in offered:
                filled = fill(rule.section, offered[rule.section], room)
                shown[rule.section] = filled.shown
                over += [Exclusion(candidate.id, "budget") for candidate in filled.left_out]
                left -= filled.tokens
        in_order = (shown.get(rule.section, ()) for rule in self.limits.sections)
        barred = (Exclusion(gone.id, gone.reason) for gone in screened.barred)
        data = tuple(candidate for chosen in in_order for candidate in chosen)
        return Choice(suffix, before, data, (*barred, *over))

    def _available(self, turn: TurnToPlan) -> int:
        """What the operator's texts and the turn's own messages leave; below 0 if they exceed."""
        budget = prompt_budget(self.limits, self.sampling.max_tokens)
        return budget - sum(self.head_tokens()) - self._current_tokens(turn)

    def _current_tokens(self, turn: TurnToPlan) -> int:
        overhead = self.limits.per_message_overhead
        continued = sum(one.tokens + overhead for one in turn.continues)
        return turn.current_tokens + overhead + continued

    def _sections(self, choice: Choice, used: dict[Section, int]) -> tuple[SectionBudget, ...]:
        left = prompt_budget(self.limits, self.sampling.max_tokens)
        found = []
        fixed: dict[Section, int] = {}
        for section in _FIXED:
            fixed[section] = left
            left -= used.get(section, 0)
        for rule in self.limits.sections:
            before = choice.before.get(rule.section)
            if before is None:
                before = fixed[rule.section]
            found.append(SectionBudget(rule, before, used.get(rule.section, 0)))
        return tuple(found)


def _data_messages(sections: Iterable[Section]) -> int:
    """Messages of framed data: one behind the operator's texts, one before the current message."""
    chosen = frozenset(sections)
    return int(bool(chosen & _HEAD_DATA)) + int("tools" in chosen)
