"""The plans that Postgres keeps for ingestion's statements, made while the tables are empty."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from services.ingestion.statements import SQL
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

GROWING = {
    "conversations",
    "turns",
    "messages",
    "archived_messages",
    "message_tokens",
    "transitions",
    "purged_conversations",
}
BY_KEY = (
    "lock_conversations",
    "turns_by_key",
    "targets",
    "purged",
    "change_conversations",
    "mark_cancelled",
    "delete_messages",
    "advance_conversations",
    "signalled_turns",
    "queues",
    "results",
    "end_turns",
    "commit_results",
    "commit_texts",
    "move_turns",
    "start_turns",
    "started_turns",
)
PARAMETER = re.compile(r"%\((\w+)\)s")


def numbered(sql: str) -> str:
    """The statement with $1, $2, … where the driver puts parameters."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return PARAMETER.sub(number, sql)


def walks(plan: dict[str, Any]) -> Iterator[str]:
    """Where a plan reads a growing table otherwise than by the key of a row."""
    table = plan.get("Relation Name")
    condition = plan.get("Index Cond", "").replace("tenant_id", "")
    if table in GROWING and plan["Node Type"] != "ModifyTable" and "id =" not in condition:
        yield f"{plan['Node Type']} {table} {condition}"
    for part in plan.get("Plans", []):
        yield from walks(part)


@pytest.mark.parametrize("name", BY_KEY)
def test_a_plan_made_for_empty_tables_looks_rows_up_by_key(
    database: TestDatabase, name: str
) -> None:
    statement = f"explain (generic_plan, format json) {numbered(SQL[name])}"
    with psycopg.connect(
        database.url_of("ingestion"), options="-c search_path=ingestion,turnwire"
    ) as connection:
        row = connection.execute(statement).fetchone()  # type: ignore[call-overload]

    assert row is not None
    assert list(walks(row[0][0]["Plan"])) == []
