"""What was deleted is gone: from all that its owner is shown, and from all that was made of it.

The words of a deleted message are its canary. They may stand in what was read or sent before; after
the deletion nothing that the house answers, keeps or tells may hold them, but for the row that
waits for the purge.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import psycopg
from psycopg import sql

from libs.ids import message_id
from tests.rig.ledger import Act, Ledger, Post, Reply
from tests.rig.verdict import Verdict

PROMISE = "deleted_is_gone"

MESSAGE = """
select deleted_at is not null as is_deleted from ingestion.messages where id = %(id)s
union all
select deleted_at is not null from ingestion.archived_messages where id = %(id)s
"""
CAPTURES_OF_MESSAGE = """
select count(*) as n from context_assembly.captures c
  join context_assembly.plans p on p.tenant_id = c.tenant_id and p.step_id = c.step_id
 where p.plan::jsonb -> 'message_ids' ? %(id)s::text
"""
CONVERSATION = (
    "select deleted_at is not null as is_deleted from ingestion.conversations where id = %(id)s"
)
CAPTURES_OF_CONVERSATION = """
select count(*) as n from context_assembly.captures where conversation_id = %(id)s
"""

SCHEMAS = ("ingestion", "context_assembly", "llm_gateway", "frontend_gateway")
KEPT = frozenset(
    {
        "ingestion.messages",
        "ingestion.archived_messages",
        *(f"{schema}.dead_letters" for schema in SCHEMAS),
        "context_assembly.payloads",
        *(f"llm_gateway.{table}" for table in ("work", "results", "partials")),
    }
)
"""Tables that may hold the words: the rows that a purge takes, requests that nobody could read, and
what a step needs until its turn's end has been heard of."""

TABLES = """
select n.nspname as schema, c.relname as name
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = any(%s) and c.relkind = 'r'
 order by 1, 2
"""
HOLDING = """
with rows as materialized (
  select to_jsonb(x)::text as row, to_jsonb(x) ->> 'tenant_id' as tenant_id from {table} x)
select distinct c.message from rows r
  join unnest(%(messages)s::uuid[], %(tenants)s::text[], %(canaries)s::text[])
       as c (message, tenant_id, canary)
    on coalesce(r.tenant_id = c.tenant_id, true)
   and (strpos(r.row, c.canary) > 0
        or strpos(r.row, encode(convert_to(c.canary, 'UTF8'), 'hex')) > 0)
"""
"""Bytes are written as hexadecimal digits, and each payload is JSON: its words stand there as in
the row."""

Ask = Callable[[str, str, Any], Awaitable[Reply]]
"""One request: method, path, JSON body."""

PAGE = 100


def check_ledger(connection: psycopg.Connection[Any], ledger: Ledger, verdict: Verdict) -> None:
    """Every deletion that was promised."""
    for act in ledger.acts:
        if not act.is_done or act.kind not in ("delete_message", "delete"):
            continue
        verdict.checked[PROMISE] += act.looks
        verdict.check(
            PROMISE,
            holds=not act.shown_after,
            otherwise=f"{act.kind} of {act.target} was done and shows in {act.shown_after}",
        )
        if act.kind == "delete_message":
            _check_gone(connection, act, (MESSAGE, CAPTURES_OF_MESSAGE), verdict)
        elif not any(a.kind == "restore" and a.target == act.target for a in ledger.acts):
            _check_gone(connection, act, (CONVERSATION, CAPTURES_OF_CONVERSATION), verdict)


def _check_gone(
    connection: psycopg.Connection[Any], act: Act, asked: tuple[str, str], verdict: Verdict
) -> None:
    rows, captures = (connection.execute(query, {"id": act.target}).fetchall() for query in asked)
    verdict.check(
        PROMISE,
        holds=all(row["is_deleted"] for row in rows),
        otherwise=f"{act.kind} of {act.target} was done, and its row stands as before",
    )
    verdict.check(
        PROMISE,
        holds=captures[0]["n"] == 0,
        otherwise=f"{captures[0]['n']} captures show {act.target} after {act.kind}",
    )


@dataclass(frozen=True, slots=True)
class Canary:
    """Words of a deleted message, as they stand inside JSON."""

    tenant: UUID
    message: UUID
    words: str


def canaries_of(ledgers: Sequence[Ledger]) -> list[Canary]:
    """The words of every message that was deleted and that would be known again by them."""
    return [
        Canary(ledger.tenant_id, act.target, _in_json(words))
        for ledger in ledgers
        for act in ledger.deletions()
        if (words := ledger.canary_of_message(act.target)) is not None
    ]


def _in_json(text: str) -> str:
    return orjson.dumps(text)[1:-1].decode()


def check_tables(
    connection: psycopg.Connection[Any], ledgers: Sequence[Ledger], verdict: Verdict
) -> None:
    """No row that was made of a deleted message holds its words."""
    canaries = canaries_of(ledgers)
    if not canaries:
        return
    looked_for = {
        "messages": [one.message for one in canaries],
        "tenants": [str(one.tenant) for one in canaries],
        "canaries": [one.words for one in canaries],
    }
    for row in connection.execute(TABLES, [list(SCHEMAS)]).fetchall():
        if f"{row['schema']}.{row['name']}" in KEPT:
            continue
        query = sql.SQL(HOLDING).format(table=sql.Identifier(row["schema"], row["name"]))
        held = connection.execute(query, looked_for).fetchall()
        verdict.check(
            PROMISE,
            holds=not held,
            otherwise=f"{row['schema']}.{row['name']} holds the words of "
            f"{sorted(str(one['message']) for one in held)}",
        )


def check_topics(
    ledgers: Sequence[Ledger], topics: Mapping[str, Sequence[bytes]], verdict: Verdict
) -> None:
    """No record between services holds the words of a deleted message."""
    for canary in canaries_of(ledgers):
        words = canary.words.encode()
        for topic, records in topics.items():
            verdict.check(
                PROMISE,
                holds=not any(words in raw for raw in records),
                otherwise=f"a record of {topic} holds the words of {canary.message}",
            )


async def look_again(ask: Ask, ledger: Ledger) -> None:
    """Look for every deleted message in all that its owner is shown, and note where it stands."""
    acts = ledger.deletions()
    for conversation in dict.fromkeys(act.conversation_id for act in acts):
        of_conversation = [act for act in acts if act.conversation_id == conversation]
        for method, path, body in await _places(ask, ledger, conversation):
            reply = await ask(method, path, body)
            for act in of_conversation:
                see(ledger, act, f"{method} {path}", reply)
        for act in of_conversation:
            await look_at_stream(ask, ledger, act)


def see(ledger: Ledger, act: Act, where: str, reply: Reply) -> None:
    """Look for a deleted message in one answer: for its words, and for its row in a list."""
    if reply.status != 200:
        return
    act.looks += 1
    canary = ledger.canary_of_message(act.target)
    is_told = canary is not None and _in_json(canary) in orjson.dumps(reply.body).decode()
    rows = reply.body.get("data", ()) if reply.body.get("object") == "list" else ()
    if is_told or str(act.target) in {row["id"] for row in rows}:
        act.shown_after.append(where)


async def _places(
    ask: Ask, ledger: Ledger, conversation: UUID
) -> list[tuple[str, str, dict[str, str] | None]]:
    """Everything that shows a conversation or is made of it, as requests."""
    base = f"/v1/conversations/{conversation}"
    found: list[tuple[str, str, dict[str, str] | None]] = [
        ("GET", f"/v1/conversations?limit={PAGE}", None),
        ("GET", base, None),
        ("GET", f"{base}/branches", None),
    ]
    branches = await ask("GET", f"{base}/branches", None)
    for branch in branches.body.get("data", ()):
        messages = f"{base}/messages?limit={PAGE}&branch={branch['id']}"
        found += [("GET", f"{messages}&order={order}", None) for order in ("asc", "desc")]
    for post in ledger.posts:
        if post.conversation_id != conversation or post.turn_id is None:
            continue
        turn = f"/v1/turns/{post.turn_id}"
        found += [("GET", turn + part, None) for part in ("", "/plan", "/plan/diff", "/replay")]
        found += [
            ("POST", f"{turn}/explain", {"message_id": str(act.target)})
            for act in ledger.deletions()
            if act.conversation_id == conversation
        ]
    return found


async def look_at_stream(ask: Ask, ledger: Ledger, act: Act) -> None:
    """The stream of a deleted answer is refused."""
    for post in ledger.posts:
        if post.turn_id is not None and message_id(post.turn_id, "assistant") == act.target:
            path = f"/v1/turns/{post.turn_id}/events"
            reply = await ask("HEAD", path, None)
            act.looks += 1
            if reply.status == 200:
                act.shown_after.append(f"HEAD {path}")


def was_deleted(ledger: Ledger, post: Post, turn: Mapping[str, Any]) -> bool:
    """Whether a stream may rightly have been refused: its answer or conversation was deleted."""
    if turn["answer_deleted_at"] is not None or turn["is_deleted"]:
        return True
    targets: set[UUID] = {act.target for act in ledger.acts if act.kind.startswith("delete")}
    return bool(targets & {post.conversation_id, message_id(turn["id"], "assistant")})
