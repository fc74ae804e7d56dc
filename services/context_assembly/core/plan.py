"""The prompt plan of a step: the blocks a model is shown, their order, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from uuid import UUID

    from schemas.prompt_plan import ExclusionReason, PlanKind, Role, Section, Trust
    from services.context_assembly.core.budget import ModelLimits, Sampling
    from services.context_assembly.core.candidates import Candidate
    from services.context_assembly.core.history import Suffix
    from services.context_assembly.core.instructions import Instruction
    from services.context_assembly.core.sections import SectionRule

ASSEMBLY_REVISION: Final = 2
"""Raised with every change of what a plan holds for the same rows, so that plans compare."""

MAX_EXCLUDED_IDS: Final = 50
"""Ids of left out messages a plan lists, nearest first; what is older is told by its boundary.
As many of other candidates follow them; ``excluded_counts`` has all."""


@dataclass(frozen=True, slots=True)
class Continued:
    """An unfinished answer that the turn goes on from; tokens of its text alone."""

    message_id: UUID
    tokens: int


@dataclass(frozen=True, slots=True)
class TurnToPlan:
    """The turn whose step is planned.

    Attributes:
        base_seq: Seq of the user message; history is below it.
        current_tokens: Of the user message's text, in the model's tokenizer.
        supersedes: The message that the user message was said again for.
        continues: Shown behind the user message, oldest first.
    """

    turn_id: UUID
    step_id: UUID
    step_no: int
    base_seq: int
    user_message_id: UUID
    current_tokens: int
    kind: PlanKind = "message"
    supersedes: UUID | None = None
    continues: tuple[Continued, ...] = ()

    @property
    def not_history(self) -> frozenset[UUID]:
        """Messages that the turn shows itself."""
        return frozenset({self.user_message_id, *(one.message_id for one in self.continues)})


class Block(NamedTuple):
    """One piece of a prompt; a tuple, since hundreds are made for every plan.

    Attributes:
        id: A message's id, or the name of another text; unique in a plan.
        layer: The section that it was chosen for.
        trust: Whose words they are: only the operator's may instruct.
        source: Where the text lives.
        version: Which revision of the text; messages never change under one id.
        tokens: With the overhead of its message.
        token_offset: Tokens of all blocks before it.
        score: Of retrieved blocks only.
        permission_checked_at: Of blocks with access rules of their own only.
    """

    id: str
    kind: str
    layer: Section
    trust: Trust
    role: Role
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


class SectionBudget(NamedTuple):
    """Tokens open to a section when it was filled, and what it left for the next."""

    rule: SectionRule
    before: int
    used: int

    @property
    def section(self) -> Section:
        """Which one."""
        return self.rule.section

    @property
    def after(self) -> int:
        """Tokens left for the sections that are filled later."""
        return self.before - self.used


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen of all that may give way; everything else in a plan follows from it.

    Attributes:
        data: Candidates that are shown, in the prompt's order.
        excluded: Candidates that are not, those over the budget last.
        before: Tokens that were open to each section that gives way, when it was filled.
    """

    suffix: Suffix
    before: dict[Section, int]
    data: tuple[Candidate, ...] = ()
    excluded: tuple[Exclusion, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """What a step shows the model, and why.

    Attributes:
        choice: The history and the data that were chosen; their blocks follow from it.
        instructions: The operator's texts at its head.
        blocks: In the order of the prompt.
        excluded: Loaded and left out, messages first and the nearest to the boundary before all;
            bounded, ``excluded_counts`` has all.
        excluded_up_to_seq: Nothing with this seq or a lower one is shown; None if all were shown.
        budget_tokens: What the blocks may use together.
        sections: In the prompt's order.
        loaded: Rows of history that were read; trimmed = loaded - kept.
        nonce: Of the frames around data; None without data, or until it is rendered.
        checksums: Of the blocks' texts; empty until it is rendered.
        fingerprint: SHA-256 of the payload, hexadecimal; empty until it is rendered.
    """

    turn: TurnToPlan
    limits: ModelLimits
    sampling: Sampling
    choice: Choice
    instructions: tuple[Instruction, ...]
    blocks: tuple[Block, ...]
    excluded: tuple[Exclusion, ...]
    excluded_counts: dict[ExclusionReason, int]
    excluded_up_to_seq: int | None
    budget_tokens: int
    sections: tuple[SectionBudget, ...]
    loaded: int
    kept: int
    nonce: str | None = None
    checksums: tuple[int, ...] = ()
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
        """Stored messages that are shown, in the prompt's order."""
        return tuple(block.id for block in self.blocks if block.kind in _STORED)

    @property
    def seq_range(self) -> tuple[int, int]:
        """Seq of the oldest and the newest message that is shown."""
        seqs = [block.seq for block in self.blocks if block.seq is not None]
        return min(seqs), max(seqs)

    @property
    def history(self) -> SectionBudget:
        """The budget of the conversation's older messages."""
        return next(part for part in self.sections if part.section == "history")


_STORED: Final = frozenset({"message", "current", "continuation"})
