"""What the gateway asks of the stores, the topic and the live stream."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

from services.frontend_gateway.core.activity import ConversationActivity
from services.frontend_gateway.core.cursors import Page
from services.frontend_gateway.core.evidence import BranchView, MessageFacts, Place
from services.frontend_gateway.core.left_out import HistoryFacts
from services.frontend_gateway.core.timeline import AttemptView, StepView, Transition
from services.frontend_gateway.core.turns import Checkpoint, TurnView


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: what an API key or a browser session stands for."""

    key_id: UUID
    tenant_id: UUID
    principal_id: UUID
    scopes: frozenset[str]


Proof = tuple[Literal["key", "session"], bytes]
"""How a caller proved who it is: the hash of the key or of the cookie's token."""


class Rights(Protocol):
    """Keys and browser sessions. Every method may raise ``StoreUnavailable``."""

    async def caller_of_key(self, key_hash: bytes) -> Caller | None:
        """The caller of a key that exists and is not revoked."""
        ...

    async def caller_of_session(self, token_hash: bytes) -> Caller | None:
        """The caller of a session that has not ended and whose key is not revoked."""
        ...

    async def open_session(self, token_hash: bytes, key_id: UUID, *, lifetime_s: int) -> None:
        """Remember a browser session."""
        ...

    async def close_session(self, token_hash: bytes) -> None:
        """Forget a browser session; nothing happens if there is none."""
        ...

    async def purge_sessions(self) -> int:
        """Delete some ended sessions; returns how many."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose outcome is awaited."""

    tenant_id: UUID
    request_id: UUID


@dataclass(frozen=True, slots=True)
class Outcome:
    """How ingestion decided a request.

    Attributes:
        decision: ``accepted``, ``replayed``, ``conflict``, ``rejected`` or ``not_found``.
        problem: Of a refusal: ``code``, ``detail`` and what else belongs to the problem.
        seq: Of the user message.
        status: Of the turn, as it is now.
    """

    request_id: UUID
    decision: str
    conversation_id: UUID | None
    turn_id: UUID | None
    problem: Mapping[str, Any] | None
    seq: int | None
    status: str | None
    title: str | None
    policy: str | None
    created_at: datetime | None
    user_message_id: UUID | None = None
    branch_id: UUID | None = None
    queue_position: int | None = None
    kind: str | None = None


class Outcomes(Protocol):
    """The rows that answer requests."""

    async def outcomes(self, asked: Sequence[Asked]) -> Sequence[Outcome]:
        """Those that exist, in any order. May raise ``StoreUnavailable``."""
        ...


@dataclass(frozen=True, slots=True)
class ConversationView:
    """A conversation as listed."""

    id: UUID
    title: str | None
    policy: str
    created_at: datetime
    updated_at: datetime
    message_count: int | None = None
    branch_id: UUID | None = None

    @property
    def continues_on(self) -> UUID:
        """The branch that a message without a parent goes to."""
        return self.branch_id or self.id


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message as listed; ``content`` of a running answer is what is stored so far."""

    id: UUID
    role: str
    content: str
    seq: int
    status: str
    reason: str | None
    turn_id: UUID
    created_at: datetime
    branch_id: UUID | None = None
    supersedes: UUID | None = None
    kind: str = "message"


@dataclass(frozen=True, slots=True)
class PlanView:
    """The stored plan of one step.

    Attributes:
        invariant: The rule that it breaks; then it was never sent.
    """

    step_id: UUID
    step_no: int
    plan: Mapping[str, Any]
    created_at: datetime
    invariant: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rows say about a turn that somebody watches."""

    turn: TurnView
    checkpoint: Checkpoint | None


class Reads(Protocol):
    """What clients may read. Every method may raise ``StoreUnavailable``."""

    async def conversation(
        self, tenant: UUID, principal: UUID, conversation: UUID
    ) -> ConversationView | None:
        """One conversation of that principal."""
        ...

    async def conversations(
        self, tenant: UUID, principal: UUID, page: Page, query: str | None = None
    ) -> Sequence[ConversationView]:
        """One more than the page's limit, where there are more.

        Args:
            query: Only those whose title holds it, in letters of any case.

        Raises:
            Problem: ``cursor-invalid`` for a cursor that is none of them.
        """
        ...

    async def messages(
        self,
        tenant: UUID,
        principal: UUID,
        conversation: UUID,
        page: Page,
        branch: UUID | None = None,
    ) -> Sequence[MessageView]:
        """One more than the page's limit, where there are more; see ``conversations``.

        Args:
            branch: Whose path is listed; None for the one that is continued.

        Raises:
            Problem: ``not-found`` for a branch that the conversation does not have.
        """
        ...

    async def branches(
        self, tenant: UUID, principal: UUID, conversation: UUID
    ) -> Sequence[BranchView]:
        """The branches of a conversation, oldest first; none of a foreign one."""
        ...

    async def turn(self, tenant: UUID, turn: UUID) -> TurnView | None:
        """One turn of that tenant."""
        ...

    async def answer(self, tenant: UUID, turn: UUID) -> str | None:
        """The stored text of a turn's answer; empty without one, None where it was deleted."""
        ...

    async def checkpoints(self, tenant: UUID, turns: Sequence[UUID]) -> Mapping[UUID, Checkpoint]:
        """The stored texts of running answers, for those that have one."""
        ...

    async def plans(self, tenant: UUID, turn: UUID) -> Sequence[PlanView]:
        """The plans of a turn's steps, first step first."""
        ...


class Watched(Protocol):
    """The rows behind all streams of a process."""

    async def facts(self, watched: Sequence[tuple[UUID, UUID]]) -> Sequence[Facts]:
        """Facts of (tenant, turn) pairs in one query. May raise ``StoreUnavailable``."""
        ...


class Activities(Protocol):
    """What goes on in conversations."""

    async def activity(
        self, watched: Sequence[tuple[UUID, UUID]]
    ) -> Mapping[UUID, ConversationActivity]:
        """Of (tenant, conversation) pairs, in one query; nothing of those that are gone.

        May raise ``StoreUnavailable``.
        """
        ...


class Proofs(Protocol):
    """What is known about plans beside themselves. Every method may raise ``StoreUnavailable``."""

    async def message_facts(
        self, tenant: UUID, messages: Sequence[UUID]
    ) -> Mapping[UUID, MessageFacts]:
        """Of messages of that tenant, deleted ones included."""
        ...

    async def message_texts(self, tenant: UUID, messages: Sequence[UUID]) -> Mapping[UUID, str]:
        """Texts of messages of that tenant that are not deleted."""
        ...

    async def find_text(
        self, tenant: UUID, principal: UUID, conversation: UUID, needle: str
    ) -> Sequence[Place]:
        """Messages of a conversation whose text holds ``needle``: a few, newest first."""
        ...


@dataclass(frozen=True, slots=True)
class HistoryEnd:
    """Where the history that is asked for ends.

    Attributes:
        below_seq: Messages with this number or a higher one are not part of it.
    """

    conversation_id: UUID
    branch_id: UUID
    below_seq: int


class Stories(Protocol):
    """What happened to a turn, and when. Every method may raise ``StoreUnavailable``."""

    async def transitions(self, tenant: UUID, turn: UUID) -> Sequence[Transition]:
        """States of a turn, oldest first."""
        ...

    async def steps(self, tenant: UUID, turn: UUID) -> Sequence[StepView]:
        """Steps of a turn, in their order."""
        ...

    async def attempts(self, tenant: UUID, steps: Sequence[UUID]) -> Sequence[AttemptView]:
        """Attempts of steps in the order of their numbers; what is older than 30 days is gone."""
        ...

    async def history_facts(
        self, tenant: UUID, end: HistoryEnd, tokenizer: str, max_rows: int
    ) -> Sequence[HistoryFacts]:
        """Messages that history holds below an end, newest first."""
        ...

    async def history_count(self, tenant: UUID, end: HistoryEnd, max_count: int) -> int:
        """How many those are; counting stops at ``max_count``."""
        ...

    async def excerpts(
        self, tenant: UUID, conversation: UUID, messages: Sequence[UUID], max_characters: int
    ) -> Mapping[UUID, str]:
        """How texts of a conversation's messages begin; none of deleted ones."""
        ...


@dataclass(frozen=True, slots=True)
class InstructionView:
    """A text that was set for a tenant or a conversation.

    Attributes:
        scope_id: The tenant or the conversation.
    """

    scope_id: UUID
    kind: str
    version: int
    text: str
    set_at: datetime | None = None


InstructionName = tuple[UUID, str, int | None]
"""Scope, kind, and version or None for the current one."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a capture, for the audit row."""

    principal_id: UUID
    key_id: UUID
    request_id: UUID
    read_id: UUID


@dataclass(frozen=True, slots=True)
class CaptureView:
    """A captured payload."""

    step_no: int
    cause: str
    captured_at: datetime
    payload: bytes


class InstructionsChange(Protocol):
    """A transaction that alone sets instructions of its tenant; see ``Settings``."""

    async def instructions(self, names: Sequence[InstructionName]) -> Sequence[InstructionView]:
        """As ``Settings.instructions``; nobody changes them before the end."""
        ...

    async def longest(self, kind: str) -> Sequence[InstructionView]:
        """The longest current texts of the tenant's conversations, a few, longest first."""
        ...

    async def set(self, wanted: Sequence[tuple[UUID, UUID, str, str]], *, actor: str) -> None:
        """Make texts current: (fresh id, scope, kind, text) each, all or none; nothing follows."""
        ...


class Settings(Protocol):
    """What operators set through the interface. Every method may raise ``StoreUnavailable``."""

    async def instructions(
        self, tenant: UUID, names: Sequence[InstructionName]
    ) -> Sequence[InstructionView]:
        """Those that exist, in the order asked for."""
        ...

    def changing_instructions(
        self, tenant: UUID
    ) -> AbstractAsyncContextManager[InstructionsChange]:
        """Change instructions of one tenant; who comes second waits, and sees what the first set.

        Texts of different scopes share a section of the prompt, so whether one fits can only be
        judged while no other is set.
        """
        ...

    async def set_capture_posture(
        self, tenant: UUID, posture: str, per_mille: int, *, actor: str
    ) -> None:
        """Whose payloads of a tenant are kept; ``none`` deletes what was kept."""
        ...

    async def flag_conversation(
        self, tenant: UUID, conversation: UUID, *, is_flagged: bool, actor: str
    ) -> None:
        """Keep the payloads of a conversation, or no longer."""
        ...

    async def read_capture(
        self, tenant: UUID, turn: UUID, step: int | None, reader: Reader
    ) -> CaptureView | None:
        """A payload that was kept; that it was asked for is written down, found or not."""
        ...


class Store(Rights, Outcomes, Reads, Watched, Activities, Proofs, Stories, Settings, Protocol):
    """All of it; the real one and its twin in memory."""
