"""What other services read of conversations, each as its own role, on branches of every shape."""

import json
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.contract.ingestion.lines import (
    Line,
    ids_of,
    read,
)

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[dict[str, Any]]


def test_texts_are_read_from_both_tables_and_not_of_what_was_deleted(
    rows: Connection, context: Connection, gateway: Connection
) -> None:
    line = Line(rows)
    old, new = line.post(line.id, "old", answer="a"), line.post(line.id, "new", answer="b")
    line.archive(old.answer.seq + 1)
    line.delete(old.question)
    line.delete(new.question)
    wanted = [one.id for turn in (old, new) for one in (turn.question, turn.answer)]
    call = "select * from ingestion.message_texts_v1(%s::uuid[], %s::uuid[])"

    for connection in (context, gateway):
        found = read(connection, call, [[line.tenant] * 4, wanted], tenant=line.tenant)
        assert [(row["message_id"], row["text"]) for row in found] == [
            (old.answer.id, "a"),
            (new.answer.id, "b"),
        ]


def test_a_deleted_answer_has_no_text_and_its_turn_says_so(
    rows: Connection, gateway: Connection
) -> None:
    line = Line(rows)
    kept, gone = line.post(line.id, "one", answer="a"), line.post(line.id, "two", answer="b")
    line.archive(kept.answer.seq + 1)
    line.delete(gone.answer)
    arrays = [[line.tenant] * 2, [kept.id, gone.id]]

    texts = read(
        gateway,
        "select * from ingestion.turn_texts_v1(%s::uuid[], %s::uuid[])",
        arrays,
        tenant=line.tenant,
    )
    shown = read(
        gateway,
        "select id, answer_deleted_at is null as is_there from ingestion.shown_turns_v1"
        " where id = any (%s) order by seq",
        [[kept.id, gone.id]],
        tenant=line.tenant,
    )

    assert [row["text"] for row in texts] == ["a", None]
    assert ids_of(shown, "is_there") == [True, False]


def test_turns_of_a_deleted_conversation_are_hidden_from_front_ends_alone(
    rows: Connection, context: Connection, gateway: Connection
) -> None:
    line = Line(rows)
    turn = line.post(line.id, "one", status="generating")
    rows.execute(
        "update conversations set deleted_at = now(), purge_at = now() where id = %s", [line.id]
    )
    by_id = [turn.id]

    assert (
        read(
            gateway,
            "select 1 from ingestion.shown_turns_v1 where id = %s",
            by_id,
            tenant=line.tenant,
        )
        == []
    )
    assert read(
        context, "select 1 from ingestion.turns_v1 where id = %s", by_id, tenant=line.tenant
    )
    assert line.messages(gateway) == []


def test_a_waiting_turn_shows_its_place_and_an_ended_one_has_none(
    rows: Connection, gateway: Connection
) -> None:
    line = Line(rows)
    ended = line.post(line.id, "one")
    waiting = line.post(line.id, "two", status="generating")
    rows.execute("update open_turns set position = 3 where turn_id = %s", [waiting.id])

    found = read(
        gateway,
        "select queue_position from ingestion.shown_turns_v1 where id = any (%s) order by seq",
        [[ended.id, waiting.id]],
        tenant=line.tenant,
    )

    assert ids_of(found, "queue_position") == [None, 3]


def test_an_outcome_names_the_question_the_branch_and_the_place(
    rows: Connection, gateway: Connection
) -> None:
    line = Line(rows)
    first = line.post(line.id, "one")
    again = line.regenerate(first, "running", status="generating")
    rows.execute("update open_turns set position = 2 where turn_id = %s", [again.id])
    request = uuid4()
    rows.execute(
        "insert into request_outcomes values (%s, %s, 'accepted', %s, %s, null, now())",
        [request, line.tenant, line.id, again.id],
    )

    [row] = read(
        gateway,
        "select * from ingestion.request_outcomes_v1(%s::uuid[], %s::uuid[])",
        [[line.tenant], [request]],
        tenant=line.tenant,
    )

    assert row["user_message_id"] == first.question.id
    assert (row["message_id"], row["branch_id"]) == (again.answer.id, again.branch_id)
    assert (row["queue_position"], row["kind"]) == (2, "regenerate")


# Lists


def test_pages_of_a_branch_meet_without_a_gap_in_both_directions(
    rows: Connection, gateway: Connection
) -> None:
    line = Line(rows)
    turns = [line.post(line.id, f"{n}") for n in range(5)]
    edited = line.edit(turns[3].question, "in other words")
    line.archive(turns[1].answer.seq)
    expected = line.expected_messages(edited.branch_id)

    for descending, side in (
        (False, "after"),
        (True, "after"),
        (False, "before"),
        (True, "before"),
    ):
        found: list[UUID] = []
        cursor: dict[str, UUID] = {}
        while page := line.messages(
            gateway, branch=edited.branch_id, descending=descending, max_rows=3, **cursor
        ):
            if side == "before" and not found and not cursor:
                cursor = {"before": ids_of(page, "id")[-1]}
                continue
            ids = ids_of(page, "id")
            found = found + ids if side == "after" else ids + found
            cursor = {side: ids[-1] if side == "after" else ids[0]}
        wanted = list(reversed(expected)) if descending else expected
        assert found == (wanted if side == "after" else wanted[:2])


def test_the_active_branch_is_what_a_list_shows_and_others_are_asked_for_by_name(
    rows: Connection, gateway: Connection
) -> None:
    line = Line(rows)
    first = line.post(line.id, "one")
    edited = line.edit(first.question, "in other words")
    rows.execute(
        "update conversations set branch_id = %s where id = %s", [edited.branch_id, line.id]
    )

    [question, _] = line.messages(gateway)
    old = line.messages(gateway, branch=line.id)
    [conversation] = read(
        gateway,
        "select * from ingestion.conversation_v1(%s, %s, %s)",
        [line.tenant, line.principal, line.id],
        tenant=line.tenant,
    )

    assert question["id"] == edited.question.id
    assert (question["supersedes"], question["kind"]) == (first.question.id, "edit")
    assert ids_of(old, "id") == [first.question.id, first.answer.id]
    assert conversation["branch_id"] == edited.branch_id


def test_a_cursor_off_the_path_and_an_unknown_branch_are_told_apart(
    rows: Connection, gateway: Connection
) -> None:
    line = Line(rows)
    first = line.post(line.id, "one")
    edited = line.edit(first.question, "in other words")

    with pytest.raises(psycopg.Error) as off_the_path:
        line.messages(gateway, branch=edited.branch_id, after=first.question.id)
    with pytest.raises(psycopg.Error) as unknown:
        line.messages(gateway, branch=uuid4())

    assert (off_the_path.value.sqlstate, unknown.value.sqlstate) == ("TW001", "TW004")
    line.delete(first.question)  # a page may turn on what was deleted meanwhile
    [answer] = line.messages(gateway, after=first.question.id)
    assert answer["id"] == first.answer.id


def test_titles_are_searched_to_the_letter_in_any_case(
    rows: Connection, gateway: Connection
) -> None:
    tenant, principal = uuid4(), uuid4()
    titles = ("Ferry to Oslo", "50 % off_ferries", "50 x offXferries", r"back\slash", None)
    lines = {title: Line(rows, tenant=tenant, principal=principal, title=title) for title in titles}
    foreign = Line(rows, tenant=tenant, title="Ferry of somebody else")
    deleted = Line(rows, tenant=tenant, principal=principal, title="ferry, deleted")
    rows.execute(
        "update conversations set deleted_at = now(), purge_at = now() where id = %s", [deleted.id]
    )

    def found(query: str | None) -> set[UUID]:
        page = read(
            gateway,
            "select id from ingestion.conversations_v1(%s, %s, null, null, false, 100, %s)",
            [tenant, principal, query],
            tenant=tenant,
        )
        return set(ids_of(page, "id"))

    assert found("FERR") == {lines[t].id for t in titles if t and "ferr" in t.lower()}
    assert found("% off_") == {lines["50 % off_ferries"].id}
    assert found("k\\s") == {lines[r"back\slash"].id}
    assert found("nowhere") == set()
    assert found(None) == found("") == {line.id for line in lines.values()}
    assert foreign.id not in found("ferry")


def test_branches_are_listed_with_where_they_begin_and_end(
    rows: Connection, gateway: Connection
) -> None:
    line = Line(rows)
    first, second = line.post(line.id, "one"), line.post(line.id, "two")
    edited = line.edit(second.question, "in other words")
    further = line.post(edited.branch_id, "three")
    again = line.regenerate(further, "another")
    rows.execute(
        "update conversations set branch_id = %s where id = %s", [again.branch_id, line.id]
    )
    call = "select * from ingestion.branches_v1(%s, %s, %s)"

    found = read(gateway, call, [line.tenant, line.principal, line.id], tenant=line.tenant)
    foreign = read(gateway, call, [line.tenant, uuid4(), line.id], tenant=line.tenant)

    by_id = {row["id"]: row for row in found}
    main, fork, leaf = by_id[line.id], by_id[edited.branch_id], by_id[again.branch_id]
    assert (main["kind"], main["parent_branch_id"], main["fork_seq"]) == ("main", None, None)
    assert (main["first_turn_id"], main["last_turn_id"]) == (first.id, second.id)
    assert (fork["parent_branch_id"], fork["fork_seq"]) == (line.id, second.question.seq)
    assert (fork["first_turn_id"], fork["last_turn_id"]) == (edited.id, further.id)
    assert (leaf["parent_branch_id"], leaf["fork_seq"]) == (fork["id"], further.question.seq + 1)
    assert [row["id"] for row in found if row["is_active"]] == [again.branch_id]
    assert foreign == []


def test_the_activity_of_a_conversation_is_its_newest_turns_on_every_branch(
    rows: Connection, gateway: Connection
) -> None:
    tenant = uuid4()
    line, silent, gone = (Line(rows, tenant=tenant) for _ in range(3))
    for n in range(35):
        last = line.post(line.id, f"{n}")
    again = line.regenerate(last, "running", status="generating")
    rows.execute(
        "update conversations set deleted_at = now(), purge_at = now() where id = %s", [gone.id]
    )

    found = read(
        gateway,
        "select * from ingestion.conversation_activity_v1(%s::uuid[], %s::uuid[])",
        [[tenant] * 4, [line.id, silent.id, gone.id, uuid4()]],
        tenant=tenant,
    )

    mine = [row for row in found if row["conversation_id"] == line.id]
    assert len(mine) == 32
    assert [(r["turn_id"], r["branch_id"], r["status"]) for r in mine[:2]] == [
        (again.id, again.branch_id, "generating"),
        (last.id, line.id, "completed"),
    ]
    assert (mine[0]["kind"], mine[0]["queue_position"]) == ("regenerate", 0)
    assert mine[1]["queue_position"] is None
    assert [(r["conversation_id"], r["turn_id"], r["is_deleted"]) for r in found[32:]] == [
        (silent.id, None, False),
        (gone.id, None, True),
    ]


def test_facts_about_messages_come_without_their_text_and_deleted_ones_too(
    rows: Connection, gateway: Connection
) -> None:
    line = Line(rows)
    first = line.post(line.id, "old wörds", answer="a")
    line.archive(first.answer.seq + 1)
    line.edit(first.question, "new words")
    newest = line.edit(first.question, "newest words")
    line.delete(first.answer)

    found = read(
        gateway,
        "select * from ingestion.message_facts_v1(%s::uuid[], %s::uuid[])",
        [[line.tenant] * 3, [first.question.id, first.answer.id, uuid4()]],
        tenant=line.tenant,
    )

    question, answer = found
    assert question["superseded_by"] == newest.question.id
    assert (question["seq"], question["tokens_length"]) == (1, len("old wörds".encode()))
    assert (answer["is_deleted"], answer["superseded_by"]) == (True, None)
    assert "text" not in question


def test_a_text_is_found_on_every_branch_but_not_where_it_was_deleted(
    rows: Connection, gateway: Connection
) -> None:
    line, other = Line(rows), Line(rows)
    first = line.post(line.id, "the needle and the hay")
    line.archive(first.answer.seq + 1)
    edited = line.edit(first.question, "a needle_")
    deleted = line.post(line.id, "needle, deleted")
    line.delete(deleted.question)
    other.post(other.id, "a needle of somebody else")
    call = "select * from ingestion.find_text_v1(%s, %s, %s, %s, %s)"

    def found(needle: str, *, principal: UUID = line.principal, max_rows: int = 10) -> list[Any]:
        wanted = [line.tenant, principal, line.id, needle, max_rows]
        page = read(gateway, call, wanted, tenant=line.tenant)
        return [(row["message_id"], row["branch_id"]) for row in page]

    assert found("needle") == [
        (edited.question.id, edited.branch_id),
        (first.question.id, line.id),
    ]
    assert found("needle", max_rows=1) == [(edited.question.id, edited.branch_id)]
    assert found("needle_") == [(edited.question.id, edited.branch_id)]
    assert found("NEEDLE") == []
    assert found("needle", principal=uuid4()) == []


# Who may read


READS = {
    "history_v1": "(array[%(t)s]::uuid[], array[%(c)s]::uuid[], array[%(c)s]::uuid[],"
    " array[1000]::bigint[], array['x'], 10)",
    "message_texts_v1": "(array[%(t)s]::uuid[], array[%(m)s]::uuid[])",
    "turn_texts_v1": "(array[%(t)s]::uuid[], array[%(turn)s]::uuid[])",
    "conversation_v1": "(%(t)s, %(p)s, %(c)s)",
    "conversations_v1": "(%(t)s, %(p)s, null, null, false, 10, null)",
    "messages_v1": "(%(t)s, %(p)s, %(c)s, null, null, false, null, 10)",
    "branches_v1": "(%(t)s, %(p)s, %(c)s)",
    "conversation_activity_v1": "(array[%(t)s]::uuid[], array[%(c)s]::uuid[])",
    "message_facts_v1": "(array[%(t)s]::uuid[], array[%(m)s]::uuid[])",
    "find_text_v1": "(%(t)s, %(p)s, %(c)s, 'one', 10)",
    "shown_turns_v1": "",
    "turns_v1": "",
    "open_turns_v1": "",
    "purged_v1": "",
}
OF_CONTEXT = {"history_v1", "turns_v1", "open_turns_v1", "purged_v1"}
FOR_ALL_TENANTS = {"open_turns_v1"}


@pytest.mark.parametrize("name", READS)
def test_nothing_is_read_of_a_tenant_that_was_not_named(
    rows: Connection, context: Connection, gateway: Connection, name: str
) -> None:
    line = Line(rows)
    turn = line.post(line.id, "one", answer="a")
    line.post(line.id, "two", status="generating")
    rows.execute(
        "insert into purged_conversations values (%s, gen_random_uuid(), now())", [line.tenant]
    )
    connection = context if name in OF_CONTEXT else gateway
    values = {
        "t": line.tenant,
        "p": line.principal,
        "c": line.id,
        "m": turn.answer.id,
        "turn": turn.id,
    }
    call = f"select * from ingestion.{name}{READS[name]}"  # noqa: S608 -- names of this file

    assert read(connection, call, values, tenant=line.tenant)
    if name not in FOR_ALL_TENANTS:
        assert read(connection, call, values, tenant=uuid4()) == []
        assert read(connection, call, values, tenant=None) == []


def test_every_row_of_an_answer_can_be_sent_as_json(rows: Connection, gateway: Connection) -> None:
    line = Line(rows)
    line.post(line.id, "one")

    assert json.dumps(line.messages(gateway), default=str)
