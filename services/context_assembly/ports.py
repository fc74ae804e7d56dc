"""What planning needs of the outside: rows to plan from, and one transaction to store the plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from uuid import UUID

    from libs.outbox import OutboxMessage
    from services.context_assembly.core.instructions import Instruction
    from services.context_assembly.core.posture import CaptureChoice

PAGE_ROWS = 50
"""Rows of history are read in multiples of this, so about this many more than fit are touched."""


SHORT_TEXT_BYTES = 2_000
"""Texts up to here come with the history; ``ingestion.history_v1`` says the same."""


class TextKey(NamedTuple):
    """A stored message."""

    tenant_id: UUID
    message_id: UUID


class StepKey(NamedTuple):
    """A step of a turn."""

    tenant_id: UUID
    step_id: UUID


class TurnKey(NamedTuple):
    """A turn."""

    tenant_id: UUID
    turn_id: UUID


class HashKey(NamedTuple):
    """A text by its SHA-256, in one tokenizer, inside one tenant."""

    tenant_id: UUID
    sha256: bytes
    tokenizer: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the next older page of a conversation's history begins.

    Attributes:
        before_seq: The page holds only messages below it.
        rows: Most messages of the page.
    """

    tenant_id: UUID
    conversation_id: UUID
    branch_id: UUID
    before_seq: int
    tokenizer: str
    rows: int = PAGE_ROWS


class StoredMessage(NamedTuple):
    """A message of a conversation's history; a tuple, since hundreds are read.

    Attributes:
        tokens: In the asked tokenizer; None if it was not counted with that one.
        length: Bytes of the text in UTF-8.
        short_text: Of a text that is not longer than ``SHORT_TEXT_BYTES``; others are asked for
            once they are known to be shown.
        supersedes: The message that it was said again for.
    """

    message_id: UUID
    turn_id: UUID
    seq: int
    role: Literal["user", "assistant"]
    status: str
    tokens: int | None
    length: int
    said_at: datetime
    short_text: str | None = None
    supersedes: UUID | None = None


@dataclass(frozen=True, slots=True)
class TurnState:
    """A turn as its owner has it, and what its tenant and its conversation tell every model.

    Attributes:
        cancel_reason: Somebody wants it to stop; it is not planned any more.
    """

    conversation_id: UUID
    branch_id: UUID
    status: str
    reason: str | None
    cancel_reason: str | None = None
    instructions: tuple[Instruction, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchQuestion:
    """What a batch of events must know before it can decide; elements belong to started turns.

    Attributes:
        conversations: Of all events, to be locked.
        turns: Whose state is asked.
        steps: Which of these exist already.
        cursors: First page of history for each.
        own: The messages that the turns show beside their history.
    """

    event_ids: Sequence[UUID]
    conversations: Collection[UUID]
    turns: Sequence[TurnKey] = field(default=())
    steps: Sequence[StepKey] = field(default=())
    cursors: Sequence[Cursor] = field(default=())
    own: Sequence[TextKey] = field(default=())


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """Answers to a ``BatchQuestion``, read after its conversations were locked.

    Attributes:
        pages: Newest first, one for each cursor.
    """

    seen: frozenset[UUID]
    turns: Mapping[TurnKey, TurnState]
    known_steps: frozenset[StepKey]
    pages: Sequence[Sequence[StoredMessage]]
    texts: Mapping[TextKey, str]


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step to store.

    Attributes:
        payload: None for a refused step.
        capture: A payload to keep although it will never be sent, with the reason's name.
        plan: JSON of the plan; None for a step that was refused before it had one.
        message: The record that tells it.
    """

    tenant_id: UUID
    step_id: UUID
    turn_id: UUID
    step_no: int
    conversation_id: UUID
    branch_id: UUID
    seq: int
    model: str
    deadline_at: datetime
    message: OutboxMessage
    reason: str | None = None
    invariant: str | None = None
    plan: str | None = None
    payload: bytes | None = None
    capture: bytes | None = None


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """A turn whose payloads are deleted.

    Attributes:
        capture_cause: Why its payloads are kept for a while; None keeps nothing.
    """

    key: TurnKey
    capture_cause: str | None


class ConversationKey(NamedTuple):
    """A conversation."""

    tenant_id: UUID
    conversation_id: UUID


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Something was deleted, and what was kept of it goes too.

    Attributes:
        message_id: Only captures that show this message; None means all of the conversation.
        turn_ids: Of a purged conversation: everything that was kept about these turns.
    """

    conversation: ConversationKey
    message_id: UUID | None = None
    turn_ids: tuple[UUID, ...] | None = None


@dataclass(frozen=True, slots=True)
class BatchEffects:
    """Everything a batch of events changes, in one transaction; what is forgotten comes last."""

    event_ids: Sequence[UUID]
    steps: Sequence[NewStep] = field(default=())
    ended: Sequence[EndedTurn] = field(default=())
    forgotten: Sequence[Forgotten] = field(default=())


class HistoryReader(Protocol):
    """Reads what may be shown to a model; only of the tenants it was made for."""

    async def pages(self, cursors: Sequence[Cursor]) -> list[list[StoredMessage]]:
        """One page for each cursor, newest first, in the order asked.

        No two cursors may be on one branch.
        """

    async def texts(self, keys: Collection[TextKey]) -> dict[TextKey, str]:
        """Texts of messages; a message that has none, or is gone, is left out."""


class PlanningTransaction(HistoryReader, Protocol):
    """One transaction: locks, reads, and the one write at its end."""

    async def facts(self, question: BatchQuestion) -> BatchFacts:
        """Lock the conversations, then read."""

    async def purged(
        self, conversations: Collection[ConversationKey]
    ) -> frozenset[ConversationKey]:
        """Which of these conversations are gone for good: late news of them is dropped."""

    async def commit(self, effects: BatchEffects) -> None:
        """Write everything and commit, then hand the records to the relay.

        Raises:
            StoreUnavailable: The connection was lost; run the batch again from its reads.
        """


class TokenCounts(Protocol):
    """Remembers token counts by the text's hash, so that a text is counted once."""

    async def known(self, keys: Sequence[HashKey]) -> dict[HashKey, int]:
        """Counts that are remembered."""

    async def remember(self, counts: Mapping[HashKey, int]) -> None:
        """Store counts; a count that is there already stays."""


class PlanningStore(Protocol):
    """Opens transactions and reads for named tenants."""

    def transaction(
        self, tenants: Collection[UUID]
    ) -> AbstractAsyncContextManager[PlanningTransaction]:
        """A transaction that sees rows of these tenants alone; leaving it early writes nothing."""

    def reader(self, tenants: Collection[UUID]) -> HistoryReader:
        """Reads outside a transaction, for work too long to hold one open."""

    def token_counts(self, tenants: Collection[UUID]) -> TokenCounts:
        """The remembered token counts of these tenants."""


class CapturePostures(Protocol):
    """Whose payloads are kept; a copy that may be some seconds old."""

    def choice_of(self, tenant_id: UUID) -> CaptureChoice:
        """What a tenant chose, or the operator's default."""

    def is_flagged(self, conversation: ConversationKey) -> bool:
        """Whether the conversation's payloads are kept although nothing failed."""
