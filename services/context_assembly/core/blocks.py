"""Lays the blocks of a plan one behind the other, in the order of the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from services.context_assembly.core.candidates import TRUST, framed_tokens
from services.context_assembly.core.history import is_cut_off, lacks_question
from services.context_assembly.core.plan import ASSEMBLY_REVISION, Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schemas.prompt_plan import Role, Section
    from services.context_assembly.core.candidates import Candidate
    from services.context_assembly.core.history import Costs, Group, HistoryRow
    from services.context_assembly.core.instructions import Instruction
    from services.context_assembly.core.plan import Choice, TurnToPlan

MESSAGES = "ingestion.messages"
ASSEMBLY = "assembly"

Mark = Literal["interrupted", "no_answer", "no_question"]


@dataclass(frozen=True, slots=True)
class FrameCosts:
    """What framed data costs beside the frames.

    Attributes:
        framing: The sentence that explains the frames, with the overhead of the messages of data.
        noted: One answer ``[noted]`` to a message of data; 0 where roles need not alternate.
    """

    framing: int
    noted: int


@dataclass(frozen=True, slots=True)
class Laid:
    """All blocks of a prompt, and the tokens of each section that has any."""

    blocks: tuple[Block, ...]
    used: dict[Section, int]


@dataclass(frozen=True, slots=True)
class Prices:
    """What blocks cost.

    Attributes:
        head: Of each of the operator's texts, in their order.
        tokenizer: That fences are counted with.
    """

    head: Sequence[int]
    messages: Costs
    frames: FrameCosts
    tokenizer: str


def lay_blocks(
    turn: TurnToPlan, choice: Choice, instructions: Sequence[Instruction], prices: Prices
) -> Laid:
    """The blocks that follow from a choice: the operator's texts, data, history, the turn's own."""
    line = _Line(prices)
    line.add_head(instructions)
    if choice.data:
        line.add_framing(prices.frames.framing)
    line.add_data([one for one in choice.data if one.section != "tools"], "head")
    for group in reversed(choice.suffix.kept):
        line.add_group(group)
    line.add_data([one for one in choice.data if one.section == "tools"], "tools")
    line.add_current(turn)
    return Laid(tuple(line.blocks), line.used)


class _Line:
    """Puts blocks one behind the other and keeps the running offset."""

    def __init__(self, prices: Prices) -> None:
        self.blocks: list[Block] = []
        self.used: dict[Section, int] = {}
        self._offset = 0
        self._prices = prices

    def add_head(self, instructions: Iterable[Instruction]) -> None:
        """The operator's texts."""
        for one, tokens in zip(instructions, self._prices.head, strict=True):
            self._append(
                Block(
                    id=one.block_id,
                    kind="system",
                    layer="system" if one.kind == "system_policy" else "workspace",
                    trust="operator",
                    role="system",
                    source=one.source,
                    version=one.version,
                    seq=None,
                    observed_at=None,
                    tokens=tokens,
                    token_offset=self._offset,
                )
            )

    def add_framing(self, tokens: int) -> None:
        """The sentence that says what frames mean."""
        self._add_fixed("framing", "framing", "system", "system", tokens)

    def add_data(self, candidates: Sequence[Candidate], place: str) -> None:
        """One message of framed data; where roles alternate, its answer."""
        for one in candidates:
            self._append(
                Block(
                    id=one.id,
                    kind=one.kind,
                    layer=one.section,
                    trust=TRUST[one.section],
                    role="user",
                    source=one.source,
                    version=one.version,
                    seq=None,
                    observed_at=one.observed_at,
                    tokens=framed_tokens(one, self._prices.tokenizer),
                    token_offset=self._offset,
                    score=one.score,
                    permission_checked_at=one.permission_checked_at,
                )
            )
        if candidates and self._prices.frames.noted:
            tokens = self._prices.frames.noted
            self._add_fixed(f"noted:{place}", "noted", "system", "assistant", tokens)

    def add_group(self, group: Group) -> None:
        """Messages of the conversation, with the marks they need."""
        costs = self._prices.messages
        before: HistoryRow | None = None
        for row in group.rows:
            if group.is_exchange and lacks_question(before, row):
                self._add_mark(row, "no_question", "user", costs.no_question)
            is_user = row.role == "user"
            self._append(
                Block(
                    str(row.message_id),
                    "message",
                    "history",
                    "user" if is_user else "model",
                    row.role,
                    MESSAGES,
                    None,
                    row.seq,
                    row.observed_at,
                    row.tokens + costs.per_message,
                    self._offset,
                )
            )
            if is_cut_off(row):
                self._add_mark(row, "interrupted", "assistant", costs.interrupted)
            before = row
        if group.is_exchange and group.rows[-1].role == "user":
            self._add_mark(group.rows[-1], "no_answer", "assistant", costs.no_answer)

    def add_current(self, turn: TurnToPlan) -> None:
        """The message that is owed an answer, and the answers that the turn goes on from."""
        overhead = self._prices.messages.per_message
        self._append(
            Block(
                id=str(turn.user_message_id),
                kind="current",
                layer="current",
                trust="user",
                role="user",
                source=MESSAGES,
                version=None,
                seq=turn.base_seq,
                observed_at=None,
                tokens=turn.current_tokens + overhead,
                token_offset=self._offset,
            )
        )
        for one in turn.continues:
            self._append(
                Block(
                    id=str(one.message_id),
                    kind="continuation",
                    layer="current",
                    trust="model",
                    role="assistant",
                    source=MESSAGES,
                    version=None,
                    seq=None,
                    observed_at=None,
                    tokens=one.tokens + overhead,
                    token_offset=self._offset,
                )
            )

    def _add_mark(self, row: HistoryRow, kind: Mark, role: Role, tokens: int) -> None:
        self._add_fixed(f"{row.message_id}:{kind}", kind, "history", role, tokens)

    def _add_fixed(self, name: str, kind: str, layer: Section, role: Role, tokens: int) -> None:
        self._append(
            Block(
                name,
                kind,
                layer,
                "operator",
                role,
                ASSEMBLY,
                str(ASSEMBLY_REVISION),
                None,
                None,
                tokens,
                self._offset,
            )
        )

    def _append(self, block: Block) -> None:
        self.blocks.append(block)
        self._offset += block.tokens
        self.used[block.layer] = self.used.get(block.layer, 0) + block.tokens
