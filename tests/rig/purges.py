"""Of what was deleted and purged nothing is left but what counts and audits; the rest is there."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
import psycopg
from psycopg import sql

from tests.rig.ledger import Act, Ledger
from tests.rig.verdict import Verdict

PROMISE = "deleted_is_gone"

PURGED = "select conversation_id from ingestion.purged_conversations where tenant_id = any(%s)"
KEPT = frozenset(
    {
        "ingestion.purged_conversations",
        "ingestion.request_outcomes",
        "ingestion.operator_actions",
        "context_assembly.capture_reads",
        "llm_gateway.attempts",
        "llm_gateway.usage",
    }
)
"""Ids, counts and reasons that outlive the text, and who did what."""

COLUMNS = """
select c.table_schema as schema, c.table_name as name, c.column_name as of
  from information_schema.columns c
  join information_schema.tables t using (table_schema, table_name)
 where t.table_type = 'BASE TABLE' and c.column_name in ('conversation_id', 'turn_id', 'scope_id')
   and c.table_schema in ('ingestion', 'context_assembly', 'llm_gateway')
 order by 1, 2, 3
"""
CONVERSATION = "select deleted_at from ingestion.conversations where id = %s"
LEFT = "select count(*) as n from {table} where {of} = any(%s)"


def purged_conversations(
    connection: psycopg.Connection[Any], tenants: Sequence[UUID]
) -> frozenset[UUID]:
    """Conversations of these tenants whose rows were taken away for good."""
    rows = connection.execute(PURGED, [list(tenants)]).fetchall()
    return frozenset(row["conversation_id"] for row in rows)


def check_purges(
    connection: psycopg.Connection[Any],
    ledgers: Sequence[Ledger],
    purged: Collection[UUID],
    verdict: Verdict,
) -> None:
    """Only what its client had deleted is purged, and no row of it stands anywhere."""
    acts = [act for ledger in ledgers for act in ledger.acts]
    for conversation in sorted(purged):
        verdict.check(
            PROMISE,
            holds=_may_be_gone(act for act in acts if act.target == conversation),
            otherwise=f"conversation {conversation} was purged, and its client has it still",
        )
    if not purged:
        return
    posts = [post for ledger in ledgers for post in ledger.posts]
    turns = [p.turn_id for p in posts if p.turn_id and p.conversation_id in purged]
    for row in connection.execute(COLUMNS).fetchall():
        if f"{row['schema']}.{row['name']}" in KEPT:
            continue
        table = sql.Identifier(row["schema"], row["name"])
        query = sql.SQL(LEFT).format(table=table, of=sql.Identifier(row["of"]))
        of_these = turns if row["of"] == "turn_id" else list(purged)
        (left,) = connection.execute(query, [of_these]).fetchall()
        verdict.check(
            PROMISE,
            holds=left["n"] == 0,
            otherwise=f"{row['schema']}.{row['name']} still has {left['n']} rows of purged "
            "conversations",
        )


def check_restores(
    connection: psycopg.Connection[Any], ledgers: Sequence[Ledger], verdict: Verdict
) -> None:
    """A conversation that its client was told is back is there.

    A deletion that was asked for more than once may come once more, after all else.
    """
    for ledger in ledgers:
        last = {act.target: act for act in ledger.acts if act.kind in ("delete", "restore")}
        asked_again = {a.target for a in ledger.acts if a.kind == "delete" and len(a.replies) > 1}
        for act in last.values():
            if act.kind != "restore" or not act.is_done or act.target in asked_again:
                continue
            row = connection.execute(CONVERSATION, [act.target]).fetchone()
            verdict.check(
                "no_accepted_turn_lost",
                holds=row is not None and row["deleted_at"] is None,
                otherwise=f"conversation {act.target} was restored, and is not there",
            )


def _may_be_gone(acts: Iterable[Act]) -> bool:
    """Whether the client asked for a conversation's end after it last was told that it is back."""
    asked = False
    for act in acts:
        asked = act.kind == "delete" or (asked and not (act.kind == "restore" and act.is_done))
    return asked


def told_of_others(
    topics: Mapping[str, Sequence[bytes]], purged: Collection[UUID]
) -> Mapping[str, Sequence[bytes]]:
    """The records that are not of these conversations."""
    if not purged:
        return topics
    gone = {str(one) for one in purged}
    return {
        topic: [raw for raw in records if orjson.loads(raw).get("conversation_id") not in gone]
        for topic, records in topics.items()
    }


def asked_of_others(
    prompts: Sequence[bytes], ledgers: Sequence[Ledger], purged: Collection[UUID]
) -> Sequence[bytes]:
    """The prompts that show no message which was said in these conversations."""
    gone = {
        post.text
        for ledger in ledgers
        for post in ledger.posts
        if post.conversation_id in purged and post.text
    }
    if not gone:
        return prompts
    return [
        body
        for body in prompts
        if gone.isdisjoint(one["content"] for one in orjson.loads(body)["messages"])
    ]
