"""Conversations written as rows, and the simplest model of what stands on each of their branches.

The model copies: a branch is the list of messages that stand on it, and a fork begins with a copy
of its parent's. The rows know stretches instead, made by the service's own statement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row

from services.ingestion.statements import SQL
from tests.rig.parts import TestDatabase

TOKENIZER = "o200k_base"
BEFORE_NOTHING = 2**62

_CONVERSATION = """
insert into ingestion.conversations (tenant_id, id, principal_id, title, policy, fingerprint,
  next_seq, created_at, updated_at)
values (%(tenant)s, %(id)s, %(principal)s, %(title)s, 'serialize', 'f', 1, now(), now())
"""
_MAIN = """
insert into ingestion.branches (tenant_id, conversation_id, id, kind, created_at)
values (%(tenant)s, %(id)s, %(id)s, 'main', now())
"""
_TURN = """
insert into ingestion.turns (tenant_id, id, conversation_id, branch_id, principal_id,
  parent_turn_id, kind, request_id, key, fingerprint, policy, status, seq, base_seq,
  queued_at_position, user_message_id, assistant_message_id, nul_removed, created_at, started_at,
  deadline_at, ended_at)
values (%(tenant)s, %(turn)s, %(id)s, %(branch)s, %(principal)s, null, %(kind)s, gen_random_uuid(),
  %(turn)s::text, 'f', 'serialize', %(status)s, %(seq)s, %(base)s, 0, %(question)s, %(answer)s, 0,
  now(), now(), now(), %(ended)s)
"""
_MESSAGE = """
insert into ingestion.messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq,
  status, text, length, said_at, created_at, supersedes)
values (%(tenant)s, %(message)s, %(id)s, %(branch)s, %(turn)s, %(role)s, %(seq)s, %(status)s,
  %(text)s, octet_length(%(text)s), now(), now(), %(supersedes)s)
"""
_TOKENS = """
insert into ingestion.message_tokens (tenant_id, message_id, tokenizer, tokens)
values (%(tenant)s, %(message)s, %(tokenizer)s, length(%(text)s))
"""
_OPEN = """
insert into ingestion.open_turns (turn_id, tenant_id, conversation_id, branch_id, state, position,
  deadline_at, progressed_at, base_seq)
values (%(turn)s, %(tenant)s, %(id)s, %(branch)s, 'generating', 0, now(), now(), %(base)s)
"""
_HISTORY = """
select * from ingestion.history_v1(%(tenants)s::uuid[], %(conversations)s::uuid[],
  %(branches)s::uuid[], %(before)s::bigint[], %(tokenizers)s::text[], %(max_rows)s)
"""
_MESSAGES = """
select * from ingestion.messages_v1(%(tenant)s, %(principal)s, %(id)s, %(after)s, %(before)s,
  %(descending)s, %(branch)s, %(max_rows)s)
"""


def writer(database: TestDatabase) -> "psycopg.Connection[dict[str, Any]]":
    """The superuser's connection, past all policies, finding what ingestion finds."""
    connection = psycopg.connect(
        database.admin_url, autocommit=True, connect_timeout=10, row_factory=dict_row
    )
    connection.execute("set search_path = ingestion, turnwire, public")
    return connection


def reader(database: TestDatabase, service: str) -> "psycopg.Connection[dict[str, Any]]":
    """A service's own connection; it names a tenant before it reads."""
    return psycopg.connect(
        database.url_of(service), autocommit=True, connect_timeout=10, row_factory=dict_row
    )


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the model."""

    id: UUID
    turn_id: UUID
    branch_id: UUID
    role: str
    seq: int
    status: str
    text: str
    supersedes: UUID | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the model; ``seq`` is one below its answer's."""

    id: UUID
    branch_id: UUID
    kind: str
    question: Said
    answer: Said
    seq: int


@dataclass
class Line:
    """One conversation: writes rows, and keeps what stands on each branch.

    Attributes:
        paths: Messages that stand on a branch, by seq.
        open: Turns that have not ended.
    """

    connection: "psycopg.Connection[dict[str, Any]]"
    tenant: UUID = field(default_factory=uuid4)
    principal: UUID = field(default_factory=uuid4)
    id: UUID = field(default_factory=uuid4)
    title: str | None = None
    next_seq: int = 1
    paths: dict[UUID, list[Said]] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    deleted: set[UUID] = field(default_factory=set)
    open: set[UUID] = field(default_factory=set)

    def __post_init__(self) -> None:
        values = {"title": self.title, **self._names()}
        self.connection.execute(_CONVERSATION, values)
        self.connection.execute(_MAIN, values)
        self.paths[self.id] = []

    def post(
        self, branch: UUID, text: str, *, answer: str = "…", status: str = "completed"
    ) -> Turn:
        """A message and its answer at the end of a branch."""
        return self._turn("message", branch, text, answer=answer, status=status)

    def edit(self, message: Said, text: str, *, status: str = "completed") -> Turn:
        """The same message in other words, on a branch of its own."""
        branch = self._fork(message.branch_id, below=message.seq)
        return self._turn("edit", branch, text, answer="…", status=status, supersedes=message.id)

    def regenerate(self, turn: Turn, answer: str, *, status: str = "completed") -> Turn:
        """Another answer to the same question, on a branch of its own."""
        branch = self._fork(turn.question.branch_id, below=turn.question.seq + 1)
        return self._turn("regenerate", branch, turn.question, answer=answer, status=status)

    def go_on(self, turn: Turn, answer: str, *, status: str = "completed") -> Turn:
        """More of the same answer: on its branch where it is the last, else on one of its own."""
        branch = turn.branch_id
        if any(said.seq > turn.answer.seq for said in self.paths[branch]):
            branch = self._fork(branch, below=turn.seq + 2)
        return self._turn("continue", branch, turn.question, answer=answer, status=status)

    def delete(self, message: Said) -> None:
        """Gone from everywhere."""
        self.connection.execute(
            "with hot as (update messages set deleted_at = now() where id = %(id)s)"
            " update archived_messages set deleted_at = now() where id = %(id)s",
            {"id": message.id},
        )
        self.connection.execute(
            "update turns set answer_deleted_at = now() where assistant_message_id = %s",
            [message.id],
        )
        self.deleted.add(message.id)

    def archive(self, below: int) -> int:
        """Move what stands below a number out of the way; how many messages."""
        row = self.connection.execute(
            "select op_archive(%s, %s, 'a test') as moved", [self.id, below]
        ).fetchone()
        assert row is not None
        return int(row["moved"])

    def unarchive(self) -> int:
        """Move everything back; how many messages."""
        row = self.connection.execute(
            "select op_unarchive(%s, 'a test') as moved", [self.id]
        ).fetchone()
        assert row is not None
        return int(row["moved"])

    def expected_history(self, branch: UUID, *, before: int, max_rows: int) -> list[UUID]:
        """What a plan may show of a branch, newest first."""
        found = [
            said
            for said in self.paths[branch]
            if said.seq < before
            and said.id not in self.deleted
            and said.turn_id not in self.open
            and (said.role == "user" or (said.status in SHOWN and said.text))
        ]
        return [said.id for said in reversed(found)][:max_rows]

    def expected_messages(self, branch: UUID) -> list[UUID]:
        """What a front end shows of a branch, oldest first."""
        return [said.id for said in self.paths[branch] if said.id not in self.deleted]

    def history(
        self,
        as_context: "psycopg.Connection[dict[str, Any]]",
        branch: UUID,
        *,
        before: int = BEFORE_NOTHING,
        max_rows: int = 10_000,
    ) -> list[dict[str, Any]]:
        """Rows of the published function, read by the service that may."""
        wanted = {
            "tenants": [self.tenant],
            "conversations": [self.id],
            "branches": [branch],
            "before": [before],
            "tokenizers": [TOKENIZER],
            "max_rows": max_rows,
        }
        return read(as_context, _HISTORY, wanted, tenant=self.tenant)

    def messages(
        self, as_gateway: "psycopg.Connection[dict[str, Any]]", **wanted: Any
    ) -> list[dict[str, Any]]:
        """A page of the published list; what is not asked for is null."""
        page = {
            "after": None,
            "before": None,
            "descending": False,
            "branch": None,
            "max_rows": 1_000,
            **self._names(),
            **wanted,
        }
        return read(as_gateway, _MESSAGES, page, tenant=self.tenant)

    def _turn(
        self,
        kind: str,
        branch: UUID,
        said: str | Said,
        *,
        answer: str,
        status: str,
        supersedes: UUID | None = None,
    ) -> Turn:
        turn_id = uuid4()
        if isinstance(said, Said):
            question = said
        else:
            question = Said(
                uuid4(), turn_id, branch, "user", self.next_seq, "completed", said, supersedes
            )
            self.next_seq += 1
        row_status = "pending" if status == "generating" else status
        reply = Said(uuid4(), turn_id, branch, "assistant", self.next_seq, row_status, answer)
        self.next_seq += 1
        turn = Turn(turn_id, branch, kind, question, reply, reply.seq - 1)
        self._write_turn(turn, status=status)
        if question.turn_id == turn_id:
            self._write(question)
        self._write(reply)
        self.turns.append(turn)
        if status == "generating":
            self.open.add(turn_id)
        return turn

    def _write_turn(self, turn: Turn, *, status: str) -> None:
        values = {
            **self._names(),
            "turn": turn.id,
            "branch": turn.branch_id,
            "kind": turn.kind,
            "status": status,
            "seq": turn.seq,
            "base": turn.question.seq,
            "question": turn.question.id,
            "answer": turn.answer.id,
            "ended": None if status == "generating" else "2026-01-01T00:00:00Z",
        }
        self.connection.execute(_TURN, values)
        if status == "generating":
            self.connection.execute(_OPEN, values)
        self.connection.execute(
            "update conversations set next_seq = %s where id = %s", [self.next_seq, self.id]
        )

    def _write(self, said: Said) -> None:
        values = {
            **self._names(),
            "message": said.id,
            "branch": said.branch_id,
            "turn": said.turn_id,
            "role": said.role,
            "seq": said.seq,
            "status": said.status,
            "text": said.text,
            "supersedes": said.supersedes,
            "tokenizer": TOKENIZER,
        }
        self.connection.execute(_MESSAGE, values)
        self.connection.execute(_TOKENS, values)
        self.paths[said.branch_id].append(said)

    def _fork(self, parent: UUID, *, below: int) -> UUID:
        branch = uuid4()
        self.connection.execute(
            SQL["fork_branches"],
            {
                "tenants": [self.tenant],
                "conversations": [self.id],
                "ids": [branch],
                "parents": [parent],
                "caps": [below],
                "turns": [uuid4()],
            },
        )
        self.paths[branch] = [said for said in self.paths[parent] if said.seq < below]
        return branch

    def _names(self) -> dict[str, UUID]:
        return {"tenant": self.tenant, "principal": self.principal, "id": self.id}


SHOWN = ("completed", "partial", "cancelled")


def read(
    connection: "psycopg.Connection[dict[str, Any]]",
    statement: str,
    values: dict[str, Any] | Sequence[Any],
    *,
    tenant: UUID | None,
) -> list[dict[str, Any]]:
    """Rows that a service sees in a transaction that named one tenant, or none."""
    with connection.transaction():
        named = "" if tenant is None else str(tenant)
        connection.execute("select set_config('app.tenant_ids', %s, true)", [named])
        return connection.execute(statement.encode(), values).fetchall()


def ids_of(found: Sequence[dict[str, Any]], column: str) -> list[Any]:
    """One column of the rows, in their order."""
    return [row[column] for row in found]
