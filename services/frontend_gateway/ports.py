"""What the gateway asks of the stores, the topic and the live stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

from services.frontend_gateway.core.cursors import Page
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


@dataclass(frozen=True, slots=True)
class PlanView:
    """The stored plan of one step."""

    step_id: UUID
    step_no: int
    plan: Mapping[str, Any]
    created_at: datetime


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
        self, tenant: UUID, principal: UUID, page: Page
    ) -> Sequence[ConversationView]:
        """One more than the page's limit, where there are more.

        Raises:
            Problem: ``cursor-invalid`` for a cursor that is none of them.
        """
        ...

    async def messages(
        self, tenant: UUID, principal: UUID, conversation: UUID, page: Page
    ) -> Sequence[MessageView]:
        """One more than the page's limit, where there are more; see ``conversations``."""
        ...

    async def turn(self, tenant: UUID, turn: UUID) -> TurnView | None:
        """One turn of that tenant."""
        ...

    async def answer(self, tenant: UUID, turn: UUID) -> str:
        """The stored text of a turn's answer; empty where there is none."""
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


class Store(Rights, Outcomes, Reads, Watched, Protocol):
    """All of it; the real one and its twin in memory."""
