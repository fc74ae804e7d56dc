"""Compares what clients saw with what the house stored, promise by promise.

A checker that sees nothing is worthless: it counts what each promise was checked on, and a test
declares how much that must be at least.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from libs.catalogue import Catalogue
from tests.rig import deletions, isolation, policies, purges, replanning, telling
from tests.rig.evidence import Evidence
from tests.rig.ledger import SAYING, Ledger, Post
from tests.rig.replanning import Rules
from tests.rig.verdict import Verdict

__all__ = ["SCHEMAS", "TERMINAL", "Evidence", "Verdict", "check", "check_on"]

TERMINAL = frozenset({"completed", "partial", "failed", "cancelled"})
SCHEMAS = ("ingestion", "context_assembly", "llm_gateway")

TURNS = """
select t.tenant_id, t.conversation_id, t.key, t.id, t.status, t.answer_deleted_at, t.kind,
       c.deleted_at is not null as is_deleted, coalesce(x.ends, 0) as ends
  from ingestion.turns t
  join ingestion.conversations c on c.tenant_id = t.tenant_id and c.id = t.conversation_id
  left join (select turn_id, count(*) as ends from ingestion.transitions
              where status = any(%s) group by 1) x on x.turn_id = t.id
 where t.tenant_id = any(%s)
"""
MESSAGES = """
select turn_id, role, text, status from (
  select turn_id, role, seq, text, status from ingestion.messages
   union all
  select turn_id, role, seq, text, status from ingestion.archived_messages) m
 where turn_id = any(%s) order by turn_id, seq
"""
SEQS = """
select conversation_id as id, array_agg(seq order by seq) as seqs from (
  select tenant_id, conversation_id, seq from ingestion.messages
   union all
  select tenant_id, conversation_id, seq from ingestion.archived_messages) m
 where tenant_id = any(%s) group by conversation_id
"""
CONVERSATIONS = "select id from ingestion.conversations"
ENDED_TWICE = """
select a.turn_id, a.step_id, count(*) as ends from llm_gateway.attempts a
 where a.outcome <> 'repeated' and a.tenant_id = any(%s) group by 1, 2
"""


def check(
    admin_url: str,
    ledgers: Sequence[Ledger],
    *,
    dead_letters: Collection[UUID] = (),
    evidence: Evidence | None = None,
) -> Verdict:
    """Compare ledgers, database and whatever else was gathered, after all has come to rest.

    Args:
        admin_url: Of a superuser: it sees every row.
        dead_letters: Ids of those that tests have caused on purpose; any other is a fault.
        evidence: Topics, streams, prompts; without them the verdict says "not checked".
    """
    with psycopg.connect(admin_url, row_factory=dict_row, autocommit=True) as connection:
        return check_on(
            connection, ledgers, dead_letters=dead_letters, evidence=evidence or Evidence()
        )


def check_on(
    connection: psycopg.Connection[Any],
    ledgers: Sequence[Ledger],
    *,
    dead_letters: Collection[UUID] = (),
    evidence: Evidence,
) -> Verdict:
    """See ``check``; over a connection that is there already, whose rows are dictionaries."""
    verdict = Verdict()
    tenants = sorted({ledger.tenant_id for ledger in ledgers})
    posted = {turn for ledger in ledgers for post in ledger.posts if (turn := post.turn_id)}
    stored = _Stored(connection, tenants, sorted(posted))
    purged = purges.purged_conversations(connection, tenants)
    purges.check_purges(connection, ledgers, purged, verdict)
    purges.check_restores(connection, ledgers, verdict)
    for ledger in ledgers:
        _check_ledger(stored, ledger, verdict, purged)
        isolation.check_ledger(ledger, verdict)
        deletions.check_ledger(connection, ledger, verdict)
        policies.check_ledger(connection, ledger, verdict)
    deletions.check_tables(connection, ledgers, verdict)
    _check_order(connection, tenants, evidence.overlap_s, verdict)
    policies.check_turns(connection, tenants, evidence.overlap_s, verdict)
    for row in _rows(connection, ENDED_TWICE, tenants):
        verdict.check(
            "one_terminal_per_turn",
            holds=row["ends"] == 1,
            otherwise=f"step {row['step_id']} of turn {row['turn_id']} ended {row['ends']} times",
        )
    rules = Rules(evidence.catalogue or Catalogue.load(), evidence.policy_text)
    replanning.check_plans(connection, tenants, rules, verdict)
    _check_evidence(connection, _of_others(evidence, ledgers, purged), verdict)
    if evidence.topics is not None:
        deletions.check_topics(ledgers, evidence.topics, verdict)
    _check_rest(connection, dead_letters, verdict)
    return verdict


def _of_others(evidence: Evidence, ledgers: Sequence[Ledger], purged: Collection[UUID]) -> Evidence:
    """The evidence without what is of purged conversations, which have no rows to compare."""
    topics, prompts = evidence.topics, evidence.prompts
    return replace(
        evidence,
        topics=None if topics is None else purges.told_of_others(topics, purged),
        prompts=None if prompts is None else purges.asked_of_others(prompts, ledgers, purged),
    )


def _check_evidence(
    connection: psycopg.Connection[Any], evidence: Evidence, verdict: Verdict
) -> None:
    turns: dict[UUID, dict[str, Any]] = {}
    if evidence.topics is not None or evidence.streams is not None:
        turns = {row["id"]: row for row in _rows(connection, "select * from ingestion.turns")}
    if evidence.topics is not None:
        conversations = {row["id"] for row in _rows(connection, CONVERSATIONS)}
        telling.check_topics(evidence.topics, turns, conversations, verdict)
        isolation.check_topics(evidence.topics, verdict)
    if evidence.streams is not None:
        tenant_of = {turn_id: row["tenant_id"] for turn_id, row in turns.items()}
        telling.check_streams(evidence.streams, turns, verdict)
        isolation.check_streams(evidence.streams, tenant_of, verdict)
    if evidence.prompts is not None:
        replanning.check_prompts(connection, evidence.prompts, verdict)
        isolation.check_prompts(evidence.prompts, verdict)
    if evidence.logs is not None:
        isolation.check_logs(evidence.logs, verdict)
    if evidence.open_calls is not None:
        verdict.check(
            "at_rest",
            holds=evidence.open_calls == 0,
            otherwise=f"{evidence.open_calls} provider requests are still open",
        )


def _rows(connection: psycopg.Connection[Any], sql: str, *values: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = connection.execute(sql, values).fetchall()
    return rows


class _Stored:
    """The rows of some tenants that ledgers are compared with, read in one go."""

    def __init__(
        self, connection: psycopg.Connection[Any], tenants: Sequence[UUID], posted: Sequence[UUID]
    ) -> None:
        self._turns: dict[tuple[UUID, UUID, str], list[dict[str, Any]]] = {}
        for turn in _rows(connection, TURNS, sorted(TERMINAL), list(tenants)):
            key = turn["tenant_id"], turn["conversation_id"], turn["key"]
            self._turns.setdefault(key, []).append(turn)
        self._messages: dict[UUID, list[dict[str, Any]]] = {}
        for message in _rows(connection, MESSAGES, list(posted)):
            self._messages.setdefault(message["turn_id"], []).append(message)

    def turns_of(self, tenant: UUID, post: Post) -> list[dict[str, Any]]:
        """Turns under a post's key."""
        return self._turns.get((tenant, post.conversation_id, post.key), [])

    def messages_of(self, turn: UUID | None) -> list[dict[str, Any]]:
        """Messages of a turn by seq."""
        return self._messages.get(turn, []) if turn is not None else []


def _check_ledger(
    stored: _Stored, ledger: Ledger, verdict: Verdict, purged: Collection[UUID]
) -> None:
    for post in ledger.posts:
        names = {UUID(r.body["turn_id"]) for r in post.replies if r.is_accepted}
        verdict.check(
            "one_turn_per_key",
            holds=len(names) <= 1,
            otherwise=f"key {post.key} got the turns {sorted(map(str, names))}",
        )
        turns = stored.turns_of(ledger.tenant_id, post)
        verdict.check(
            "one_turn_per_key",
            holds=len(turns) <= 1,
            otherwise=f"key {post.key} has {len(turns)} turns",
        )
        if post.turn_id is not None and post.conversation_id not in purged:
            messages = stored.messages_of(post.turn_id)
            _check_turn(turns, messages, post, verdict)
            if len(turns) == 1 and messages and post.stream is not None:
                hidden = deletions.was_deleted(ledger, post, turns[0])
                _check_stream(post, turns[0], messages[-1]["text"] or "", verdict, hidden=hidden)


def _check_turn(
    turns: Sequence[dict[str, Any]],
    messages: Sequence[dict[str, Any]],
    post: Post,
    verdict: Verdict,
) -> None:
    verdict.check(
        "no_accepted_turn_lost",
        holds=[turn["id"] for turn in turns] == [post.turn_id],
        otherwise=f"turn {post.turn_id} was accepted, stored are {[t['id'] for t in turns]}",
    )
    roles = ["user", "assistant"] if post.kind in SAYING else ["assistant"]
    verdict.check(
        "one_turn_per_key",
        holds=[m["role"] for m in messages] == roles,
        otherwise=f"turn {post.turn_id} has the messages {[m['role'] for m in messages]}",
    )
    if len(turns) != 1 or len(messages) != len(roles):
        return
    turn = turns[0]
    verdict.check(
        "one_turn_per_key",
        holds=turn["kind"] == post.kind
        and (post.kind not in SAYING or _sha256(messages[0]["text"]) == post.body_sha256),
        otherwise=f"turn {post.turn_id} stores another text or kind than was sent",
    )
    verdict.check(
        "one_terminal_per_turn",
        holds=turn["status"] in TERMINAL and turn["ends"] == 1,
        otherwise=f"turn {post.turn_id} is {turn['status']} and ended {turn['ends']} times",
    )


def _sha256(text: str | None) -> str:
    return hashlib.sha256((text or "").encode()).hexdigest()


def _check_stream(
    post: Post, turn: dict[str, Any], stored: str, verdict: Verdict, *, hidden: bool
) -> None:
    """Compare what a reader put together with the row; ``hidden``: it was deleted meanwhile."""
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
        holds=stream.gone is None or hidden,
        otherwise=f"stream of {post.turn_id} was refused with {stream.gone}, nobody deleted it",
    )
    if stream.gone is not None:
        return
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


def _check_order(
    connection: psycopg.Connection[Any], tenants: Sequence[UUID], overlap_s: float, verdict: Verdict
) -> None:
    conversations = _rows(connection, SEQS, list(tenants))
    for conversation in conversations:
        verdict.check(
            "serial_per_conversation",
            holds=conversation["seqs"] == list(range(1, len(conversation["seqs"]) + 1)),
            otherwise=f"conversation {conversation['id']} has the seqs {conversation['seqs']}",
        )
    # Branches do not wait for each other. What a provider saw at the same time is the business of
    # the test that owns the provider.
    overlaps = _rows(
        connection,
        "select a.id, b.id as other from ingestion.turns a join ingestion.turns b "
        "on (a.tenant_id, a.branch_id) = (b.tenant_id, b.branch_id) and a.seq < b.seq "
        "where a.tenant_id = any(%s) and b.started_at < coalesce(a.ended_at, 'infinity') "
        "- make_interval(secs => %s)",
        list(tenants),
        overlap_s,
    )
    verdict.check(
        "serial_per_conversation",
        holds=not overlaps,
        otherwise=f"turns that ran at the same time: {overlaps[:5]}",
    )


AT_REST: Mapping[str, str] = {
    **{f"{schema}.outbox still has {{}} rows": f"{schema}.outbox" for schema in SCHEMAS},
    **{f"{schema}.outbox_dead still has {{}} rows": f"{schema}.outbox_dead" for schema in SCHEMAS},
    "{} turns are still open": "ingestion.open_turns",
    "{} pieces of work still wait": "llm_gateway.work where state = 'ready'",
    "{} pieces of work are still leased": (
        "llm_gateway.work where state = 'running' or worker_id is not null"
    ),
}
"""What has no rows once everything is done, and what is said otherwise."""

REST = " union all ".join(
    f"select count(*) as n from {where}"  # noqa: S608
    for where in AT_REST.values()
)
PARKED = " union all ".join(
    f"select id, consumer, topic, reason, error from {schema}.dead_letters"  # noqa: S608
    for schema in SCHEMAS
)


def _check_rest(
    connection: psycopg.Connection[Any], dead_letters: Collection[UUID], verdict: Verdict
) -> None:
    for told, row in zip(AT_REST, _rows(connection, REST), strict=True):
        verdict.check("at_rest", holds=row["n"] == 0, otherwise=told.format(row["n"]))
    parked = [row for row in _rows(connection, PARKED) if row["id"] not in dead_letters]
    verdict.check(
        "at_rest", holds=not parked, otherwise=f"{len(parked)} dead letters: {parked[:5]}"
    )
