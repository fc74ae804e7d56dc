"""Worlds in which turns are planned: one in memory, one in Postgres, the same questions to both."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Literal, Protocol
from uuid import UUID, uuid4

import orjson
import psycopg
from prometheus_client import CollectorRegistry
from psycopg.rows import dict_row

from libs import ids
from libs.clock import SystemClock
from libs.kafka import Delivery, MemoryPublisher
from libs.outbox import Relay
from libs.postgres import Database
from libs.telemetry.metrics import Metrics
from libs.tokens import count
from schemas.envelope import Event, encode
from schemas.registry import TURN_EVENTS, decode
from schemas.turns import TerminalStatus, TurnEndedV1, TurnStartedV1
from services.context_assembly.core.budget import ModelLimits
from services.context_assembly.core.instructions import Instruction
from services.context_assembly.handlers import CONSUMER
from services.context_assembly.memory import MemoryMessage, MemoryRows, MemoryStore
from services.context_assembly.ports import (
    ConversationKey,
    PlanningStore,
    StepKey,
    StoredMessage,
    TextKey,
    TurnKey,
    TurnState,
)
from services.context_assembly.store import PostgresStore
from tests.rig.parts import TestDatabase
from tests.rig.stored_plans import as_published

TOKENIZER = "o200k_base"
SAID_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIMITS = ModelLimits(
    model="scripted",
    window=8_192,
    max_output=1_024,
    tokenizer=TOKENIZER,
    per_message_overhead=4,
    reply_overhead=3,
    safety_factor=1.0,
    alternate_roles=False,
)
Ending = Literal["completed", "partial", "failed", "cancelled"]


@dataclass
class Chat:
    """A conversation of a test, with the next seq that it will give away."""

    tenant_id: UUID = field(default_factory=uuid4)
    id: UUID = field(default_factory=uuid4)
    next_seq: int = 1


@dataclass(frozen=True)
class Said:
    """A message to be stored; ``tokens`` is None where ingestion did not count it."""

    message_id: UUID
    turn_id: UUID
    seq: int
    role: Literal["user", "assistant"]
    status: str
    text: str
    tokens: int | None


@dataclass(frozen=True)
class Told:
    """An event that was written to the outbox."""

    type: str
    event: Event[Any]


class World(Protocol):
    """Where turns are planned and what came of it can be looked at."""

    store: PlanningStore

    async def write_turn(self, chat: Chat, said: list[Said], *, status: str) -> None:
        """Store a turn with its messages; ``generating`` makes it an open one."""

    async def write_answer(self, chat: Chat, question: Said, answer: Said) -> None:
        """Store an open turn that has an answer alone."""

    async def end_turn(self, chat: Chat, turn_id: UUID, *, status: Ending) -> None:
        """Set a turn's terminal state."""

    async def told(self) -> list[Told]:
        """Events in the outbox, oldest first."""

    async def plans(self, chat: Chat) -> dict[UUID, dict[str, Any]]:
        """Stored plans by turn; each has the form of the published schema."""

    async def payloads(self, chat: Chat) -> dict[UUID, bytes]:
        """Stored payloads by turn."""

    async def captures(self, chat: Chat) -> dict[UUID, tuple[bytes, str]]:
        """Captured payloads with their cause, by turn."""

    async def counts(self) -> int:
        """Remembered token counts."""

    async def set_instructions(self, chat: Chat, *instructions: Instruction) -> None:
        """Make these the current texts of the chat's tenant or of the chat itself."""

    async def want_cancelled(self, chat: Chat, turn_id: UUID) -> None:
        """Somebody wants an open turn to stop."""

    async def delete_message(self, chat: Chat, message_id: UUID) -> None:
        """A message is gone from every read."""

    async def purge(self, chat: Chat, *turn_ids: UUID) -> None:
        """The conversation and its turns are gone for good."""

    async def keep_no_captures(self, tenant_id: UUID) -> None:
        """The tenant's capture posture becomes ``none`` in the table."""


def answered(
    chat: Chat,
    question: str,
    answer: str = "",
    *,
    status: Ending = "completed",
    counted: bool = True,
) -> tuple[UUID, list[Said]]:
    """A turn that has ended, as rows."""
    turn = uuid4()
    seq = chat.next_seq
    chat.next_seq += 2

    def said(role: Literal["user", "assistant"], number: int, text: str) -> Said:
        return Said(
            ids.message_id(turn, role),
            turn,
            number,
            role,
            "completed" if role == "user" else status,
            text,
            count(text, TOKENIZER) if counted else None,
        )

    return turn, [said("user", seq, question), said("assistant", seq + 1, answer)]


async def remember(world: World, chat: Chat, *exchanges: tuple[str, str]) -> None:
    """Let finished turns stand in a conversation."""
    for question, answer in exchanges:
        _, rows = answered(chat, question, answer)
        await world.write_turn(chat, rows, status="completed")


async def start(
    world: World,
    chat: Chat,
    text: str,
    *,
    model: str | None = None,
    options: Mapping[str, Any] | None = None,
    supersedes: UUID | None = None,
) -> Delivery:
    """Accept and start a turn; its ``turn.started`` as it comes from the topic."""
    turn, rows = answered(chat, text, status="completed")
    open_rows = [rows[0], Said(**{**rows[1].__dict__, "status": "pending"})]
    await world.write_turn(chat, open_rows, status="generating")
    data = TurnStartedV1(
        branch_id=chat.id,
        base_seq=rows[0].seq,
        user_message_id=rows[0].message_id,
        assistant_message_id=rows[1].message_id,
        model=model,
        options=dict(options) if options is not None else None,
        deadline_at=datetime.now(UTC) + timedelta(seconds=300),
        kind="message" if supersedes is None else "edit",
        supersedes=supersedes,
    )
    return delivery(_event(chat, turn, data))


async def answer_again(
    world: World,
    chat: Chat,
    question: Said,
    *,
    kind: Literal["regenerate", "continue"] = "regenerate",
    continues: Sequence[UUID] = (),
) -> Delivery:
    """Start a turn that has no question of its own; its ``turn.started`` as from the topic."""
    turn = uuid4()
    seq = chat.next_seq
    chat.next_seq += 1
    answer = Said(ids.message_id(turn, "assistant"), turn, seq, "assistant", "pending", "", None)
    await world.write_answer(chat, question, answer)
    data = TurnStartedV1(
        branch_id=chat.id,
        base_seq=question.seq,
        user_message_id=question.message_id,
        assistant_message_id=answer.message_id,
        deadline_at=datetime.now(UTC) + timedelta(seconds=300),
        kind=kind,
        continues=tuple(continues),
    )
    return delivery(_event(chat, turn, data))


def happened(chat: Chat, data: Any) -> Delivery:
    """Any other event of a conversation, as it comes from the topic."""
    return delivery(_event(chat, chat.id, data))


def ended(chat: Chat, turn: UUID, status: TerminalStatus, reason: str | None = None) -> Delivery:
    """A ``turn.ended`` as it comes from the topic."""
    return delivery(_event(chat, turn, TurnEndedV1(status=status, reason=reason, length=0)))


def delivery(event: Event[Any], offset: int = 0) -> Delivery:
    """A record as the batch loop hands it on."""
    raw = encode(event)
    key = str(event.conversation_id).encode()
    return Delivery(TURN_EVENTS, 0, offset, key, (), raw, decode(raw))


def _event(chat: Chat, turn: UUID, data: Any) -> Event[Any]:
    return Event(
        id=uuid4(),
        source="ingestion",
        tenant_id=chat.tenant_id,
        conversation_id=chat.id,
        correlation_id=turn,
        occurred_at=datetime.now(UTC),
        data=data,
    )


class MemoryWorld:
    """Everything in this process."""

    def __init__(self) -> None:
        self.rows = MemoryRows()
        self.store: PlanningStore = MemoryStore(self.rows)
        self._said: dict[UUID, list[tuple[Chat, Said]]] = {}
        self._instructions: dict[UUID, tuple[Instruction, ...]] = {}

    async def write_turn(self, chat: Chat, said: list[Said], *, status: str) -> None:
        turn = said[0].turn_id
        self.rows.turns[TurnKey(chat.tenant_id, turn)] = TurnState(
            chat.id,
            chat.id,
            status,
            None,
            instructions=self._instructions.get(chat.id, ()),
        )
        self._said[turn] = [(chat, message) for message in said]
        for message in said:
            self.rows.current[TextKey(chat.tenant_id, message.message_id)] = message.text
        if status != "generating":
            self._become_history(turn)

    async def write_answer(self, chat: Chat, question: Said, answer: Said) -> None:
        del question
        await self.write_turn(chat, [answer], status="generating")

    async def end_turn(self, chat: Chat, turn_id: UUID, *, status: Ending) -> None:
        key = TurnKey(chat.tenant_id, turn_id)
        self.rows.turns[key] = TurnState(chat.id, chat.id, status, None)
        self._become_history(turn_id)

    async def told(self) -> list[Told]:
        return [Told(m.type, decode(m.payload)) for m in self.rows.outbox]

    async def plans(self, chat: Chat) -> dict[UUID, dict[str, Any]]:
        return {
            step.turn_id: as_published(orjson.loads(step.plan))
            for step in self.rows.steps.values()
            if step.plan is not None and step.conversation_id == chat.id
        }

    async def payloads(self, chat: Chat) -> dict[UUID, bytes]:
        return {
            self.rows.steps[key].turn_id: payload
            for key, payload in self.rows.payloads.items()
            if self.rows.steps[key].conversation_id == chat.id
        }

    async def captures(self, chat: Chat) -> dict[UUID, tuple[bytes, str]]:
        return {
            self.rows.steps[key].turn_id: capture
            for key, capture in self.rows.captures.items()
            if self.rows.steps[key].conversation_id == chat.id
        }

    async def counts(self) -> int:
        return len(self.rows.counts)

    async def set_instructions(self, chat: Chat, *instructions: Instruction) -> None:
        self._instructions[chat.id] = instructions
        for key, state in self.rows.turns.items():
            if state.conversation_id == chat.id:
                self.rows.turns[key] = replace(state, instructions=instructions)

    async def want_cancelled(self, chat: Chat, turn_id: UUID) -> None:
        key = TurnKey(chat.tenant_id, turn_id)
        self.rows.turns[key] = replace(self.rows.turns[key], cancel_reason="user")

    async def delete_message(self, chat: Chat, message_id: UUID) -> None:
        self.rows.current.pop(TextKey(chat.tenant_id, message_id), None)
        self.rows.history = [m for m in self.rows.history if m.stored.message_id != message_id]

    async def purge(self, chat: Chat, *turn_ids: UUID) -> None:
        self.rows.purged.add(ConversationKey(chat.tenant_id, chat.id))
        for turn_id in turn_ids:
            del self.rows.turns[TurnKey(chat.tenant_id, turn_id)]

    async def keep_no_captures(self, tenant_id: UUID) -> None:
        self.rows.keeps_none.add(tenant_id)

    def _become_history(self, turn: UUID) -> None:
        for chat, said in self._said[turn]:
            if said.role == "assistant" and not said.text:
                continue
            stored = StoredMessage(
                message_id=said.message_id,
                turn_id=turn,
                seq=said.seq,
                role=said.role,
                status=said.status,
                tokens=None,
                length=len(said.text.encode()),
                said_at=SAID_AT,
            )
            tokens = {} if said.tokens is None else {TOKENIZER: said.tokens}
            self.rows.history.append(
                MemoryMessage(chat.tenant_id, chat.id, chat.id, stored, said.text, tokens)
            )


class PostgresWorld:
    """Real rows, written as ingestion would; the handlers run as the service's own role."""

    def __init__(
        self, admin: psycopg.AsyncConnection[dict[str, Any]], database: Database, relay: Relay
    ) -> None:
        self.admin = admin
        self.database = database
        self.relay = relay
        self.store: PlanningStore = PostgresStore(database, relay, consumer=CONSUMER)

    async def write_turn(self, chat: Chat, said: list[Said], *, status: str) -> None:
        async with self.admin.transaction(), self.admin.cursor() as cursor:
            await cursor.execute(_CONVERSATION, {"tenant": chat.tenant_id, "id": chat.id})
            await cursor.execute(_TURN, _turn_row(chat, said, status))
            for message in said:
                row = {**message.__dict__, "tenant": chat.tenant_id, "conversation": chat.id}
                await cursor.execute(_MESSAGE, {**row, "length": len(message.text.encode())})
                if message.tokens is not None:
                    await cursor.execute(_TOKENS, {**row, "tokenizer": TOKENIZER})
            if status == "generating":
                await cursor.execute(_OPEN, _turn_row(chat, said, status))

    async def write_answer(self, chat: Chat, question: Said, answer: Said) -> None:
        async with self.admin.transaction(), self.admin.cursor() as cursor:
            row = _turn_row(chat, [question, answer], "generating") | {
                "turn": answer.turn_id,
                "seq": answer.seq - 1,
            }
            await cursor.execute(_TURN, row)
            message = {**answer.__dict__, "tenant": chat.tenant_id, "conversation": chat.id}
            await cursor.execute(_MESSAGE, {**message, "length": 0})
            await cursor.execute(_OPEN, row)

    async def end_turn(self, chat: Chat, turn_id: UUID, *, status: Ending) -> None:
        parameters = {"tenant": chat.tenant_id, "turn": turn_id, "status": status}
        async with self.admin.transaction(), self.admin.cursor() as cursor:
            await cursor.execute(_END, parameters)
            await cursor.execute(
                "delete from ingestion.open_turns where turn_id = %(turn)s", parameters
            )

    async def told(self) -> list[Told]:
        rows = await self.fetch(
            "select type, payload from context_assembly.outbox"
            " where topic not like '%%.dlq' order by id"
        )
        return [Told(row["type"], decode(bytes(row["payload"]))) for row in rows]

    async def told_types(self) -> list[str]:
        """Types of all records in the outbox, mirrors of dead letters included."""
        rows = await self.fetch("select type from context_assembly.outbox order by id")
        return [row["type"] for row in rows]

    async def plans(self, chat: Chat) -> dict[UUID, dict[str, Any]]:
        rows = await self.fetch(
            "select p.turn_id, p.plan from context_assembly.plans p "
            "join context_assembly.steps s using (tenant_id, step_id) "
            "where s.conversation_id = %(id)s",
            id=chat.id,
        )
        return {row["turn_id"]: as_published(row["plan"]) for row in rows}

    async def payloads(self, chat: Chat) -> dict[UUID, bytes]:
        rows = await self.fetch(
            "select p.turn_id, p.payload from context_assembly.payloads p "
            "join context_assembly.steps s using (tenant_id, step_id) "
            "where s.conversation_id = %(id)s",
            id=chat.id,
        )
        return {row["turn_id"]: bytes(row["payload"]) for row in rows}

    async def captures(self, chat: Chat) -> dict[UUID, tuple[bytes, str]]:
        rows = await self.fetch(
            "select c.turn_id, c.payload, c.cause from context_assembly.captures c "
            "join context_assembly.steps s using (tenant_id, step_id) "
            "where s.conversation_id = %(id)s",
            id=chat.id,
        )
        return {row["turn_id"]: (bytes(row["payload"]), row["cause"]) for row in rows}

    async def counts(self) -> int:
        rows = await self.fetch("select count(*) as n from context_assembly.token_counts")
        return int(rows[0]["n"])

    async def set_instructions(self, chat: Chat, *instructions: Instruction) -> None:
        for one in instructions:
            scope = chat.tenant_id if one.scope == "tenant" else chat.id
            async with self.admin.transaction():
                await self.fetch(
                    "select set_config('app.tenant_ids', %(tenant)s::text, true)",
                    tenant=chat.tenant_id,
                )
                await self.fetch(
                    "select context_assembly.op_set_instructions(%(tenant)s, %(id)s, %(scope)s,"
                    " %(kind)s, %(text)s, %(sha)s, 'test')",
                    tenant=chat.tenant_id,
                    id=uuid4(),
                    scope=scope,
                    kind=one.kind,
                    text=one.text,
                    sha=sha256(one.text.encode()).hexdigest(),
                )

    async def want_cancelled(self, chat: Chat, turn_id: UUID) -> None:
        await self.fetch(
            "update ingestion.turns set cancel_reason = 'user'"
            " where tenant_id = %(tenant)s and id = %(id)s",
            tenant=chat.tenant_id,
            id=turn_id,
        )

    async def delete_message(self, chat: Chat, message_id: UUID) -> None:
        await self.fetch(
            "update ingestion.messages set deleted_at = now()"
            " where tenant_id = %(tenant)s and id = %(id)s",
            tenant=chat.tenant_id,
            id=message_id,
        )

    async def purge(self, chat: Chat, *turn_ids: UUID) -> None:
        turns = list(turn_ids)
        for statement in (
            "delete from ingestion.open_turns where turn_id = any(%(turns)s)",
            "delete from ingestion.messages where turn_id = any(%(turns)s)",
            "delete from ingestion.turns where id = any(%(turns)s)",
        ):
            await self.fetch(statement, turns=turns)
        await self.fetch(
            "insert into ingestion.purged_conversations (tenant_id, conversation_id, purged_at)"
            " values (%(tenant)s, %(id)s, now())",
            tenant=chat.tenant_id,
            id=chat.id,
        )

    async def keep_no_captures(self, tenant_id: UUID) -> None:
        await self.fetch(
            "insert into context_assembly.capture_postures"
            " (tenant_id, posture, sampled_per_mille, set_by, set_at)"
            " values (%(tenant)s, 'none', 0, 'test', now())",
            tenant=tenant_id,
        )

    async def fetch(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        """Rows as a superuser sees them."""
        cursor = await self.admin.execute(query, parameters)  # type: ignore[arg-type]
        return await cursor.fetchall() if cursor.description else []

    async def step_key(self, turn_id: UUID) -> StepKey:
        """The one step of a turn."""
        rows = await self.fetch(
            "select tenant_id, step_id from context_assembly.steps where turn_id = %(turn)s",
            turn=turn_id,
        )
        return StepKey(rows[0]["tenant_id"], rows[0]["step_id"])


@asynccontextmanager
async def postgres_world(test_database: TestDatabase) -> AsyncIterator[PostgresWorld]:
    """A world in a migrated database; the relay never runs, so the outbox can be read."""
    admin = await psycopg.AsyncConnection.connect(
        test_database.admin_url, autocommit=True, row_factory=dict_row
    )
    async with admin:
        database = await Database.open(
            test_database.url_of("context_assembly"), schema="context_assembly"
        )
        try:
            metrics = Metrics(CollectorRegistry())
            relay = Relay(database, MemoryPublisher(), clock=SystemClock(), metrics=metrics)
            yield PostgresWorld(admin, database, relay)
        finally:
            await database.close()


def _turn_row(chat: Chat, said: list[Said], status: str) -> dict[str, Any]:
    return {
        "tenant": chat.tenant_id,
        "turn": said[0].turn_id,
        "conversation": chat.id,
        "request": uuid4(),
        "principal": chat.tenant_id,
        "status": status,
        "seq": said[0].seq,
        "user": said[0].message_id,
        "assistant": said[1].message_id,
        "is_ended": status != "generating",
    }


_CONVERSATION = """
with known as (
  insert into ingestion.conversations (tenant_id, id, principal_id, policy, fingerprint, next_seq,
                                       created_at, updated_at)
  values (%(tenant)s, %(id)s, %(tenant)s, 'serialize', 'f', 1, now(), now())
  on conflict do nothing returning tenant_id, id)
insert into ingestion.branches (tenant_id, conversation_id, id, kind, created_at)
select tenant_id, id, id, 'main', now() from known
"""
_TURN = """
insert into ingestion.turns (tenant_id, id, conversation_id, branch_id, principal_id, request_id,
  key, fingerprint, policy, status, seq, base_seq, queued_at_position, user_message_id,
  assistant_message_id, nul_removed, created_at, started_at, deadline_at, ended_at)
values (%(tenant)s, %(turn)s, %(conversation)s, %(conversation)s, %(principal)s, %(request)s,
  %(turn)s::text, 'f', 'serialize', %(status)s, %(seq)s, %(seq)s, 0, %(user)s, %(assistant)s, 0,
  now(), now(), now() + interval '300 s', case when %(is_ended)s then now() end)
"""
_OPEN = """
insert into ingestion.open_turns (turn_id, tenant_id, conversation_id, branch_id, state, position,
                                  deadline_at, progressed_at)
values (%(turn)s, %(tenant)s, %(conversation)s, %(conversation)s, 'generating', 0,
        now() + interval '300 s', now())
"""
_MESSAGE = """
insert into ingestion.messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq,
                                status, text, length, said_at, created_at)
values (%(tenant)s, %(message_id)s, %(conversation)s, %(conversation)s, %(turn_id)s, %(role)s,
        %(seq)s, %(status)s, %(text)s, %(length)s, now(), now())
"""
_TOKENS = """
insert into ingestion.message_tokens (tenant_id, message_id, tokenizer, tokens)
values (%(tenant)s, %(message_id)s, %(tokenizer)s, %(tokens)s)
"""
_CLOSE = "delete from ingestion.open_turns where turn_id = %(turn)s"
_END = """
update ingestion.turns set status = %(status)s, ended_at = now()
 where tenant_id = %(tenant)s and id = %(turn)s
"""
