"""The archive: out of the way, and nobody who reads sees a difference."""

import random
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.contract.ingestion.lines import BEFORE_NOTHING, Line, read, reader, writer
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def ops(database: TestDatabase) -> Iterator[Connection]:
    with reader(database, "ops") as connection:
        yield connection


def everything(line: Line, context: Connection, gateway: Connection) -> list[Any]:
    """All that can be read of a conversation."""
    said = list({one.id: None for path in line.paths.values() for one in path})
    tenants = [line.tenant] * len(said)
    turns = [turn.id for turn in line.turns]
    found: list[Any] = []
    for branch in line.paths:
        found.append(line.history(context, branch))
        found.append(line.messages(gateway, branch=branch))
        found.append(line.messages(gateway, branch=branch, descending=True, max_rows=3))
    for call, values in (
        ("message_texts_v1(%s::uuid[], %s::uuid[])", [tenants, said]),
        ("message_facts_v1(%s::uuid[], %s::uuid[])", [tenants, said]),
        ("turn_texts_v1(%s::uuid[], %s::uuid[])", [[line.tenant] * len(turns), turns]),
        ("branches_v1(%s, %s, %s)", [line.tenant, line.principal, line.id]),
        ("find_text_v1(%s, %s, %s, 'w', 100)", [line.tenant, line.principal, line.id]),
    ):
        statement = f"select * from ingestion.{call}"  # noqa: S608 -- names of this file
        found.append(read(gateway, statement, values, tenant=line.tenant))
    return found


def talked_about(rows: Connection) -> Line:
    """A conversation with branches, a superseded question and deleted messages."""
    line = Line(rows)
    first, second, third = (line.post(line.id, f"word {n}") for n in range(3))
    edited = line.edit(second.question, "another word")
    line.regenerate(third, "again", status="partial")
    line.go_on(third, "and on")
    line.post(edited.branch_id, "last word", status="failed", answer="")
    line.delete(first.answer)
    line.delete(third.question)
    return line


@pytest.mark.parametrize("seed", range(3))
def test_moved_out_or_moved_back_a_conversation_reads_the_same(
    rows: Connection, context: Connection, gateway: Connection, seed: int
) -> None:
    rng = random.Random(seed)
    line = talked_about(rows)
    other = Line(rows, tenant=line.tenant)
    other.post(other.id, "of another conversation")
    total = line.next_seq - 1
    before = everything(line, context, gateway)
    columns = "select * from messages order by seq, conversation_id"
    stored = rows.execute(columns).fetchall()

    boundary = rng.randrange(2, line.next_seq)
    assert line.archive(boundary) == boundary - 1
    assert everything(line, context, gateway) == before
    assert line.archive(line.next_seq) == total - (boundary - 1)
    assert everything(line, context, gateway) == before

    assert line.unarchive() == total
    assert everything(line, context, gateway) == before
    assert rows.execute(columns).fetchall() == stored
    assert rows.execute("select 1 from archived_messages").fetchall() == []


def test_only_a_branch_that_shows_its_own_messages_alone_is_plain_again(rows: Connection) -> None:
    line = talked_about(rows)
    plain = "select id, is_plain from branches where is_plain"
    assert [row["id"] for row in rows.execute(plain)] == [line.id]

    line.archive(3)
    assert rows.execute(plain).fetchall() == []

    line.unarchive()
    assert [row["id"] for row in rows.execute(plain)] == [line.id]


def test_a_conversation_goes_on_after_a_part_of_it_was_archived(
    rows: Connection, context: Connection
) -> None:
    line = talked_about(rows)
    line.archive(4)
    newest = line.post(line.id, "after it")

    [row, *_] = line.history(context, line.id, max_rows=1)

    assert row["message_id"] == newest.answer.id
    rows.execute("select set_config('app.tenant_ids', '', false)")
    number = "select observed_no from messages where id = %s"
    highest = "select max(observed_no) as highest from archived_messages"
    observed = rows.execute(number, [newest.answer.id]).fetchone()
    archived = rows.execute(highest).fetchone()
    assert observed is not None
    assert archived is not None
    assert observed["observed_no"] > archived["highest"]


def test_what_an_open_turn_still_needs_is_not_moved(rows: Connection) -> None:
    line = Line(rows)
    first = line.post(line.id, "one", status="partial")
    running = line.post(line.id, "two", status="generating")

    with pytest.raises(psycopg.Error, match="still open") as refused:
        line.archive(running.answer.seq)
    assert refused.value.sqlstate == "TW002"
    assert line.archive(running.question.seq) == 2

    rows.execute("delete from open_turns")
    line.unarchive()
    again = line.regenerate(first, "running", status="generating")
    assert again.question.seq < running.question.seq < again.answer.seq
    with pytest.raises(psycopg.Error, match="still open"):
        line.archive(running.question.seq)


def test_an_archiving_waits_for_an_acceptance_that_came_first(
    rows: Connection, database: TestDatabase
) -> None:
    line = Line(rows)
    line.post(line.id, "one")
    with writer(database) as accepting:
        other = Line(accepting)  # so that the second connection has something of its own
        assert other.id != line.id
        with accepting.transaction():
            accepting.execute("select 1 from conversations where id = %s for update", [line.id])
            with rows.transaction(), pytest.raises(psycopg.errors.LockNotAvailable):
                rows.execute("set local lock_timeout = '100ms'")
                line.archive(2)
    assert line.archive(2) == 1


def test_who_moved_what_is_written_down_and_must_be_said(rows: Connection, ops: Connection) -> None:
    line = talked_about(rows)
    for statement, values in (
        ("select ingestion.op_archive(%s, 3, 'somebody')", [line.id]),
        ("select ingestion.op_unarchive(%s, 'somebody else')", [line.id]),
    ):
        read(ops, statement, values, tenant=None)

    audit = rows.execute(
        "select action, turn_id, actor, details from operator_actions order by action"
    ).fetchall()
    assert [(row["action"], row["actor"]) for row in audit] == [
        ("conversation.archived", "somebody"),
        ("conversation.unarchived", "somebody else"),
    ]
    assert audit[0]["turn_id"] == line.id
    assert audit[0]["details"] == {"below": 3, "messages": 2}
    for statement in (
        "select ingestion.op_archive(%s, 3, '')",
        "select ingestion.op_unarchive(%s, '')",
    ):
        with pytest.raises(psycopg.Error) as refused:
            read(ops, statement, [line.id], tenant=None)
        assert refused.value.sqlstate == "TW002"


def test_nothing_to_move_is_no_move(rows: Connection) -> None:
    line = Line(rows)
    line.post(line.id, "one")

    assert line.archive(1) == 0
    assert line.unarchive() == 0
    assert rows.execute("select 1 from operator_actions").fetchall() == []
    moved = rows.execute("select op_archive(%s, 5, 'x') as moved", [uuid4()]).fetchone()
    assert moved == {"moved": 0}


def test_what_may_be_archived_is_old_and_below_every_open_turn(
    rows: Connection, ops: Connection
) -> None:
    old, fresh, gone = Line(rows), Line(rows), Line(rows)
    for line in (old, fresh, gone):
        line.post(line.id, "one")
        line.post(line.id, "two", status="generating" if line is old else "completed")
    rows.execute(
        "update messages set created_at = now() - interval '2 days' where conversation_id <> %s",
        [fresh.id],
    )
    rows.execute(
        "update conversations set deleted_at = now(), purge_at = now() where id = %s", [gone.id]
    )
    call = "select conversation_id, below, messages from ingestion.op_archivable(%s, 10)"

    assert read(ops, call, [86_400.0], tenant=None) == [
        {"conversation_id": old.id, "below": 3, "messages": 2}
    ]
    assert read(ops, call, [3 * 86_400.0], tenant=None) == []
    assert old.archive(3) == 2
    assert read(ops, call, [86_400.0], tenant=None) == []


def test_the_history_of_an_archived_conversation_stops_where_it_is_asked_to(
    rows: Connection, context: Connection
) -> None:
    line = talked_about(rows)
    line.archive(line.next_seq)

    for before in range(1, line.next_seq + 1):
        for branch in line.paths:
            found = line.history(context, branch, before=before, max_rows=2)
            assert [row["message_id"] for row in found] == line.expected_history(
                branch, before=before, max_rows=2
            )
    assert line.expected_history(line.id, before=BEFORE_NOTHING, max_rows=1)
