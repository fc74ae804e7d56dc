"""What accepting a batch of requests comes to: outcomes, and everything that changes."""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from libs import ids
from schemas.requests import Policy
from schemas.turns import TurnKind
from services.ingestion.core.requests import Asked, Problem, Request
from services.ingestion.core.standing import OpenRow, Role

Outcome = Literal["accepted", "replayed", "conflict", "rejected", "not_found"]


@dataclass(frozen=True, slots=True)
class NewTurn:
    """An accepted turn; its answer has the number after ``seq``.

    Attributes:
        seq: Of the user message it makes; where it makes none, the last number given before.
        base_seq: Of the question, and with it the boundary of the turn's history.
        position: 0 starts now, else its place in the queue.
        is_bounded: Whether it gives up waiting after a while.
        user_message_id: The question; an earlier turn's where the turn makes no user message.
        supersedes: The message that the user said again.
        continues: The unfinished answers that it goes on from, oldest first.
    """

    request: Request
    asked: Asked
    kind: TurnKind
    branch_id: UUID
    parent_turn_id: UUID | None
    policy: Policy
    model: str | None
    seq: int
    base_seq: int
    position: int
    is_bounded: bool
    user_message_id: UUID
    supersedes: UUID | None = None
    continues: tuple[UUID, ...] = ()

    @property
    def turn_id(self) -> UUID:
        """Its id."""
        return self.asked.turn_id

    @property
    def answer_id(self) -> UUID:
        """The message that will hold its answer."""
        return ids.message_id(self.turn_id, "assistant")

    @property
    def sibling_seq(self) -> int:
        """What a turn beside it sees of its branch ends below this number.

        A sibling of a continuation stands behind the unfinished answer, like the continuation.
        """
        return self.seq + 1 if self.kind == "continue" else self.base_seq

    def as_open(self) -> OpenRow:
        """The turn among the open ones."""
        return OpenRow(self.turn_id, self.branch_id, self.sibling_seq, self.parent_turn_id)


@dataclass(frozen=True, slots=True)
class NewConversation:
    """A conversation to create."""

    request: Request
    policy: Policy


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one request.

    Attributes:
        turn_id: Of the accepted, repeated or cancelled turn; None for refusals and what needs none.
    """

    request: Request
    outcome: Outcome
    turn_id: UUID | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """Where a conversation's numbers stand after the batch."""

    tenant_id: UUID
    conversation_id: UUID
    next_seq: int
    last_turn_id: UUID


@dataclass(frozen=True, slots=True)
class Fork:
    """A branch that shows of ``grows_from`` what stands below ``below``, and begins with a turn."""

    tenant_id: UUID
    conversation_id: UUID
    branch_id: UUID
    grows_from: UUID
    below: int
    turn_id: UUID


@dataclass(frozen=True, slots=True)
class Mark:
    """An open turn that is told to stop, for the first time."""

    turn_id: UUID
    reason: str
    request: Request


@dataclass(frozen=True, slots=True)
class Deletion:
    """A message that is gone from now on."""

    message_id: UUID
    turn_id: UUID
    role: Role
    request: Request


@dataclass(frozen=True, slots=True)
class Turning:
    """A whole conversation that is deleted or comes back."""

    request: Request
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class Change:
    """What changes of a conversation's row beside its numbers; None leaves what is there.

    Attributes:
        branch_id: The branch that is continued from now on.
        forks: How many branches were added.
    """

    tenant_id: UUID
    conversation_id: UUID
    title: str | None
    policy: Policy | None
    branch_id: UUID | None
    forks: int
    deletion: Literal["delete", "restore"] | None


@dataclass(frozen=True, slots=True)
class Leaving:
    """A branch that the conversation turned away from, with its last turn."""

    tenant_id: UUID
    conversation_id: UUID
    branch_id: UUID
    last_turn_id: UUID


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Everything the batch changes; each part is in the order of the requests."""

    decisions: tuple[Decision, ...]
    conversations: tuple[NewConversation, ...]
    turns: tuple[NewTurn, ...]
    tallies: tuple[Tally, ...]
    forks: tuple[Fork, ...] = ()
    marks: tuple[Mark, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    turnings: tuple[Turning, ...] = ()
    changes: tuple[Change, ...] = ()
    leavings: tuple[Leaving, ...] = ()
