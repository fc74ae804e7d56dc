"""SQL asks one function for the time and makes no ids, so that a simulation can replace both."""

import re
from pathlib import Path

from tests.architecture.tree import ROOT, SOURCE_FOLDERS, files, name_of

CLOCKS_AND_IDS = re.compile(
    r"""\b(?:now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday
          |gen_random_uuid|uuidv4|uuidv7|uuid_generate_v\w+|random)\s*\(
        | \b(?:current_timestamp|current_date|current_time|localtimestamp|localtime)\b""",
    re.IGNORECASE | re.VERBOSE,
)
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
DEFINITION = re.compile(
    r"create\s+(?:or\s+replace\s+)?function\s+turnwire\.clock\(\).*?;", re.IGNORECASE | re.DOTALL
)

# The doctor compares the server's own clock with this machine's; no effect depends on it.
ALLOWED = {"services/ops/queries.sql": ["clock_timestamp"]}


def clocks(sql: str) -> list[str]:
    """Every use of the database's own clock or ids; comments do not count."""
    return [
        match.group().strip("( ").lower() for match in CLOCKS_AND_IDS.finditer(COMMENT.sub("", sql))
    ]


def sql_files() -> list[Path]:
    """Every SQL file of the product."""
    return list(files(*SOURCE_FOLDERS, suffix=".sql"))


def test_one_function_is_the_only_clock_in_sql() -> None:
    definitions = 0
    found: dict[str, list[str]] = {}
    for path in sql_files():
        text, count = DEFINITION.subn("", path.read_text(encoding="utf-8"))
        definitions += count
        if used := clocks(text):
            found[name_of(path, root=ROOT)] = used

    assert found == ALLOWED
    assert definitions == 1


def test_clocks_and_generated_ids_are_noticed() -> None:
    sql = """
    -- now() in a comment is no use of it
    create table t (id uuid default gen_random_uuid(), at timestamptz default NOW ( ));
    select current_timestamp, turnwire.clock(), known(1), x.now_at from t;
    """
    assert clocks(sql) == ["gen_random_uuid", "now", "current_timestamp"]


def test_the_definition_alone_may_ask_the_database() -> None:
    sql = "create function turnwire.clock() returns timestamptz language sql as $$ select now() $$;"
    assert clocks(DEFINITION.sub("", sql)) == []
    assert clocks(sql) == ["now"]
