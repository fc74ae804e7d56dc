"""What a batch of requests is decided on: locked rows, and how they stand while it is decided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from schemas.requests import Policy
from schemas.turns import TurnKind
from services.ingestion.core.turn import TurnState

ConversationKey = tuple[UUID, UUID]
"""(tenant, conversation)."""

Role = Literal["user", "assistant"]


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """What the decision needs of a locked conversation.

    Attributes:
        last_turn_id: Of the branch that is continued now.
        branch_id: That branch; a message that names no parent goes there.
        is_restorable: Whether it is deleted and may still come back.
    """

    principal_id: UUID
    policy: Policy
    model: str | None
    fingerprint: str
    next_seq: int
    last_turn_id: UUID | None
    branch_id: UUID
    branch_count: int = 1
    is_deleted: bool = False
    is_restorable: bool = False


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn that a key already names."""

    id: UUID
    fingerprint: str


@dataclass(frozen=True, slots=True)
class OpenRow:
    """A turn that has not ended.

    Attributes:
        sibling_seq: What a turn beside it sees of its branch ends below this number.
        is_cancelled: Somebody has wanted it to stop before.
    """

    turn_id: UUID
    branch_id: UUID
    sibling_seq: int
    parent_turn_id: UUID | None
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """The user message that a turn answers; it may be an earlier turn's.

    Attributes:
        parent_turn_id: What the turn follows that asked it first.
    """

    id: UUID
    branch_id: UUID
    seq: int
    parent_turn_id: UUID | None
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class MessageRow:
    """The message that a request names.

    Attributes:
        used_by: An open turn whose plan needs it, though it belongs to another turn.
    """

    id: UUID
    role: Role
    branch_id: UUID
    seq: int
    is_deleted: bool
    used_by: UUID | None


@dataclass(frozen=True, slots=True)
class Target:
    """The turn that a request is about, or whose message it is about.

    Attributes:
        seq: Its answer has the next number.
        question: None where there is no such row any more.
        is_broken: An answer that it goes on from is deleted.
        branch_last_turn_id: The last turn of its branch; of the conversation's own branch the
            conversation says it.
        message: The message that was named, if one was.
    """

    turn_id: UUID
    kind: TurnKind
    state: TurnState
    branch_id: UUID
    parent_turn_id: UUID | None
    seq: int
    model: str | None
    length: int
    answer_id: UUID
    is_answer_deleted: bool
    question: Question | None
    continues: tuple[UUID, ...] = ()
    is_broken: bool = False
    branch_last_turn_id: UUID | None = None
    message: MessageRow | None = None

    @property
    def after(self) -> int:
        """The number behind its answer."""
        return self.seq + 2


@dataclass(frozen=True, slots=True)
class Locked:
    """Rows read after the conversations were locked.

    Attributes:
        turns: By conversation and idempotency key.
        open_turns: By conversation, of each branch in the order of its queue; the first one runs.
        targets: By request; only where the request names a turn or a message that exists.
        purged: Conversations whose rows are gone for good; their names are not given again.
    """

    conversations: Mapping[ConversationKey, ConversationRow]
    turns: Mapping[tuple[ConversationKey, str], TurnRow]
    open_turns: Mapping[ConversationKey, Sequence[OpenRow]]
    targets: Mapping[UUID, Target] = field(default_factory=dict)
    purged: frozenset[ConversationKey] = frozenset()


@dataclass(slots=True)
class Standing:
    """One conversation while the batch is decided.

    Attributes:
        active: The branch that a message without parent continues.
        lasts: The last turn of each branch that matters here.
        new_messages: Turn and role of each message that this batch makes.
        used: Messages that turns of this batch need, each with one such turn.
        deleted: Messages that this batch deletes.
        left: Branches that the conversation turned away from, in this order.
    """

    row: ConversationRow
    next_seq: int
    policy: Policy
    active: UUID
    branch_count: int
    is_deleted: bool
    is_restorable: bool
    lasts: dict[UUID, UUID | None]
    open: dict[UUID, OpenRow] = field(default_factory=dict)
    turns: dict[str, TurnRow] = field(default_factory=dict)
    new_messages: dict[UUID, tuple[UUID, Role]] = field(default_factory=dict)
    used: dict[UUID, UUID] = field(default_factory=dict)
    deleted: set[UUID] = field(default_factory=set)
    left: dict[UUID, None] = field(default_factory=dict)
    title: str | None = None
    new_policy: Policy | None = None
    deletion: Literal["delete", "restore"] | None = None

    @classmethod
    def of(cls, row: ConversationRow, open_turns: Sequence[OpenRow] = ()) -> "Standing":
        """A conversation as its rows say."""
        return cls(
            row=row,
            next_seq=row.next_seq,
            policy=row.policy,
            active=row.branch_id,
            branch_count=row.branch_count,
            is_deleted=row.is_deleted,
            is_restorable=row.is_restorable,
            lasts={row.branch_id: row.last_turn_id},
            open={turn.turn_id: turn for turn in open_turns},
        )

    @property
    def last_turn_id(self) -> UUID | None:
        """The last turn of the branch that is continued now."""
        return self.lasts[self.active]

    def open_of(self, branch: UUID) -> list[UUID]:
        """The open turns of a branch, in the order of its queue."""
        return [turn.turn_id for turn in self.open.values() if turn.branch_id == branch]

    def branch_ending_with(self, turn: UUID) -> UUID | None:
        """The branch whose last turn this is."""
        return next((branch for branch, last in self.lasts.items() if last == turn), None)

    def turn_to(self, branch: UUID) -> None:
        """Let the conversation go on with another branch."""
        if branch != self.active:
            self.left[self.active] = None
            self.active = branch
