"""The history of branches of every shape: what it shows, and what it costs to read."""

import random
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.contract.ingestion.lines import (
    BEFORE_NOTHING,
    SHOWN,
    TOKENIZER,
    Line,
    Said,
    ids_of,
    read,
)

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[dict[str, Any]]


STATUSES = (*SHOWN, "completed", "completed", "failed")


def grow(line: Line, rng: random.Random) -> None:
    """Something that people do, at random, in a conversation that has a turn."""
    status = rng.choice(STATUSES)
    answer = "" if status == "failed" or rng.random() < 0.1 else f"answer {rng.random()}"
    turn = rng.choice(line.turns)
    said = [one for path in line.paths.values() for one in path]
    match rng.choice(("post", "post", "edit", "regenerate", "continue", "delete", "archive")):
        case "post":
            line.post(rng.choice(list(line.paths)), "and?", answer=answer, status=status)
        case "edit":
            line.edit(rng.choice([one for one in said if one.role == "user"]), "no: and?")
        case "regenerate":
            line.regenerate(turn, answer, status=status)
        case "continue":
            line.go_on(turn, answer, status=status)
        case "delete":
            line.delete(rng.choice(said))
        case "archive":
            if rng.random() < 0.3:
                line.unarchive()
            else:
                line.archive(rng.randrange(1, line.next_seq + 1))


@pytest.mark.parametrize("seed", range(12))
def test_every_branch_shows_what_a_copy_of_its_path_would_show(
    rows: Connection, context: Connection, gateway: Connection, seed: int
) -> None:
    rng = random.Random(seed)
    line = Line(rows)
    line.post(line.id, "first", answer="first answer")
    for _ in range(25):
        grow(line, rng)

    for branch in line.paths:
        before = rng.randrange(1, line.next_seq + 2)
        max_rows = rng.choice((1, 3, 1_000))
        some = line.history(context, branch, before=before, max_rows=max_rows)
        assert ids_of(some, "message_id") == line.expected_history(
            branch, before=before, max_rows=max_rows
        )
        everything = line.history(context, branch)
        assert ids_of(everything, "message_id") == line.expected_history(
            branch, before=BEFORE_NOTHING, max_rows=1_000
        )
        listed = line.messages(gateway, branch=branch)
        assert ids_of(listed, "id") == line.expected_messages(branch)


def test_an_edit_in_the_middle_ends_the_old_line_there_and_the_old_line_stays(
    rows: Connection, context: Connection
) -> None:
    line = Line(rows)
    first, second, third = (line.post(line.id, text) for text in ("one", "two", "three"))
    edited = line.edit(second.question, "two, I mean")

    assert [row["message_id"] for row in line.history(context, edited.branch_id)] == [
        edited.answer.id,
        edited.question.id,
        first.answer.id,
        first.question.id,
    ]
    assert line.history(context, edited.branch_id)[1]["supersedes"] == second.question.id
    assert third.answer.id in ids_of(line.history(context, line.id), "message_id")


def test_an_edit_of_an_edit_shows_neither_of_the_two_before_it(
    rows: Connection, context: Connection
) -> None:
    line = Line(rows)
    first = line.post(line.id, "one")
    second = line.edit(first.question, "two")
    third = line.edit(second.question, "three")

    shown = line.history(context, third.branch_id)

    assert ids_of(shown, "message_id") == [third.answer.id, third.question.id]


def test_a_fork_does_not_see_what_its_parent_says_later(
    rows: Connection, context: Connection
) -> None:
    line = Line(rows)
    first = line.post(line.id, "one", status="partial")
    again = line.regenerate(first, "another answer")
    later = line.post(line.id, "two")
    more = line.go_on(first, "the rest")

    assert ids_of(line.history(context, again.branch_id), "message_id") == [
        again.answer.id,
        first.question.id,
    ]
    assert more.branch_id not in (line.id, again.branch_id)
    assert ids_of(line.history(context, more.branch_id), "message_id") == [
        more.answer.id,
        first.answer.id,
        first.question.id,
    ]
    assert later.answer.id in ids_of(line.history(context, line.id), "message_id")


def test_messages_of_open_turns_are_no_history_on_any_branch(
    rows: Connection, context: Connection
) -> None:
    line = Line(rows)
    first = line.post(line.id, "one")
    line.post(line.id, "running", answer="shown so far", status="generating")
    edited = line.edit(first.question, "also running", status="generating")

    assert ids_of(line.history(context, line.id), "message_id") == [
        first.answer.id,
        first.question.id,
    ]
    assert line.history(context, edited.branch_id) == []


def test_one_call_reads_branches_of_several_conversations_in_the_order_asked(
    rows: Connection, context: Connection
) -> None:
    tenant = uuid4()
    lines = [Line(rows, tenant=tenant) for _ in range(3)]
    forks = []
    for line in lines:
        first = line.post(line.id, "one")
        forks.append(line.regenerate(first, "again").branch_id)
    wanted = [
        (line, branch)
        for line, fork in zip(lines, forks, strict=True)
        for branch in (fork, line.id)
    ]
    found = read(
        context,
        "select conversation_id, branch_id, message_id, tokens from ingestion.history_v1("
        "%s::uuid[], %s::uuid[], %s::uuid[], %s::bigint[], %s::text[], 10)",
        [
            [tenant] * len(wanted),
            [line.id for line, _ in wanted],
            [branch for _, branch in wanted],
            [BEFORE_NOTHING] * len(wanted),
            [TOKENIZER] * len(wanted),
        ],
        tenant=tenant,
    )

    expected = [
        (line.id, branch, message)
        for line, branch in wanted
        for message in line.expected_history(branch, before=BEFORE_NOTHING, max_rows=10)
    ]
    assert [(r["conversation_id"], r["branch_id"], r["message_id"]) for r in found] == expected
    assert all(row["tokens"] is not None for row in found)


# What it costs

LONG = 10_000
PAGE = 200
_FILL = """
with turns as (
  insert into turns (tenant_id, id, conversation_id, branch_id, principal_id, request_id,
    key, fingerprint, policy, status, seq, base_seq, queued_at_position, user_message_id,
    assistant_message_id, nul_removed, created_at, started_at, deadline_at, ended_at)
  select %(tenant)s, gen_random_uuid(), %(chat)s, %(chat)s, %(tenant)s, gen_random_uuid(),
    'k' || n, 'f', 'serialize', 'completed', 2 * n - 1, 2 * n - 1, 0, gen_random_uuid(),
    gen_random_uuid(), 0, now(), now(), now(), now()
  from generate_series(1, %(count)s / 2) n returning *
), messages as (
  insert into messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq,
    status, text, length, said_at, created_at)
  select tenant_id, case r when 'user' then user_message_id else assistant_message_id end,
    conversation_id, branch_id, id, r, case r when 'user' then seq else seq + 1 end, 'completed',
    'forty tokens, so they say', 25, now(), now()
  from turns, unnest(array['user', 'assistant']) r returning tenant_id, id
)
insert into message_tokens (tenant_id, message_id, tokenizer, tokens)
select tenant_id, id, %(tokenizer)s, 40 from messages
"""


def filled(rows: Connection) -> Line:
    """A conversation of ten thousand messages, beside another one as long."""
    line, other = Line(rows), Line(rows)
    other_tenant = Line(rows, tenant=line.tenant)
    for one in (line, other, other_tenant):
        rows.execute(
            _FILL, {"tenant": one.tenant, "chat": one.id, "count": LONG, "tokenizer": TOKENIZER}
        )
        one.next_seq = LONG + 1
    rows.execute("analyze messages")
    return line


def middle(line: Line, rows: Connection) -> Said:
    """The user's message in the middle of a filled conversation."""
    row = rows.execute(
        "select id, turn_id, seq from messages where conversation_id = %s and seq = %s",
        [line.id, LONG // 2 + 1],
    ).fetchone()
    assert row is not None
    return Said(row["id"], row["turn_id"], line.id, "user", row["seq"], "completed", "…")


def touched(rows: Connection, line: Line, branch: UUID, mode: str) -> tuple[int, int]:
    """Rows of messages (both tables) that one page reads, and rows that came back."""
    function = rows.execute(
        "select prosrc, proconfig from pg_proc where proname = 'history_v1'"
    ).fetchone()
    assert function is not None
    settings = [setting.split("=", 1) for setting in function["proconfig"]]
    settings += [["app.tenant_ids", str(line.tenant)], ["plan_cache_mode", mode]]
    with rows.transaction(force_rollback=True):
        for name, value in settings:
            rows.execute("select set_config(%s, %s, true)", [name, value])
        rows.execute("set local role ingestion_reader")
        arguments = "uuid[], uuid[], uuid[], bigint[], text[], int"
        rows.execute(f"prepare history ({arguments}) as {function['prosrc']}".encode())
        row = rows.execute(
            f"explain (analyze, format json) execute history(array['{line.tenant}']::uuid[],"
            f" array['{line.id}']::uuid[], array['{branch}']::uuid[],"
            f" array[{BEFORE_NOTHING}]::bigint[], array['{TOKENIZER}'], {PAGE})".encode()
        ).fetchone()
        rows.execute("deallocate history")
    assert row is not None
    plan = row["QUERY PLAN"][0]["Plan"]
    return rows_of(plan, {"messages", "archived_messages"}), int(plan["Actual Rows"])


def rows_of(node: dict[str, Any], relations: set[str]) -> int:
    """Rows that a plan's scans of some tables touched, those filtered out included."""
    own = 0
    if node.get("Relation Name") in relations:
        each = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        own = round(each * node["Actual Loops"])
    return own + sum(rows_of(child, relations) for child in node.get("Plans", []))


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_a_page_of_a_long_history_reads_a_page_whatever_the_branch(
    rows: Connection, mode: str
) -> None:
    line = filled(rows)
    plain, found = touched(rows, line, line.id, mode)
    assert found == PAGE
    assert plain <= PAGE + 50

    edited = line.edit(middle(line, rows), "in other words")
    fork, found = touched(rows, line, edited.branch_id, mode)
    assert found == PAGE
    assert fork <= PAGE + 50

    line.archive(LONG // 2)
    rows.execute("analyze archived_messages")
    for branch in (line.id, edited.branch_id):
        archived, found = touched(rows, line, branch, mode)
        assert found == PAGE
        assert archived <= 2 * PAGE + 50


def test_a_plan_that_reads_everything_would_be_noticed() -> None:
    scan = {"Relation Name": "messages", "Actual Rows": 2.0, "Actual Loops": 3, "Plans": []}
    plan = {"Node Type": "Limit", "Plans": [scan, {**scan, "Rows Removed by Filter": 10}]}

    assert rows_of(plan, {"messages"}) == 6 + 36
