"""The archive as an operator uses it, with the rights of the command line's role."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from services.ops.archive import Archive, archive_at
from services.ops.failures import CommandFailed, ExitCode
from tests.contract.ingestion.lines import Line, writer
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[dict[str, Any]]
ROOT = Path(__file__).parents[2]
NO_TIME_S = -60.0
"""Older than a minute from now: everything is."""


@pytest.fixture
def rows(database: TestDatabase) -> Iterator[Connection]:
    with writer(database) as connection:
        yield connection


@pytest.fixture
async def archive(database: TestDatabase) -> AsyncIterator[Archive]:
    async with archive_at(database.url_of("ops")) as archive:
        yield archive


def where(rows: Connection, line: Line) -> tuple[int, int]:
    """Messages of a conversation, in the table and in the archive."""
    found = [
        rows.execute(
            f"select count(*) as n from ingestion.{table} where conversation_id = %s",  # noqa: S608
            [line.id],
        ).fetchall()[0]["n"]
        for table in ("messages", "archived_messages")
    ]
    return found[0], found[1]


async def test_old_messages_go_away_and_come_back(rows: Connection, archive: Archive) -> None:
    line = Line(rows)
    for n in range(3):
        line.post(line.id, f"word {n}")
    found = {old.conversation_id: old for old in await archive.candidates(NO_TIME_S)}
    old = found[line.id]

    assert (old.below, old.messages) == (7, 6)
    assert await archive.put_away(line.id, 5) == 4
    assert where(rows, line) == (2, 4)
    assert await archive.bring_back(line.id) == 4
    assert where(rows, line) == (6, 0)
    assert await archive.bring_back(line.id) == 0


async def test_what_an_open_turn_needs_is_refused_and_said(
    rows: Connection, archive: Archive
) -> None:
    line = Line(rows)
    line.post(line.id, "first")
    turn = line.post(line.id, "second")
    rows.execute(
        "insert into ingestion.open_turns (turn_id, tenant_id, conversation_id, branch_id, state, "
        "position, progressed_at, base_seq) "
        "select id, tenant_id, conversation_id, branch_id, 'generating', 0, now(), base_seq "
        "from ingestion.turns where id = %s",
        [turn.id],
    )

    with pytest.raises(CommandFailed, match="still open") as caught:
        await archive.put_away(line.id, 5)

    assert caught.value.exit_code is ExitCode.CONFLICT
    assert where(rows, line) == (4, 0)


def test_the_command_says_what_would_go_moves_it_and_brings_it_back(
    rows: Connection, database: TestDatabase, tmp_path: Path
) -> None:
    line = Line(rows)
    line.post(line.id, "long ago")
    rows.execute(
        "update ingestion.messages set created_at = created_at - interval '3 days' "
        "where conversation_id = %s",
        [line.id],
    )

    def command(*words: str) -> Any:
        own = {"TURNWIRE_OPS__DATABASE_URL": database.url_of("ops")}
        known = {k: v for k, v in os.environ.items() if not k.startswith("TURNWIRE_")}
        place = ("--data-dir", str(tmp_path / "none"))
        done = subprocess.run(
            [sys.executable, "-m", "services.ops", "archive", *words, *place, "--json"],
            cwd=ROOT,
            env={**known, **own},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == ExitCode.OK, done.stderr
        return json.loads(done.stdout)

    planned = command("run", "--older-than", "1", "--dry-run")
    assert [(old["conversation_id"], old["messages"]) for old in planned] == [(str(line.id), 2)]
    assert where(rows, line) == (2, 0)
    assert command("run", "--older-than", "1") == planned
    assert where(rows, line) == (0, 2)
    assert command("run", "--older-than", "1") == []
    restored = command("restore", str(line.id))
    assert restored == {"conversation_id": str(line.id), "moved": 2}
    assert where(rows, line) == (2, 0)
