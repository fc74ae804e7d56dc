"""The in-memory twin of ``store``: same ports, same answers, for tests and simulations."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from services.context_assembly.ports import (
    SHORT_TEXT_BYTES,
    BatchEffects,
    BatchFacts,
    BatchQuestion,
    ConversationKey,
    Cursor,
    Forgotten,
    HashKey,
    NewStep,
    StepKey,
    StoredMessage,
    TextKey,
    TurnKey,
    TurnState,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence
    from uuid import UUID

    from libs.outbox import OutboxMessage


@dataclass(frozen=True, slots=True)
class MemoryMessage:
    """A message that may be history, as ingestion would show it."""

    tenant_id: UUID
    conversation_id: UUID
    branch_id: UUID
    stored: StoredMessage
    text: str
    tokens: Mapping[str, int]
    """By tokenizer."""


@dataclass(slots=True)
class MemoryRows:
    """What other services show, and what this one has written.

    Attributes:
        history: Only messages of ended turns; ``current`` has texts of all others.
        keeps_none: Tenants whose capture posture is ``none``.
        forgotten: Payloads that are never captured.
    """

    history: list[MemoryMessage] = field(default_factory=list)
    current: dict[TextKey, str] = field(default_factory=dict)
    turns: dict[TurnKey, TurnState] = field(default_factory=dict)
    steps: dict[StepKey, NewStep] = field(default_factory=dict)
    payloads: dict[StepKey, bytes] = field(default_factory=dict)
    captures: dict[StepKey, tuple[bytes, str]] = field(default_factory=dict)
    counts: dict[HashKey, int] = field(default_factory=dict)
    inbox: set[UUID] = field(default_factory=set)
    outbox: list[OutboxMessage] = field(default_factory=list)
    purged: set[ConversationKey] = field(default_factory=set)
    keeps_none: set[UUID] = field(default_factory=set)
    forgotten: set[StepKey] = field(default_factory=set)


class MemoryPlanning:
    """Reads and, as a transaction, writes once at its end."""

    def __init__(self, rows: MemoryRows, tenants: Collection[UUID]) -> None:
        self._rows = rows
        self._tenants = frozenset(tenants)

    async def facts(self, question: BatchQuestion) -> BatchFacts:
        """All that a batch needs."""
        return BatchFacts(
            seen=frozenset(self._rows.inbox.intersection(question.event_ids)),
            turns={
                key: state
                for key in question.turns
                if key.tenant_id in self._tenants
                and (state := self._rows.turns.get(key)) is not None
            },
            known_steps=frozenset(key for key in question.steps if key in self._rows.steps),
            pages=await self.pages(question.cursors),
            texts=await self.texts(question.own),
        )

    async def pages(self, cursors: Sequence[Cursor]) -> list[list[StoredMessage]]:
        """One page for each cursor."""
        return [self._page(cursor) for cursor in cursors]

    async def texts(self, keys: Collection[TextKey]) -> dict[TextKey, str]:
        """Texts of messages."""
        known = self._rows.current | {
            TextKey(m.tenant_id, m.stored.message_id): m.text for m in self._rows.history
        }
        return {key: known[key] for key in keys if key in known and key.tenant_id in self._tenants}

    async def purged(
        self, conversations: Collection[ConversationKey]
    ) -> frozenset[ConversationKey]:
        """Which of these conversations are gone for good."""
        return frozenset(self._rows.purged.intersection(conversations))

    async def commit(self, effects: BatchEffects) -> None:
        """Write everything."""
        for step in effects.steps:
            key = StepKey(step.tenant_id, step.step_id)
            self._rows.steps[key] = step
            self._rows.outbox.append(step.message)
            if step.payload is not None:
                self._rows.payloads[key] = step.payload
            if step.capture is not None and step.reason is not None:
                self._capture(key, step.capture, step.reason)
        for turn in effects.ended:
            for key in self._steps_of(turn.key):
                payload = self._rows.payloads.pop(key, None)
                if payload is not None and turn.capture_cause is not None:
                    self._capture(key, payload, turn.capture_cause)
        for gone in effects.forgotten:
            self._forget(gone)
        self._rows.inbox.update(effects.event_ids)

    def _capture(self, key: StepKey, payload: bytes, cause: str) -> None:
        if key.tenant_id not in self._rows.keeps_none and key not in self._rows.forgotten:
            self._rows.captures[key] = (payload, cause)

    def _forget(self, gone: Forgotten) -> None:
        for key, step in list(self._rows.steps.items()):
            if ConversationKey(step.tenant_id, step.conversation_id) != gone.conversation:
                continue
            if gone.turn_ids is not None:
                if step.turn_id in gone.turn_ids:
                    self._rows.payloads.pop(key, None)
                    self._rows.captures.pop(key, None)
                    del self._rows.steps[key]
            elif gone.message_id is None or str(gone.message_id) in shown_messages(step):
                self._rows.captures.pop(key, None)
                self._rows.forgotten.add(key)

    def _steps_of(self, turn: TurnKey) -> list[StepKey]:
        return [
            key
            for key, step in self._rows.steps.items()
            if TurnKey(step.tenant_id, step.turn_id) == turn
        ]

    def _page(self, cursor: Cursor) -> list[StoredMessage]:
        found = [
            StoredMessage(
                message_id=m.stored.message_id,
                turn_id=m.stored.turn_id,
                seq=m.stored.seq,
                role=m.stored.role,
                status=m.stored.status,
                tokens=m.tokens.get(cursor.tokenizer),
                length=m.stored.length,
                said_at=m.stored.said_at,
                short_text=m.text if m.stored.length <= SHORT_TEXT_BYTES else None,
                supersedes=m.stored.supersedes,
            )
            for m in self._rows.history
            if (m.tenant_id, m.conversation_id, m.branch_id)
            == (cursor.tenant_id, cursor.conversation_id, cursor.branch_id)
            and m.tenant_id in self._tenants
            and m.stored.seq < cursor.before_seq
        ]
        found.sort(key=lambda message: -message.seq)
        return found[: cursor.rows]


def shown_messages(step: NewStep) -> list[str]:
    """Messages that a step's plan shows; none for a step without a plan."""
    return [] if step.plan is None else list(orjson.loads(step.plan)["message_ids"])


class MemoryTokenCounts:
    """Remembered token counts."""

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows

    async def known(self, keys: Sequence[HashKey]) -> dict[HashKey, int]:
        """Counts that are remembered."""
        return {key: self._rows.counts[key] for key in keys if key in self._rows.counts}

    async def remember(self, counts: Mapping[HashKey, int]) -> None:
        """Store counts."""
        self._rows.counts = {**counts, **self._rows.counts}


class MemoryStore:
    """A store whose rows live in this process; one transaction at a time."""

    def __init__(self, rows: MemoryRows) -> None:
        self._rows = rows

    @asynccontextmanager
    async def transaction(self, tenants: Collection[UUID]) -> AsyncIterator[MemoryPlanning]:
        """A transaction; what is not committed was never there."""
        yield MemoryPlanning(self._rows, tenants)

    def reader(self, tenants: Collection[UUID]) -> MemoryPlanning:
        """Reads outside a transaction."""
        return MemoryPlanning(self._rows, tenants)

    def token_counts(self, tenants: Collection[UUID]) -> MemoryTokenCounts:
        """The remembered token counts."""
        del tenants
        return MemoryTokenCounts(self._rows)
