"""One condition decides what is history; whoever else reads messages looks single ones up."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.tree import ROOT, SOURCE_FOLDERS, files, name_of

HISTORY_VIEWS = frozenset({"history_rows", "archived_history_rows"})
"""The only readers of ``is_history``, and what nobody but the published function reads."""

BY_ID = "looks up single messages by id"
WRITES = "writes messages, or moves them"
PEOPLE = "what people see: everything that was not deleted, failed and empty answers included"
COUNTS = "the newest answers of a conversation, whatever became of them"
AGE = "how old messages are; it is the conversation that was not deleted"

ALLOWED = {
    "services/ingestion/migrations/0002_pre_published_reads.sql": {
        "message_texts_v1": BY_ID,
        "turn_texts_v1": BY_ID,
        "message_facts_v1": BY_ID,
        "messages_v1": PEOPLE,
        "find_text_v1": PEOPLE,
        "conversation_activity_v1": COUNTS,
    },
    "services/ingestion/migrations/0003_pre_operator_functions.sql": {"op_end_turn": WRITES},
    "services/ingestion/migrations/0004_pre_lifecycle.sql": {
        "op_archive": WRITES,
        "op_unarchive": WRITES,
        "op_archivable": AGE,
    },
    "services/ingestion/migrations/0006_pre_timeline.sql": {"message_excerpts_v1": BY_ID},
    "services/ingestion/queries.sql": {
        "targets": BY_ID,
        "insert_messages": WRITES,
        "commit_results": WRITES,
        "commit_texts": WRITES,
        "delete_messages": WRITES,
    },
}
"""Statements that name messages together with what history is decided from, and why they may."""

_COMMENT = re.compile(r"--(?! name:)[^\n]*|/\*.*?\*/", re.DOTALL)
_STATEMENT = re.compile(
    r"^-- name: (?P<query>\w+)"
    r"|^create (?:or replace )?(?P<kind>function|view) (?:ingestion\.)?(?P<made>\w+)",
    re.MULTILINE | re.IGNORECASE,
)
_PLACE = r"\s*(?:only\s+)?(?:\"?ingestion\"?\s*\.\s*)?\"?(?:archived_)?"
"""What may stand between a word that takes a table and the table's name."""

_READS_MESSAGES = re.compile(
    rf"(?:\b(?:from|join|update|into|using)\b|,){_PLACE}messages\b", re.IGNORECASE
)
_DECIDES = re.compile(r"\b(?:role|status|deleted_at|is_history)\b", re.IGNORECASE)
_READS_HISTORY = re.compile(rf"(?:\b(?:from|join)\b|,){_PLACE}history_rows\b", re.IGNORECASE)
_SQL_IN_PYTHON = re.compile(rf"\b(?:from|join){_PLACE}messages\b(?!\.|\s+import)", re.IGNORECASE)


def statements(sql: str) -> Iterator[tuple[str, str]]:
    """Name and text of every named query, function and view of a file, without comments."""
    text = _COMMENT.sub("", sql)
    starts = list(_STATEMENT.finditer(text))
    ends = [following.start() for following in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends[: len(starts)], strict=True):
        body = text[start.end() : end]
        # What stands behind a function's or a view's own end belongs to nobody.
        if start["kind"] == "function":
            body = body[: body.rindex("$$")]
        elif start["kind"] == "view":
            body = body[: body.index(";")]
        yield start["query"] or start["made"], body


def deciding(sql: str) -> set[str]:
    """Statements that read or write messages and name what history is decided from."""
    return {
        name
        for name, body in statements(sql)
        if _READS_MESSAGES.search(body) and _DECIDES.search(body)
    }


def sources() -> dict[str, str]:
    """Every SQL file of the product."""
    return {
        name_of(path, root=ROOT): path.read_text(encoding="utf-8")
        for path in files(*SOURCE_FOLDERS, suffix=".sql")
    }


def test_nothing_but_the_two_views_decides_what_is_history() -> None:
    found = {path: deciding(sql) - HISTORY_VIEWS for path, sql in sources().items()}

    assert {path: names for path, names in found.items() if names} == {
        path: set(names) for path, names in ALLOWED.items()
    }


def test_the_condition_is_written_once_and_asked_by_the_two_views() -> None:
    asking = {
        name
        for sql in sources().values()
        for name, body in statements(sql)
        if re.search(r"\bis_history\b", body)
    }
    texts = "".join(_COMMENT.sub("", sql) for sql in sources().values())

    assert asking == HISTORY_VIEWS
    assert len(re.findall(r"is_history boolean generated always", texts)) == 1


def test_history_is_read_through_one_function() -> None:
    reading = {
        name
        for sql in sources().values()
        for name, body in statements(sql)
        if _READS_HISTORY.search(body)
    }
    assert reading == {"history_v1"}


def test_no_module_reads_messages_past_the_sql_files() -> None:
    found = [
        name_of(path)
        for path in files(*SOURCE_FOLDERS)
        if _SQL_IN_PYTHON.search(_without_prose(path))
    ]
    assert found == []


def _without_prose(path: Path) -> str:
    """A module's text without its docstrings and comments, which may speak of messages."""
    text = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"#[^\n]*", "", text)


def test_a_statement_that_decides_by_itself_is_noticed() -> None:
    sql = """
    -- name: by_itself
    -- a comment that says role, and from messages
    select m.text from messages m where m.conversation_id = %(id)s and m.role = 'user';
-- name: innocent
select 1 from messages m where m.id = %(id)s;
-- name: elsewhere
select t.status from turns t;
create function sly() returns int language sql as $$
  select count(*) from archived_messages where deleted_at is null
$$;
grant select (role) on messages to somebody;
create view history_rows as select id from messages where is_history;
-- name: loud
SELECT text FROM "ingestion"."messages" WHERE Deleted_At IS NULL;
-- name: listed
select m.text from turns t, only ingestion.messages m where m.turn_id = t.id and m.role = 'user';
"""
    assert deciding(sql.replace("    -- name", "-- name")) == {
        "by_itself",
        "sly",
        "history_rows",
        "loud",
        "listed",
    }
