"""Compares what clients saw with what the house stored, promise by promise.

A checker that sees nothing is worthless: it counts what each promise was checked on, and a test
declares how much that must be at least.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from libs.postgres.database import LOCK_TIMEOUT_MS
from tests.rig.ledger import Ledger, Post

TERMINAL = frozenset({"completed", "partial", "failed", "cancelled"})
SCHEMAS = ("ingestion", "context_assembly", "llm_gateway")


@dataclass(slots=True)
class Verdict:
    """What was checked, and what was found broken."""

    checked: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def check(self, promise: str, *, holds: bool, otherwise: str) -> None:
        """Count one item of a promise, and note it where it does not hold."""
        self.checked[promise] += 1
        if not holds:
            self.broken.append(f"{promise}: {otherwise}")

    def require(self, **at_least: int) -> None:
        """Fail unless nothing is broken and each promise was checked often enough."""
        assert not self.broken, "\n".join(self.broken[:20])
        for promise, count in at_least.items():
            assert self.checked[promise] >= count, (
                f"{promise} was checked on {self.checked[promise]} items, not on {count}"
            )


def check(
    admin_url: str, ledgers: Sequence[Ledger], *, dead_letters: Collection[UUID] = ()
) -> Verdict:
    """Compare ledgers and database, after everything has come to rest.

    Args:
        admin_url: Of a superuser: it sees every row.
        dead_letters: Ids of those that tests have caused on purpose; any other is a fault.
    """
    verdict = Verdict()
    with psycopg.connect(admin_url, row_factory=dict_row, autocommit=True) as connection:
        for ledger in ledgers:
            _check_ledger(connection, ledger, verdict)
        _check_order(connection, {ledger.tenant_id for ledger in ledgers}, verdict)
        _check_rest(connection, dead_letters, verdict)
    return verdict


def _rows(connection: psycopg.Connection[Any], sql: str, *values: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = connection.execute(sql, values).fetchall()
    return rows


def _check_ledger(connection: psycopg.Connection[Any], ledger: Ledger, verdict: Verdict) -> None:
    for post in ledger.posts:
        names = {UUID(r.body["turn_id"]) for r in post.replies if r.is_accepted}
        verdict.check(
            "one_turn_per_key",
            holds=len(names) <= 1,
            otherwise=f"key {post.key} got the turns {sorted(map(str, names))}",
        )
        if post.turn_id is not None:
            _check_turn(connection, ledger.tenant_id, post, verdict)


def _check_turn(
    connection: psycopg.Connection[Any], tenant: UUID, post: Post, verdict: Verdict
) -> None:
    turns = _rows(
        connection,
        "select t.*, (select count(*) from ingestion.transitions x where x.turn_id = t.id "
        "and x.status = any(%s)) as ends from ingestion.turns t "
        "where t.tenant_id = %s and t.conversation_id = %s and t.key = %s",
        sorted(TERMINAL),
        tenant,
        post.conversation_id,
        post.key,
    )
    verdict.check(
        "no_accepted_turn_lost",
        holds=[turn["id"] for turn in turns] == [post.turn_id],
        otherwise=f"turn {post.turn_id} was accepted, stored are {[t['id'] for t in turns]}",
    )
    messages = _rows(
        connection,
        "select role, text, status from ingestion.messages where turn_id = %s order by seq",
        post.turn_id,
    )
    verdict.check(
        "one_turn_per_key",
        holds=[m["role"] for m in messages] == ["user", "assistant"],
        otherwise=f"turn {post.turn_id} has the messages {[m['role'] for m in messages]}",
    )
    if len(turns) != 1 or len(messages) != 2:
        return
    turn, (user, answer) = turns[0], messages
    verdict.check(
        "one_turn_per_key",
        holds=hashlib.sha256((user["text"] or "").encode()).hexdigest() == post.body_sha256,
        otherwise=f"turn {post.turn_id} stores another text than was sent",
    )
    verdict.check(
        "one_terminal_per_turn",
        holds=turn["status"] in TERMINAL and turn["ends"] == 1,
        otherwise=f"turn {post.turn_id} is {turn['status']} and ended {turn['ends']} times",
    )
    if post.stream is not None:
        _check_stream(post, turn, answer["text"] or "", verdict)


def _check_stream(post: Post, turn: dict[str, Any], stored: str, verdict: Verdict) -> None:
    stream = post.stream
    assert stream is not None
    faults = stream.faults()
    verdict.check(
        "stream_equals_store",
        holds=not faults,
        otherwise=f"stream of {post.turn_id}: {'; '.join(faults)}",
    )
    verdict.check(
        "stream_equals_store",
        holds=stream.text == stored,
        otherwise=(
            f"stream of {post.turn_id} has {len(stream.text)} characters, "
            f"the store {len(stored)}; the stream ended with {stream.done}"
        ),
    )
    done = stream.done
    verdict.check(
        "stream_equals_store",
        holds=done is not None
        and (done["status"], done["length"]) == (turn["status"], len(stored.encode())),
        otherwise=f"stream of {post.turn_id} ended with {done}, the turn is {turn['status']}",
    )


def _check_order(connection: psycopg.Connection[Any], tenants: set[UUID], verdict: Verdict) -> None:
    conversations = _rows(
        connection,
        "select conversation_id as id, array_agg(seq order by seq) as seqs "
        "from ingestion.messages where tenant_id = any(%s) group by conversation_id",
        list(tenants),
    )
    for conversation in conversations:
        verdict.check(
            "serial_per_conversation",
            holds=conversation["seqs"] == list(range(1, len(conversation["seqs"]) + 1)),
            otherwise=f"conversation {conversation['id']} has the seqs {conversation['seqs']}",
        )
    # The database's time is that of a transaction's beginning, and one that accepts a turn may have
    # waited for the row lock of the one that ended the turn before, at most ``lock_timeout``. What
    # a provider saw at the same time is the business of the test that owns the provider.
    overlaps = _rows(
        connection,
        "select a.id, b.id as other from ingestion.turns a join ingestion.turns b "
        "on (a.tenant_id, a.conversation_id) = (b.tenant_id, b.conversation_id) and a.seq < b.seq "
        "where a.tenant_id = any(%s) and b.started_at < coalesce(a.ended_at, 'infinity') "
        "- make_interval(secs => %s)",
        list(tenants),
        LOCK_TIMEOUT_MS / 1000,
    )
    verdict.check(
        "serial_per_conversation",
        holds=not overlaps,
        otherwise=f"turns that ran at the same time: {overlaps[:5]}",
    )


def _check_rest(
    connection: psycopg.Connection[Any], dead_letters: Collection[UUID], verdict: Verdict
) -> None:
    for table in (
        *(f"{schema}.outbox" for schema in SCHEMAS),
        *(f"{schema}.outbox_dead" for schema in SCHEMAS),
        "ingestion.open_turns",
    ):
        count = _rows(connection, f"select count(*) as n from {table}")[0]["n"]  # noqa: S608
        verdict.check("at_rest", holds=count == 0, otherwise=f"{table} still has {count} rows")
    running = _rows(
        connection, "select count(*) as n from llm_gateway.work where state in ('ready','running')"
    )[0]["n"]
    verdict.check("at_rest", holds=running == 0, otherwise=f"{running} pieces of work still wait")
    parked = [
        row
        for schema in SCHEMAS
        for row in _rows(
            connection,
            f"select id, consumer, topic, reason, error from {schema}.dead_letters",  # noqa: S608
        )
        if row["id"] not in dead_letters
    ]
    verdict.check(
        "at_rest", holds=not parked, otherwise=f"{len(parked)} dead letters: {parked[:5]}"
    )
