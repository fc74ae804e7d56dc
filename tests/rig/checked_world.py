"""A small world in which every promise is kept, for tests that break one and look who notices."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import orjson
import psycopg
from psycopg.rows import dict_row

from libs import ids
from libs.catalogue import Catalogue
from libs.tokens import count
from schemas.registry import CONTEXT_EVENTS, GENERATION_EVENTS, TURN_EVENTS
from schemas.streams import (
    Entry,
    EntryId,
    TurnEnd,
    content_delta,
    generating,
    message_started,
    terminal_entries,
)
from services.context_assembly.app import limits_from
from services.context_assembly.core.budget import sampling_of
from services.context_assembly.core.document import to_document
from services.context_assembly.core.history import HistoryRow, Role
from services.context_assembly.core.instructions import SystemPolicy
from services.context_assembly.core.payload import seal
from services.context_assembly.core.plan import TurnToPlan
from services.context_assembly.core.planner import Planner
from tests.rig.evidence import Evidence
from tests.rig.ledger import Ledger, Post, Reply, StreamEvent, StreamLog, canary_of

SECONDS_OF_A_TURN = 60

CONVERSATION = """
with known as (
  insert into ingestion.conversations (tenant_id, id, principal_id, policy, fingerprint, next_seq,
                                       created_at, updated_at)
  values (%(tenant)s, %(conversation)s, %(tenant)s, 'serialize', 'f', 5, now(), now())
  returning tenant_id, id)
insert into ingestion.branches (tenant_id, conversation_id, id, kind, created_at)
select tenant_id, id, id, 'main', now() from known
"""
TURN = """
insert into ingestion.turns (tenant_id, id, conversation_id, branch_id, principal_id, request_id,
  key, fingerprint, policy, status, seq, base_seq, queued_at_position, user_message_id,
  assistant_message_id, parent_turn_id, nul_removed, length, sha256, created_at, started_at,
  deadline_at, ended_at)
values (%(tenant)s, %(turn)s, %(conversation)s, %(conversation)s, %(tenant)s, %(turn)s, %(key)s,
  'f', 'serialize', 'completed', %(seq)s, %(seq)s, 0, %(asked_id)s, %(answer_id)s, %(parent)s, 0,
  %(length)s, %(sha256)s, now() + %(begins)s, now() + %(begins)s, now() + interval '1 day',
  now() + %(begins)s + interval '5 s')
"""
MESSAGES = """
insert into ingestion.messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq,
                                status, text, length, said_at, created_at)
values (%(tenant)s, %(asked_id)s, %(conversation)s, %(conversation)s, %(turn)s, 'user', %(seq)s,
        'completed', %(asked)s, octet_length(%(asked)s::text), now(), now()),
       (%(tenant)s, %(answer_id)s, %(conversation)s, %(conversation)s, %(turn)s, 'assistant',
        %(seq)s + 1, 'completed', %(answer)s, octet_length(%(answer)s::text), now(), now())
"""
TRANSITION = """
insert into ingestion.transitions (tenant_id, turn_id, status, cause_id, at)
values (%(tenant)s, %(turn)s, 'completed', %(step)s, now())
"""
STEP = """
with made as (
  insert into context_assembly.steps (tenant_id, step_id, turn_id, step_no, conversation_id,
    branch_id, seq, model, state, deadline_at, event_id, told_at, created_at, ended_at)
  values (%(tenant)s, %(step)s, %(turn)s, 1, %(conversation)s, %(conversation)s, %(seq)s,
          'scripted', 'ended', now(), %(step)s, now(), now(), now())
  returning *)
insert into context_assembly.plans (tenant_id, step_id, turn_id, step_no, plan, created_at)
select tenant_id, step_id, turn_id, step_no, %(plan)s::json, now() from made
"""
ATTEMPT = """
insert into llm_gateway.attempts (tenant_id, turn_id, step_id, attempt, model, outcome, reason,
                                  requests, ended_at)
values (%(tenant)s, %(turn)s, %(step)s, 1, 'scripted', 'completed', 'stop', 1, now())
"""


@dataclass(slots=True)
class CheckedTurn:
    """One turn, and everything that belongs to it."""

    id: UUID
    seq: int
    asked: str
    answer: str
    values: dict[str, Any]
    prompt: bytes = b""

    @property
    def said(self) -> tuple[tuple[Role, int, str], ...]:
        """Its two messages: who, place, text."""
        return ("user", self.seq, self.asked), ("assistant", self.seq + 1, self.answer)

    @property
    def end(self) -> TurnEnd:
        """What its row says."""
        raw = self.answer.encode()
        return TurnEnd("completed", None, len(raw), hashlib.sha256(raw).hexdigest(), None)

    @property
    def entries(self) -> list[Entry]:
        """Its stream."""
        answer_id = self.values["answer_id"]
        return [
            message_started(turn_id=self.id, message_id=answer_id, seq=self.seq + 1),
            generating(1),
            content_delta(EntryId(1, 2), self.answer[:5]),
            content_delta(EntryId(1, 3), self.answer[5:]),
            *terminal_entries(self.end),
        ]


@dataclass(slots=True)
class CheckedWorld:
    """One tenant's conversation of two turns, stored, told and seen as it should be.

    Attributes:
        connection: Of a superuser who ignores foreign keys, so that anything can be broken.
    """

    connection: psycopg.Connection[dict[str, Any]]
    admin_url: str
    tenant: UUID = field(default_factory=uuid4)
    conversation: UUID = field(default_factory=uuid4)
    turns: list[CheckedTurn] = field(default_factory=list)
    topics: dict[str, list[bytes]] = field(default_factory=dict)
    streams: dict[UUID, list[Entry]] = field(default_factory=dict)
    open_calls: int = 0
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.tenant)
        self.execute(CONVERSATION, {"tenant": self.tenant, "conversation": self.conversation})
        for number in (1, 2):
            self._add_turn(number)

    def execute(self, sql: str, values: Mapping[str, Any] | None = None) -> None:
        """Change rows."""
        self.connection.execute(sql, values)

    @property
    def evidence(self) -> Evidence:
        """All that was told."""
        return Evidence(
            topics=self.topics,
            streams=self.streams,
            prompts=[turn.prompt for turn in self.turns],
            open_calls=self.open_calls,
        )

    def tell(self, topic: str, turn: UUID, kind: str, **data: object) -> None:
        """Put a record on an inner topic."""
        record = {"id": uuid4(), "type": kind, "correlation_id": turn, "data": data}
        self.topics.setdefault(topic, []).append(orjson.dumps(record))

    def _add_turn(self, number: int) -> None:
        canary, key = canary_of(self.tenant), f"key {number}"
        turn = uuid4()
        asked, answer = f"question {number} {canary}", f"answer {number} {canary}"
        seq = 2 * number - 1
        values = {
            "tenant": self.tenant,
            "conversation": self.conversation,
            "turn": turn,
            "parent": self.turns[-1].id if self.turns else None,
            "step": ids.step_id(turn, 1),
            "key": key,
            "seq": seq,
            "asked": asked,
            "answer": answer,
            "asked_id": ids.message_id(turn, "user"),
            "answer_id": ids.message_id(turn, "assistant"),
            "length": len(answer.encode()),
            "sha256": hashlib.sha256(answer.encode()).hexdigest(),
            "begins": f"{number * SECONDS_OF_A_TURN} s",
        }
        one = CheckedTurn(turn, seq, asked, answer, values)
        values["plan"], one.prompt = self._planned(one)
        for statement in (TURN, MESSAGES, TRANSITION, STEP, ATTEMPT):
            self.execute(statement.replace("%(begins)s", "%(begins)s::interval"), values)
        self.turns.append(one)
        self.streams[turn] = one.entries
        self.ledger.posts.append(self._seen(one, key))
        self.tell(TURN_EVENTS, turn, "turn.ended", status="completed")
        step = str(values["step"])
        self.tell(CONTEXT_EVENTS, turn, "step.planned", step_id=step)
        self.tell(GENERATION_EVENTS, turn, "generation.completed", step_id=step)

    def _planned(self, turn: CheckedTurn) -> tuple[str, bytes]:
        """The plan as the product makes it."""
        limits = limits_from(Catalogue.load().model("scripted"))
        texts = {str(turn.values["asked_id"]): turn.asked}
        rows = []
        for old in self.turns:
            for role, seq, text in old.said:
                message = ids.message_id(old.id, role)
                texts[str(message)] = text
                tokens = count(text, limits.tokenizer)
                rows.append(HistoryRow(message, old.id, seq, role, "completed", tokens, len(text)))
        planner = Planner(limits, SystemPolicy("", "1"), sampling_of(None, limits))
        to_plan = TurnToPlan(
            turn_id=turn.id,
            step_id=turn.values["step"],
            step_no=1,
            base_seq=turn.seq,
            user_message_id=turn.values["asked_id"],
            current_tokens=count(turn.asked, limits.tokenizer),
        )
        plan, payload = seal(planner.plan(to_plan, rows), texts)
        return orjson.dumps(to_document(plan)).decode(), payload[:-1] + b',"stream":true}'

    def _seen(self, turn: CheckedTurn, key: str) -> Post:
        events = [StreamEvent(str(entry.id), entry.event, entry.data) for entry in turn.entries]
        return Post(
            self.conversation,
            key,
            turn.asked,
            [Reply(202, {"turn_id": str(turn.id), "status": "pending"}, {"x-request-id": "r"})],
            StreamLog(turn.id, events),
        )


@contextmanager
def open_world(admin_url: str) -> Iterator[CheckedWorld]:
    """A world that keeps every promise, in a migrated database."""
    with psycopg.connect(admin_url, autocommit=True, row_factory=dict_row) as connection:
        connection.execute("set session_replication_role = replica")
        yield CheckedWorld(connection, admin_url)
