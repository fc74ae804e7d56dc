"""The same rows for the store in memory and for Postgres, written by whoever owns them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID, uuid4

import psycopg

from libs.api_keys import hash_api_key, new_api_key, visible_prefix
from libs.ids import message_id
from schemas.streams import EntryId
from schemas.usage import Usage
from services.frontend_gateway.core.evidence import BranchView
from services.frontend_gateway.core.turns import Checkpoint, TurnView
from services.frontend_gateway.memory import MemoryStore
from services.frontend_gateway.ports import (
    Caller,
    CaptureView,
    ConversationView,
    MessageView,
    Outcome,
    PlanView,
    Store,
)

AT = datetime(2026, 1, 31, 9, 40, tzinfo=UTC)
SCOPES = ("chat", "read")
FORKED_AT = AT + timedelta(days=1)


@dataclass(frozen=True)
class Said:
    """One turn of a conversation as it shall stand in the rows."""

    status: str = "completed"
    question: str = "Hello?"
    answer: str = "Hi."
    upto: str | None = "1-2"


class World(Protocol):
    """Rows, and the store that reads them."""

    store: Store

    async def key(
        self, tenant: UUID, principal: UUID, scopes: Sequence[str] = SCOPES
    ) -> tuple[str, UUID]:
        """A key and its id."""
        ...

    async def revoke(self, key_id: UUID) -> None:
        """Revoke a key."""
        ...

    async def conversation(self, tenant: UUID, principal: UUID, turns: list[Said]) -> list[UUID]:
        """Ids of a conversation and its turns."""
        ...

    async def outcome(self, tenant: UUID, request: UUID, conversation: UUID, turn: UUID) -> None:
        """An accepted request."""
        ...

    async def checkpoint(self, tenant: UUID, turn: UUID, text: str, upto: str) -> None:
        """The stored text of a running answer."""
        ...

    async def plan(self, tenant: UUID, turn: UUID, plan: dict[str, Any]) -> None:
        """The plan of a turn's first step."""
        ...

    async def delete_answer(self, tenant: UUID, turn: UUID) -> None:
        """Delete the answer of a turn."""
        ...

    async def delete_conversation(self, tenant: UUID, conversation: UUID) -> None:
        """Delete a conversation; it is not purged."""
        ...

    async def rename(self, conversation: UUID, title: str) -> None:
        """Give a conversation another title."""
        ...

    async def fork(self, tenant: UUID, conversation: UUID, below: int) -> UUID:
        """A branch of the main one that shows what stands below a number; it becomes active."""
        ...

    async def supersede(self, conversation: UUID, message: UUID, by: UUID) -> None:
        """Let a message be one that was said again as another one."""
        ...

    async def rewrite(self, conversation: UUID, message: UUID, text: str) -> None:
        """Change the stored text of a message, as no service ever does."""
        ...

    async def capture(self, tenant: UUID, turn: UUID, payload: bytes) -> None:
        """A captured payload of the turn's first step, whose plan exists."""
        ...

    async def reads_of(self, turn: UUID) -> list[tuple[UUID, bool]]:
        """Who read captures of a turn, and whether there was one."""
        ...


class MemoryWorld:
    """Rows in dictionaries."""

    def __init__(self) -> None:
        self._memory = MemoryStore()
        self.store: Store = self._memory
        self._count = 0

    async def key(
        self, tenant: UUID, principal: UUID, scopes: Sequence[str] = SCOPES
    ) -> tuple[str, UUID]:
        key = new_api_key(uuid4().bytes * 2)
        caller = Caller(uuid4(), tenant, principal, frozenset(scopes))
        self._memory.keys[hash_api_key(key)] = caller
        return key, caller.key_id

    async def revoke(self, key_id: UUID) -> None:
        self._memory.keys = {
            hash_: caller for hash_, caller in self._memory.keys.items() if caller.key_id != key_id
        }

    async def conversation(self, tenant: UUID, principal: UUID, turns: list[Said]) -> list[UUID]:
        self._count += 1
        conversation = uuid4()
        at = AT + timedelta(seconds=self._count)
        view = ConversationView(conversation, "T", "serialize", at, at, 2 * len(turns))
        self._memory.conversation_rows[conversation] = (tenant, principal, view)
        rows = self._memory.message_rows.setdefault(conversation, [])
        ids = []
        for place, said in enumerate(turns):
            turn = _turn(tenant, principal, conversation, 2 * place + 1, said)
            ids.append(turn.id)
            self._memory.turn_rows[turn.id] = turn
            self._memory.texts[turn.id] = said.answer
            question = (turn.user_message_id, "user", said.question, turn.seq, "completed")
            answer = (
                turn.assistant_message_id,
                "assistant",
                said.answer,
                turn.seq + 1,
                said.status,
            )
            rows += [
                MessageView(*question, None, turn.id, AT),
                MessageView(*answer, None, turn.id, AT),
            ]
        return [conversation, *ids]

    async def outcome(self, tenant: UUID, request: UUID, conversation: UUID, turn: UUID) -> None:
        del tenant
        row = self._memory.turn_rows[turn]
        view = self._memory.conversation_rows[conversation][2]
        self._memory.outcome_rows[request] = Outcome(
            request,
            "accepted",
            conversation,
            turn,
            None,
            row.seq,
            row.status,
            view.title,
            view.policy,
            view.created_at,
            user_message_id=row.user_message_id,
            branch_id=row.stands_on,
            kind=row.kind,
        )

    async def checkpoint(self, tenant: UUID, turn: UUID, text: str, upto: str) -> None:
        del tenant
        self._memory.checkpoint_rows[turn] = Checkpoint(text, EntryId.parse(upto))

    async def plan(self, tenant: UUID, turn: UUID, plan: dict[str, Any]) -> None:
        del tenant
        self._memory.plan_rows[turn] = [PlanView(uuid4(), 1, plan, AT)]

    async def delete_answer(self, tenant: UUID, turn: UUID) -> None:
        del tenant
        row = self._memory.turn_rows[turn]
        self._memory.turn_rows[turn] = replace(row, answer_deleted_at=AT)
        self._memory.deleted_messages.add(row.assistant_message_id)

    async def delete_conversation(self, tenant: UUID, conversation: UUID) -> None:
        del tenant
        self._memory.deleted_conversations.add(conversation)

    async def rename(self, conversation: UUID, title: str) -> None:
        owner, principal, view = self._memory.conversation_rows[conversation]
        renamed = replace(view, title=title)
        self._memory.conversation_rows[conversation] = (owner, principal, renamed)

    async def fork(self, tenant: UUID, conversation: UUID, below: int) -> UUID:
        del tenant
        id_ = uuid4()
        branch = BranchView(id_, "sibling", conversation, below, True, None, None, FORKED_AT)
        self._memory.branch_rows.setdefault(conversation, []).append(branch)
        owner, principal, view = self._memory.conversation_rows[conversation]
        moved = replace(view, branch_id=id_)
        self._memory.conversation_rows[conversation] = (owner, principal, moved)
        return id_

    async def supersede(self, conversation: UUID, message: UUID, by: UUID) -> None:
        rows = self._memory.message_rows[conversation]
        for place, row in enumerate(rows):
            if row.id == by:
                rows[place] = replace(row, supersedes=message)

    async def rewrite(self, conversation: UUID, message: UUID, text: str) -> None:
        rows = self._memory.message_rows[conversation]
        for place, row in enumerate(rows):
            if row.id == message:
                rows[place] = replace(row, content=text)

    async def capture(self, tenant: UUID, turn: UUID, payload: bytes) -> None:
        del tenant
        self._memory.capture_rows[turn] = [CaptureView(1, "failed", AT, payload)]

    async def reads_of(self, turn: UUID) -> list[tuple[UUID, bool]]:
        reads = self._memory.capture_reads
        return [(reader.principal_id, found) for _, of, reader, found in reads if of == turn]


class PostgresWorld:
    """Rows in the tables of all services, written past the policies by the superuser."""

    def __init__(self, store: Store, admin: psycopg.AsyncConnection[Any]) -> None:
        self.store = store
        self._admin = admin
        self._count = 0

    async def _run(self, sql: str, *values: Any) -> None:
        await self._admin.execute(sql.encode(), values)

    async def key(
        self, tenant: UUID, principal: UUID, scopes: Sequence[str] = SCOPES
    ) -> tuple[str, UUID]:
        key, key_id = new_api_key(uuid4().bytes * 2), uuid4()
        await self._run(
            "select frontend_gateway.op_create_key(%s, %s, %s, %s, %s, %s, %s, %s, 'test')",
            key_id,
            str(tenant),
            tenant,
            str(principal),
            principal,
            list(scopes),
            visible_prefix(key),
            hash_api_key(key),
        )
        return key, key_id

    async def revoke(self, key_id: UUID) -> None:
        await self._run("select frontend_gateway.op_revoke_key(%s, 'test')", key_id)

    async def conversation(self, tenant: UUID, principal: UUID, turns: list[Said]) -> list[UUID]:
        self._count += 1
        conversation = uuid4()
        at = AT + timedelta(seconds=self._count)
        await self._run(
            "insert into ingestion.conversations (tenant_id, id, principal_id, title, policy, "
            "fingerprint, next_seq, created_at, updated_at) "
            "values (%s, %s, %s, 'T', 'serialize', '', %s, %s, %s)",
            tenant,
            conversation,
            principal,
            2 * len(turns) + 1,
            at,
            at,
        )
        await self._run(
            "insert into ingestion.branches (tenant_id, conversation_id, id, kind, created_at) "
            "values (%s, %s, %s, 'main', %s)",
            tenant,
            conversation,
            conversation,
            at,
        )
        ids = []
        for place, said in enumerate(turns):
            turn = _turn(tenant, principal, conversation, 2 * place + 1, said)
            await self._turn(turn, said)
            ids.append(turn.id)
        return [conversation, *ids]

    async def _turn(self, turn: TurnView, said: Said) -> None:
        usage = json.dumps(turn.usage.model_dump()) if turn.usage else None
        await self._run(
            "insert into ingestion.turns (tenant_id, id, conversation_id, branch_id, principal_id, "
            "request_id, key, fingerprint, policy, options, status, seq, queued_at_position, "
            "user_message_id, assistant_message_id, length, upto, usage, nul_removed, created_at, "
            "ended_at) values (%s, %s, %s, %s, %s, %s, %s, '', 'serialize', "
            """'{"cancel_after_s": 5}', %s, %s, 0, %s, %s, %s, %s, %s, 0, %s, %s)""",
            turn.tenant_id,
            turn.id,
            turn.conversation_id,
            turn.conversation_id,
            turn.principal_id,
            uuid4(),
            str(turn.id),
            turn.status,
            turn.seq,
            turn.user_message_id,
            turn.assistant_message_id,
            turn.length,
            None if turn.upto is None else str(turn.upto),
            usage,
            AT,
            turn.ended_at,
        )
        stored = said.status if turn.has_ended else "pending"
        roles: tuple[tuple[Any, int, str, str], ...] = (
            ("user", turn.seq, "completed", said.question),
            ("assistant", turn.seq + 1, stored, said.answer),
        )
        for role, seq, status, text in roles:
            await self._run(
                "insert into ingestion.messages (tenant_id, id, conversation_id, branch_id, "
                "turn_id, role, seq, status, text, length, said_at, created_at) "
                "values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                turn.tenant_id,
                message_id(turn.id, role),
                turn.conversation_id,
                turn.conversation_id,
                turn.id,
                role,
                seq,
                status,
                text,
                len(text.encode()),
                AT,
                AT,
            )

    async def outcome(self, tenant: UUID, request: UUID, conversation: UUID, turn: UUID) -> None:
        await self._run(
            "insert into ingestion.request_outcomes values (%s, %s, 'accepted', %s, %s, null, %s)",
            request,
            tenant,
            conversation,
            turn,
            AT,
        )

    async def checkpoint(self, tenant: UUID, turn: UUID, text: str, upto: str) -> None:
        await self._run(
            "insert into llm_gateway.partials values (%s, %s, %s, %s, %s, %s, %s)",
            tenant,
            turn,
            uuid4(),
            EntryId.parse(upto).attempt,
            upto,
            text,
            AT,
        )

    async def plan(self, tenant: UUID, turn: UUID, plan: dict[str, Any]) -> None:
        step = uuid4()
        await self._run(
            "insert into context_assembly.steps (tenant_id, step_id, turn_id, step_no, "
            "conversation_id, branch_id, seq, model, state, deadline_at, event_id, told_at, "
            "created_at) values (%s, %s, %s, 1, %s, %s, 1, 'm', 'planned', %s, %s, %s, %s)",
            tenant,
            step,
            turn,
            uuid4(),
            uuid4(),
            AT,
            uuid4(),
            AT,
            AT,
        )
        await self._run(
            "insert into context_assembly.plans values (%s, %s, %s, 1, %s, %s)",
            tenant,
            step,
            turn,
            json.dumps(plan),
            AT,
        )

    async def delete_answer(self, tenant: UUID, turn: UUID) -> None:
        del tenant
        await self._run("update ingestion.turns set answer_deleted_at = %s where id = %s", AT, turn)
        await self._run(
            "update ingestion.messages set deleted_at = %s where id = %s",
            AT,
            message_id(turn, "assistant"),
        )

    async def delete_conversation(self, tenant: UUID, conversation: UUID) -> None:
        del tenant
        await self._run(
            "update ingestion.conversations set deleted_at = %s, purge_at = %s where id = %s",
            AT,
            AT,
            conversation,
        )

    async def rename(self, conversation: UUID, title: str) -> None:
        await self._run(
            "update ingestion.conversations set title = %s where id = %s", title, conversation
        )

    async def fork(self, tenant: UUID, conversation: UUID, below: int) -> UUID:
        id_ = uuid4()
        await self._run(
            "insert into ingestion.branches (tenant_id, conversation_id, id, kind, created_at, "
            "parent_branch_id, segments, below, is_plain) "
            "values (%s, %s, %s, 'sibling', %s, %s, %s, %s, false)",
            tenant,
            conversation,
            id_,
            FORKED_AT,
            conversation,
            [id_, conversation],
            [2**63 - 1, below],
        )
        await self._run(
            "update ingestion.conversations set branch_id = %s where id = %s", id_, conversation
        )
        return id_

    async def supersede(self, conversation: UUID, message: UUID, by: UUID) -> None:
        await self._run(
            "update ingestion.messages set supersedes = %s where conversation_id = %s and id = %s",
            message,
            conversation,
            by,
        )

    async def rewrite(self, conversation: UUID, message: UUID, text: str) -> None:
        await self._run(
            "update ingestion.messages set text = %s where conversation_id = %s and id = %s",
            text,
            conversation,
            message,
        )

    async def capture(self, tenant: UUID, turn: UUID, payload: bytes) -> None:
        await self._run(
            "insert into context_assembly.captures (tenant_id, step_id, turn_id, cause, payload, "
            "captured_at) select %s, s.step_id, s.turn_id, 'failed', %s, %s "
            "from context_assembly.steps s where s.turn_id = %s",
            tenant,
            payload,
            AT,
            turn,
        )

    async def reads_of(self, turn: UUID) -> list[tuple[UUID, bool]]:
        cursor = await self._admin.execute(
            b"select reader, found from context_assembly.capture_reads where turn_id = %s "
            b"order by at",
            (turn,),
        )
        return [(row[0], row[1]) for row in await cursor.fetchall()]


def _turn(tenant: UUID, principal: UUID, conversation: UUID, seq: int, said: Said) -> TurnView:
    has_ended = said.status not in ("pending", "generating")
    return TurnView(
        id=uuid4(),
        tenant_id=tenant,
        conversation_id=conversation,
        principal_id=principal,
        status=said.status,
        seq=seq,
        policy="serialize",
        length=len(said.answer.encode()) if has_ended else None,
        upto=EntryId.parse(said.upto) if said.upto and has_ended else None,
        usage=Usage(input=3, output=4) if has_ended else None,
        created_at=AT,
        ended_at=AT if has_ended else None,
        options={"cancel_after_s": 5},
    )
