"""Steps, plans and payloads in Postgres; the other half of every statement is ``queries.sql``."""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from libs.failpoints import failpoint
from libs.inbox import record_statement, seen_statement
from libs.outbox import closing_statements
from libs.postgres import Statement, load_queries
from services.context_assembly.core.instructions import Instruction
from services.context_assembly.ports import (
    BatchEffects,
    BatchFacts,
    BatchQuestion,
    ConversationKey,
    Cursor,
    EndedTurn,
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
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from libs.outbox import OutboxMessage, Relay
    from libs.postgres import Database, Transaction

SQL = load_queries("services.context_assembly")

Rows = list[dict[str, Any]]


class PostgresReader:
    """Reads history in short transactions of its own."""

    def __init__(self, database: Database, tenants: Collection[UUID]) -> None:
        self._database = database
        self._tenants = tenants

    async def pages(self, cursors: Sequence[Cursor]) -> list[list[StoredMessage]]:
        """One page for each cursor."""
        async with self._database.transaction(self._tenants) as transaction:
            found = await transaction.commit_with(history_statements(cursors))
        return _pages(chain.from_iterable(found), cursors)

    async def texts(self, keys: Collection[TextKey]) -> dict[TextKey, str]:
        """Texts of messages."""
        rows = await self._database.fetch(*_texts_statement(keys), tenants=self._tenants)
        return _texts(rows)


class PostgresTokenCounts:
    """Table ``token_counts``."""

    def __init__(self, database: Database, tenants: Collection[UUID]) -> None:
        self._database = database
        self._tenants = tenants

    async def known(self, keys: Sequence[HashKey]) -> dict[HashKey, int]:
        """Counts that are remembered."""
        rows = await self._database.fetch(
            SQL["counted"], _hash_columns(keys), tenants=self._tenants
        )
        return {
            HashKey(row["tenant_id"], bytes(row["sha256"]), row["tokenizer"]): row["tokens"]
            for row in rows
        }

    async def remember(self, counts: Mapping[HashKey, int]) -> None:
        """Store counts."""
        columns = {**_hash_columns(list(counts)), "tokens": list(counts.values())}
        await self._database.fetch(SQL["remember_counts"], columns, tenants=self._tenants)


class PostgresPlanning:
    """A transaction of the batch loop."""

    def __init__(self, transaction: Transaction, relay: Relay, *, consumer: str) -> None:
        self._transaction = transaction
        self._relay = relay
        self._consumer = consumer

    async def facts(self, question: BatchQuestion) -> BatchFacts:
        """Lock, then read all that a batch needs, in one round trip."""
        conversations = [str(conversation) for conversation in question.conversations]
        statements: list[Statement] = [
            (SQL["lock_conversations"], {"conversations": conversations}),
            seen_statement(self._consumer, question.event_ids),
        ]
        if question.turns:
            statements += [
                (SQL["turns"], {"turns": [key.turn_id for key in question.turns]}),
                known_steps_statement(question.steps),
                _texts_statement(question.own),
                *history_statements(question.cursors),
            ]
        _, seen, *rest = await self._transaction.batch(statements)
        turns, steps, texts, *history = rest or ([], [], [])
        return BatchFacts(
            seen=frozenset(row["event_id"] for row in seen),
            turns=turn_states(turns),
            known_steps=frozenset(StepKey(row["tenant_id"], row["step_id"]) for row in steps),
            pages=_pages(chain.from_iterable(history), question.cursors),
            texts=_texts(texts),
        )

    async def pages(self, cursors: Sequence[Cursor]) -> list[list[StoredMessage]]:
        """One page for each cursor."""
        found = await self._transaction.batch(history_statements(cursors))
        return _pages(chain.from_iterable(found), cursors)

    async def texts(self, keys: Collection[TextKey]) -> dict[TextKey, str]:
        """Texts of messages."""
        return _texts(await self._transaction.fetch(*_texts_statement(keys)))

    async def purged(
        self, conversations: Collection[ConversationKey]
    ) -> frozenset[ConversationKey]:
        """Which of these conversations are gone for good."""
        asked = {
            "tenants": [key.tenant_id for key in conversations],
            "conversations": [key.conversation_id for key in conversations],
        }
        rows = await self._transaction.fetch(SQL["purged"], asked)
        return frozenset(ConversationKey(r["tenant_id"], r["conversation_id"]) for r in rows)

    async def commit(self, effects: BatchEffects) -> None:
        """Write and commit in one round trip."""
        messages = [step.message for step in effects.steps]
        statements = [
            *step_statements(effects.steps),
            *end_statements(effects.ended),
            *forget_statements(effects.forgotten),
            record_statement(self._consumer, effects.event_ids),
        ]
        failpoint("context.before_commit")
        await commit_and_tell(self._transaction, self._relay, statements, messages)
        failpoint("context.after_commit")


class PostgresStore:
    """The service's rows, through its own database role."""

    def __init__(self, database: Database, relay: Relay, *, consumer: str) -> None:
        self._database = database
        self._relay = relay
        self._consumer = consumer

    @asynccontextmanager
    async def transaction(self, tenants: Collection[UUID]) -> AsyncIterator[PostgresPlanning]:
        """A transaction of the batch loop."""
        async with self._database.transaction(tenants) as transaction:
            yield PostgresPlanning(transaction, self._relay, consumer=self._consumer)

    def reader(self, tenants: Collection[UUID]) -> PostgresReader:
        """Reads outside a transaction."""
        return PostgresReader(self._database, tenants)

    def token_counts(self, tenants: Collection[UUID]) -> PostgresTokenCounts:
        """The remembered token counts."""
        return PostgresTokenCounts(self._database, tenants)


async def commit_and_tell(
    transaction: Transaction,
    relay: Relay,
    statements: Sequence[Statement],
    messages: Sequence[OutboxMessage],
) -> None:
    """Commit effects together with the records that tell them, then hand these to the relay.

    Rows that the broker already has are deleted on the way.
    """
    closing = closing_statements(messages, relay.take_acknowledged())
    rows = await transaction.commit_with([*statements, *closing])
    if messages:
        relay.hand_over(messages, [row["id"] for row in rows[-1]])
        await relay.let_pass()  # the caller goes on to log and count


def known_steps_statement(steps: Sequence[StepKey]) -> Statement:
    """Which of these steps exist."""
    return SQL["known_steps"], {
        "tenants": [key.tenant_id for key in steps],
        "steps": [key.step_id for key in steps],
    }


def history_statements(cursors: Sequence[Cursor]) -> list[Statement]:
    """Pages of history: one statement for all cursors that ask for equally many rows."""
    by_rows: dict[int, list[Cursor]] = {}
    for cursor in cursors:
        by_rows.setdefault(cursor.rows, []).append(cursor)
    return [
        (
            SQL["history"],
            {
                "tenants": [cursor.tenant_id for cursor in alike],
                "conversations": [cursor.conversation_id for cursor in alike],
                "branches": [cursor.branch_id for cursor in alike],
                "before_seqs": [cursor.before_seq for cursor in alike],
                "tokenizers": [cursor.tokenizer for cursor in alike],
                "max_rows": rows,
            },
        )
        for rows, alike in by_rows.items()
    ]


def step_statements(steps: Sequence[NewStep]) -> Iterable[Statement]:
    """Write steps with what belongs to them; nothing for no steps."""
    if steps:
        yield SQL["insert_steps"], _step_columns(steps)
    planned = [step for step in steps if step.plan is not None]
    if planned:
        plans = [step.plan for step in planned]
        yield (
            SQL["insert_plans"],
            {**_keys(planned), "step_nos": [step.step_no for step in planned], "plans": plans},
        )
    sendable = [step for step in steps if step.payload is not None]
    if sendable:
        payloads = [step.payload for step in sendable]
        yield SQL["insert_payloads"], {**_keys(sendable), "payloads": payloads}
    captured = [step for step in steps if step.capture is not None]
    if captured:
        columns = {
            "payloads": [step.capture for step in captured],
            "causes": [step.reason for step in captured],
            "conversations": [step.conversation_id for step in captured],
        }
        yield SQL["lock_captures"], {"tenants": [step.tenant_id for step in captured]}
        yield SQL["insert_captures"], {**_keys(captured), **columns}


def end_statements(ended: Sequence[EndedTurn]) -> Iterable[Statement]:
    """Delete the payloads of ended turns, those worth keeping copied first; nothing for none."""
    if not ended:
        return
    kept = [turn for turn in ended if turn.capture_cause is not None]
    if kept:
        columns = {**_turn_columns(kept), "causes": [turn.capture_cause for turn in kept]}
        yield SQL["lock_captures"], {"tenants": [turn.key.tenant_id for turn in kept]}
        yield SQL["capture_payloads"], columns
    yield SQL["delete_payloads"], _turn_columns(ended)
    yield SQL["end_steps"], _turn_columns(ended)


def forget_statements(forgotten: Sequence[Forgotten]) -> Iterable[Statement]:
    """Delete what was kept of things that were deleted; nothing for none."""
    for gone in forgotten:
        asked: dict[str, Any] = {
            "tenant": gone.conversation.tenant_id,
            "conversation": gone.conversation.conversation_id,
        }
        if gone.turn_ids is not None:
            yield SQL["forget_turns"], {**asked, "turns": list(gone.turn_ids)}
        elif gone.message_id is not None:
            yield SQL["forget_message"], {**asked, "message": gone.message_id}
        else:
            yield SQL["forget_captures"], asked


def turn_states(rows: Rows) -> dict[TurnKey, TurnState]:
    """Rows of statement ``turns`` by turn."""
    return {
        TurnKey(row["tenant_id"], row["turn_id"]): TurnState(
            row["conversation_id"],
            row["branch_id"],
            row["status"],
            row["reason"],
            row["cancel_reason"],
            tuple(
                Instruction(one["kind"], one["scope"], str(one["version"]), one["text"])
                for one in row["instructions"] or ()
            ),
        )
        for row in rows
    }


def _step_columns(steps: Sequence[NewStep]) -> dict[str, Any]:
    return {
        **_keys(steps),
        "step_nos": [step.step_no for step in steps],
        "conversations": [step.conversation_id for step in steps],
        "branches": [step.branch_id for step in steps],
        "seqs": [step.seq for step in steps],
        "models": [step.model for step in steps],
        "states": ["planned" if step.reason is None else "refused" for step in steps],
        "reasons": [step.reason for step in steps],
        "invariants": [step.invariant for step in steps],
        "deadlines": [step.deadline_at for step in steps],
        "event_ids": [step.message.event_id for step in steps],
        "events": [step.message.payload for step in steps],
    }


def _keys(steps: Sequence[NewStep]) -> dict[str, Any]:
    return {
        "tenants": [step.tenant_id for step in steps],
        "steps": [step.step_id for step in steps],
        "turns": [step.turn_id for step in steps],
    }


def _turn_columns(ended: Sequence[EndedTurn]) -> dict[str, Any]:
    return {
        "tenants": [turn.key.tenant_id for turn in ended],
        "turns": [turn.key.turn_id for turn in ended],
    }


def _hash_columns(keys: Sequence[HashKey]) -> dict[str, Any]:
    return {
        "tenants": [key.tenant_id for key in keys],
        "hashes": [key.sha256 for key in keys],
        "tokenizers": [key.tokenizer for key in keys],
    }


def _texts_statement(keys: Collection[TextKey]) -> Statement:
    return SQL["texts"], {
        "tenants": [key.tenant_id for key in keys],
        "messages": [key.message_id for key in keys],
    }


def _texts(rows: Rows) -> dict[TextKey, str]:
    return {TextKey(row["tenant_id"], row["message_id"]): row["text"] for row in rows}


def _pages(rows: Iterable[dict[str, Any]], cursors: Sequence[Cursor]) -> list[list[StoredMessage]]:
    """Divide rows into the pages of their branches; no two cursors are on one branch."""
    pages: dict[UUID, list[StoredMessage]] = {cursor.branch_id: [] for cursor in cursors}
    for row in rows:
        pages[row["branch_id"]].append(
            StoredMessage(
                row["message_id"],
                row["turn_id"],
                row["seq"],
                row["role"],
                row["status"],
                row["tokens"],
                row["length"],
                row["said_at"],
                row["short_text"],
                row["supersedes"],
            )
        )
    return list(pages.values())
