"""Reads and writes of ingestion, as statements for one pipelined transaction."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from libs.postgres import Row, Statement
from services.ingestion import changes
from services.ingestion.core.answer import Answer
from services.ingestion.core.decisions import (
    Acceptance,
    Decision,
    NewConversation,
    NewTurn,
    Tally,
)
from services.ingestion.core.events import Startable
from services.ingestion.core.requests import Problem
from services.ingestion.core.settlement import (
    BranchKey,
    Ended,
    OpenTurn,
    Settlement,
    TurnFacts,
    TurnKey,
)
from services.ingestion.core.standing import ConversationKey
from services.ingestion.core.turn import TurnState
from services.ingestion.statements import SQL, columns


def now_statement() -> Statement:
    """One row ``now``: the database's time of this transaction."""
    return SQL["now"], {}


def lock_statements(
    conversations: Iterable[ConversationKey], *, created: Iterable[UUID] = ()
) -> list[Statement]:
    """Lock conversations in the order of their ids; the last statement's rows are they.

    Args:
        created: Ids that a request of this batch may create: they have no row to lock yet.
    """
    wanted = sorted(set(conversations), key=lambda key: key[1])
    lock = (SQL["lock_conversations"], columns(wanted, "tenants", "ids"))
    new = sorted(set(created))
    return [(SQL["lock_creations"], {"ids": new}), lock] if new else [lock]


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens of one message in one tokenizer."""

    tenant_id: UUID
    message_id: UUID
    tokenizer: str
    tokens: int


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Times that rows are written with, in seconds.

    Attributes:
        deadline_s: From the start of a turn to its end.
        queue_wait_s: How long a turn under policy ``queue`` waits for its start.
        restore_s: How long a deleted conversation can come back.
    """

    deadline_s: float
    queue_wait_s: float
    restore_s: float


def acceptance_writes(
    acceptance: Acceptance, counted: Sequence[Counted], limits: TimeLimits
) -> list[Statement]:
    """Everything that accepting a batch writes, beside inbox and outbox.

    Branches come before the turns that stand on them, and marks after the turns they mean.
    """
    statements: list[Statement] = []
    if acceptance.conversations:
        statements += _conversation_writes(acceptance.conversations)
    statements += changes.branch_writes(acceptance)
    if acceptance.turns:
        statements += _turn_writes(acceptance.turns, limits)
    if counted:
        statements.append(tokens_statement(counted))
    if acceptance.tallies:
        statements.append(_tally_statement(acceptance.tallies))
    statements += changes.change_writes(acceptance, restore_s=limits.restore_s)
    statements.append(_outcome_statement(acceptance.decisions))
    return statements


def _conversation_writes(conversations: Sequence[NewConversation]) -> list[Statement]:
    rows = [
        (
            new.request.tenant_id,
            new.request.conversation_id,
            new.request.principal_id,
            new.request.title,
            new.policy,
            new.request.model,
            new.request.fingerprint,
        )
        for new in conversations
    ]
    names = ("tenants", "ids", "principals", "titles", "policies", "models", "fingerprints")
    keys = [(row[0], row[1]) for row in rows]
    return [
        (SQL["insert_conversations"], columns(rows, *names)),
        (SQL["insert_main_branches"], columns(keys, "tenants", "ids")),
    ]


def _turn_writes(turns: Sequence[NewTurn], limits: TimeLimits) -> list[Statement]:
    opened = [
        (
            turn.turn_id,
            turn.request.tenant_id,
            turn.request.conversation_id,
            turn.branch_id,
            turn.position,
            turn.sibling_seq,
            turn.parent_turn_id,
            turn.is_bounded,
        )
        for turn in turns
    ]
    transitions = [
        (turn.request.tenant_id, turn.turn_id, "pending", None, turn.request.id) for turn in turns
    ]
    names = ("turns", "tenants", "conversations", "branches", "positions", "base_seqs", "parents")
    deadline = {"deadline_s": limits.deadline_s}
    waiting = {**deadline, "queue_wait_s": limits.queue_wait_s}
    return [
        (SQL["insert_turns"], {**_turn_columns(turns), **deadline}),
        (SQL["insert_messages"], _message_columns(turns)),
        transitions_statement(transitions),
        (SQL["insert_open_turns"], {**columns(opened, *names, "bounded"), **waiting}),
    ]


def _turn_columns(turns: Sequence[NewTurn]) -> dict[str, Any]:
    rows = [
        (
            turn.request.tenant_id,
            turn.turn_id,
            turn.request.conversation_id,
            turn.branch_id,
            turn.request.principal_id,
            turn.parent_turn_id,
            turn.request.id,
            turn.asked.key,
            turn.request.fingerprint,
            turn.policy,
            turn.model,
            _json(turn.asked.options),
            turn.seq,
            turn.position,
            turn.user_message_id,
            turn.answer_id,
            0 if turn.request.message is None else turn.request.message.nul_removed,
            turn.request.traceparent,
            turn.base_seq,
            turn.kind,
            _array(turn.continues),
        )
        for turn in turns
    ]
    return columns(
        rows,
        *("tenants", "ids", "conversations", "branches", "principals", "parents", "requests"),
        *("keys", "fingerprints", "policies", "models", "options", "seqs", "positions"),
        *("user_messages", "assistant_messages", "nul_removed", "traceparents"),
        *("base_seqs", "kinds", "continues"),
    )


def _message_columns(turns: Sequence[NewTurn]) -> dict[str, Any]:
    rows: list[tuple[Any, ...]] = []
    for turn in turns:
        tenant = turn.request.tenant_id
        place = (turn.request.conversation_id, turn.branch_id, turn.turn_id)
        said = turn.request.message
        if said is not None:
            user = ("user", turn.seq, "completed", said.text, said.length)
            when = (turn.request.said_at, turn.request.time_zone)
            rows.append((tenant, turn.user_message_id, *place, *user, *when, turn.supersedes))
        answer = ("assistant", turn.seq + 1, "pending", None, 0)
        rows.append((tenant, turn.answer_id, *place, *answer, None, None, None))
    return columns(
        rows,
        *("tenants", "ids", "conversations", "branches", "turns", "roles", "seqs", "statuses"),
        *("texts", "lengths", "said", "time_zones", "supersedes"),
    )


def _tally_statement(tallies: Sequence[Tally]) -> Statement:
    rows = [(t.tenant_id, t.conversation_id, t.next_seq, t.last_turn_id) for t in tallies]
    return SQL["advance_conversations"], columns(rows, "tenants", "ids", "next_seqs", "last_turns")


def _outcome_statement(decisions: Sequence[Decision]) -> Statement:
    rows = [
        (
            decision.request.id,
            decision.request.tenant_id,
            decision.outcome,
            decision.request.conversation_id,
            decision.turn_id,
            _json(_problem(decision.problem)),
        )
        for decision in decisions
    ]
    names = ("requests", "tenants", "outcomes", "conversations", "turns", "problems")
    return SQL["insert_outcomes"], columns(rows, *names)


def _problem(problem: Problem | None) -> dict[str, Any] | None:
    if problem is None:
        return None
    told = {"code": problem.code, "detail": problem.detail}
    return told if problem.turn_id is None else {**told, "turn_id": str(problem.turn_id)}


def tokens_statement(counted: Sequence[Counted]) -> Statement:
    """Store token counts."""
    rows = [(c.tenant_id, c.message_id, c.tokenizer, c.tokens) for c in counted]
    return SQL["insert_tokens"], columns(rows, "tenants", "messages", "tokenizers", "tokens")


def transitions_statement(rows: Sequence[tuple[Any, ...]]) -> Statement:
    """Record states that turns enter; a row is (tenant, turn, status, reason, cause)."""
    names = ("tenants", "turns", "statuses", "reasons", "causes")
    return SQL["insert_transitions"], columns(rows, *names)


# Turns that move or end. -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """Rows read after the lock, for turns that may move.

    Attributes:
        turns: The turns that events name; unknown ones are missing.
        messages: The assistant message of each of them, by turn id.
        traceparents: Trace context of each of them, by turn id.
        created_at: When each of them was accepted, by turn id.
        queues: The open turns of their conversations, by branch.
        startable: What each open turn would tell at its start, by turn id.
        queued_at: Place in the queue at acceptance of each open turn, by turn id.
    """

    turns: Mapping[TurnKey, TurnFacts]
    messages: Mapping[UUID, UUID]
    traceparents: Mapping[UUID, str | None]
    created_at: Mapping[UUID, datetime]
    queues: Mapping[BranchKey, Sequence[OpenTurn]]
    startable: Mapping[UUID, Startable]
    queued_at: Mapping[UUID, int]


def settlement_reads(turns: Iterable[TurnKey], conversations: Iterable[UUID]) -> list[Statement]:
    """The named turns, then the queues of whole conversations."""
    return [
        (SQL["signalled_turns"], columns(sorted(set(turns)), "tenants", "ids")),
        (SQL["queues"], {"conversations": sorted(set(conversations))}),
    ]


def standing_rows(turns: Sequence[Row], queued: Sequence[Row]) -> Standing:
    """What a settlement is decided on."""
    queues: dict[BranchKey, list[OpenTurn]] = {}
    for row in queued:
        branch = (row["tenant_id"], row["conversation_id"], row["branch_id"])
        waiting = OpenTurn(row["turn_id"], row["position"], row["has_started"], row["is_cancelled"])
        queues.setdefault(branch, []).append(waiting)
    return Standing(
        turns={
            (row["tenant_id"], row["id"]): TurnFacts(
                tenant_id=row["tenant_id"],
                id=row["id"],
                conversation_id=row["conversation_id"],
                branch_id=row["branch_id"],
                state=TurnState(row["status"]),
                seq=row["seq"],
                queued_at_position=row["queued_at_position"],
            )
            for row in turns
        },
        messages={row["id"]: row["assistant_message_id"] for row in turns},
        traceparents={row["id"]: row["traceparent"] for row in turns},
        created_at={row["id"]: row["created_at"] for row in turns},
        queues=queues,
        startable={row["turn_id"]: startable_row(row, row["turn_id"]) for row in queued},
        queued_at={row["turn_id"]: row["queued_at_position"] for row in queued},
    )


def startable_row(row: Row, turn_id: UUID) -> Startable:
    """What a turn tells when it starts."""
    return Startable(
        tenant_id=row["tenant_id"],
        id=turn_id,
        conversation_id=row["conversation_id"],
        branch_id=row["branch_id"],
        request_id=row["request_id"],
        base_seq=row["base_seq"],
        user_message_id=row["user_message_id"],
        model=row["model"],
        options=row["options"],
        traceparent=row["traceparent"],
        kind=row["kind"],
        supersedes=row["supersedes"],
        continues=tuple(row["continues"] or ()),
    )


def settlement_writes(
    settlement: Settlement,
    answers: Mapping[UUID, Answer],
    standing: Standing,
    *,
    deadline_s: float,
) -> list[Statement]:
    """Everything that moving and ending turns writes, beside inbox and outbox.

    Args:
        answers: By event id; every end that won has one.
    """
    writes: list[Statement] = []
    ended = [(end, answers[end.signal.event_id]) for end in settlement.ended]
    if ended:
        writes += _ending_writes(ended, standing)
    transitions = [
        (end.turn.tenant_id, end.turn.id, end.ending.status, end.ending.reason, end.signal.event_id)
        for end in settlement.ended
    ] + [
        (moved.turn.tenant_id, moved.turn.id, moved.state.value, None, moved.cause_id)
        for moved in settlement.moved
    ]
    if transitions:
        writes.append(transitions_statement(transitions))
    if settlement.moved:
        rows = [(m.turn.tenant_id, m.turn.id, m.state.value) for m in settlement.moved]
        writes.append((SQL["move_turns"], columns(rows, "tenants", "ids", "statuses")))
        open_rows = columns([row[1:] for row in rows], "ids", "statuses")
        writes.append((SQL["move_open_turns"], open_rows))
    if settlement.advanced:
        places = [(advanced.turn_id, advanced.position) for advanced in settlement.advanced]
        writes.append((SQL["advance_queue"], columns(places, "ids", "positions")))
    if settlement.started:
        writes += _start_writes(settlement, standing, deadline_s=deadline_s)
    return writes


def _start_writes(
    settlement: Settlement, standing: Standing, *, deadline_s: float
) -> list[Statement]:
    rows = [
        (standing.startable[start.turn_id].tenant_id, start.turn_id) for start in settlement.started
    ]
    started = {"ids": [row[1] for row in rows], "deadline_s": deadline_s}
    return [
        (SQL["start_turns"], {**columns(rows, "tenants", "ids"), "deadline_s": deadline_s}),
        (SQL["start_open_turns"], started),
    ]


def _ending_writes(ended: Sequence[tuple[Ended, Answer]], standing: Standing) -> list[Statement]:
    rows = [
        (
            end.turn.tenant_id,
            end.turn.id,
            end.ending.status,
            end.ending.reason,
            answer.length,
            answer.sha256,
            answer.upto,
            None if answer.usage is None else answer.usage.model_dump_json(),
            answer.attempt,
        )
        for end, answer in ended
    ]
    names = ("tenants", "ids", "statuses", "reasons", "lengths", "hashes", "uptos")
    turns = _exactly("end_turns", columns(rows, *names, "usages", "attempts"), len(rows))
    closed = {"ids": [end.turn.id for end, _ in ended]}
    writes = [turns, *_message_writes(ended, standing)]
    counted = [
        Counted(end.turn.tenant_id, standing.messages[end.turn.id], tokenizer, tokens)
        for end, answer in ended
        for tokenizer, tokens in answer.tokens
    ]
    if counted:
        writes.append(tokens_statement(counted))
    return [*writes, (SQL["close_turns"], closed)]


def _message_writes(ended: Sequence[tuple[Ended, Answer]], standing: Standing) -> list[Statement]:
    results: list[tuple[Any, ...]] = []
    texts: list[tuple[Any, ...]] = []
    for end, answer in ended:
        message = (end.turn.tenant_id, standing.messages[end.turn.id])
        if answer.step_id is None:
            texts.append((*message, end.ending.status, answer.text, answer.length))
        else:
            source = (answer.step_id, answer.attempt, end.ending.status)
            results.append((*message, *source, answer.length, answer.sha256))
    writes: list[Statement] = []
    if results:
        names = ("tenants", "messages", "steps", "attempts", "statuses", "lengths", "hashes")
        writes.append(_exactly("commit_results", columns(results, *names), len(results)))
    if texts:
        given = columns(texts, "tenants", "messages", "statuses", "texts", "lengths")
        writes.append(_exactly("commit_texts", given, len(texts)))
    return writes


def _exactly(name: str, columns: dict[str, Any], expected: int) -> Statement:
    """A statement that fails, and with it its transaction, unless it changes so many rows."""
    return SQL[name], {**columns, "expected": expected}


def _array(values: Sequence[UUID]) -> str | None:
    """A list of ids as the text of a Postgres array; None where there is none."""
    return "{" + ",".join(str(value) for value in values) + "}" if values else None


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else orjson.dumps(value).decode()
