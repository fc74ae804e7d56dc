"""The operator's commands with the rights of the command line's role, on a real database."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from services.ops.__main__ import NOBODY_READS, main
from services.ops.failures import ExitCode
from services.ops.projections import TurnTable
from services.ops.replaying import fact_of_row
from tests.contract.ingestion.lines import Line, Turn, writer
from tests.rig.parts import TestDatabase, with_database

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[dict[str, Any]]
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60
CANARY = "canary-51d0-do-not-show"
AWAY = "postgresql://turnwire_ops:secret-word@127.0.0.1:1/turnwire"


@pytest.fixture
def rows(database: TestDatabase) -> Iterator[Connection]:
    with writer(database) as connection:
        yield connection


@dataclass(frozen=True, slots=True)
class Done:
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


class Shell:
    """Runs commands as an operator does, in this process: starting one costs more than most do."""

    def __init__(
        self, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self.patch = patch
        self.folder = folder
        self._captured = captured

    def run(self, *arguments: str, **more: str) -> Done:
        """One command, to its end."""
        self._captured.readouterr()
        with self.patch.context() as patch:
            for name, value in more.items():
                patch.setenv(name, value)
            code = main(arguments)
        told = self._captured.readouterr()
        return Done(code, told.out, told.err)

    def document(self, *arguments: str) -> Any:
        """What a command prints as JSON."""
        done = self.run(*arguments, "--json")
        assert done.returncode == ExitCode.OK, done.stderr
        return json.loads(done.stdout)

    def environment(self) -> dict[str, str]:
        """For a process of its own."""
        return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def shell(
    database: TestDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    for name in list(os.environ):
        if name.startswith("TURNWIRE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TURNWIRE_OPS__DATABASE_URL", database.url_of("ops"))
    monkeypatch.setenv("TURNWIRE_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    return Shell(monkeypatch, capsys, tmp_path)


@pytest.fixture
def failed(rows: Connection) -> Turn:
    line = Line(rows, title=CANARY)
    turn = line.post(line.id, CANARY, answer=CANARY, status="failed")
    rows.execute("update ingestion.turns set reason = 'internal' where id = %s", [turn.id])
    return turn


def letter_of(rows: Connection) -> UUID:
    letter = uuid4()
    rows.execute(
        "insert into ingestion.dead_letters (id, tenant_id, consumer, topic, partition, "
        '"offset", key, headers, value, event_id, event_type, reason, error, attempts, at, '
        "mirrored) values (%s, null, 'ingestion.requests', 'turn.requests', 1, 7, 'k', '[]', %s, "
        "null, null, 'malformed', 'the value is no JSON', 0, now(), true)",
        (letter, CANARY.encode()),
    )
    return letter


def test_the_story_of_a_turn_is_found_by_key_and_told_without_a_word_of_it(
    shell: Shell, failed: Turn
) -> None:
    found = shell.document("turns", "find", str(failed.id))  # its key is its id's text
    assert {one["turn_id"] for one in found["turns"]} == {str(failed.id)}

    done = shell.run("turns", "events", str(failed.id))
    assert done.returncode == ExitCode.OK
    first, why, *_ = done.stdout.splitlines()
    assert first.startswith(f"Turn {failed.id}: Failed (internal) ")
    assert why == "Something went wrong here that should not."
    assert "request accepted" in done.stdout
    everything = json.dumps([found, shell.document("turns", "events", str(failed.id))])
    assert CANARY not in everything + done.stdout


def test_dead_letters_are_listed_shown_and_asked_for_again(shell: Shell, rows: Connection) -> None:
    letter = letter_of(rows)
    assert [one["id"] for one in shell.document("dlq", "ls")] == [str(letter)]
    shown = shell.run("dlq", "show", str(letter))
    assert "record 7 of turn.requests" in shown.stdout
    assert CANARY not in shown.stdout + json.dumps(shell.document("dlq", "show", str(letter)))

    tried = shell.document("dlq", "redrive", str(letter), "--dry-run")
    assert tried["dry_run"] is True
    assert shell.document("dlq", "show", str(letter))["is_asked"] is False
    refused = shell.run("dlq", "redrive", str(letter))
    assert refused.returncode == ExitCode.USAGE  # nobody can be asked here
    assert shell.document("dlq", "redrive", str(letter), "--yes")["dry_run"] is False
    assert shell.document("dlq", "show", str(letter))["is_asked"] is True
    gone = shell.run("dlq", "redrive", str(uuid4()), "--yes")
    assert gone.returncode == ExitCode.CONFLICT
    assert "There is no dead letter" in gone.stderr


def test_a_turn_is_ended_once(shell: Shell, rows: Connection) -> None:
    line = Line(rows)
    turn = line.post(line.id, "running", status="generating")
    name = str(turn.id)
    assert shell.document("turns", "end", name, "--dry-run")["dry_run"] is True
    assert [one["status"] for one in shell.document("turns", "ls", "--status", "open")] == [
        "generating"
    ]
    assert shell.document("turns", "end", name, "--yes", "--reason", "user")["dry_run"] is False
    again = shell.run("turns", "end", name, "--yes")
    assert (again.returncode, again.stdout) == (ExitCode.CONFLICT, "")
    wrong = shell.run("turns", "end", name, "--yes", "--reason", "because")
    assert wrong.returncode == ExitCode.USAGE
    wrong = shell.run("turns", "ls", "--status", "faild")
    assert wrong.returncode == ExitCode.USAGE
    assert "Did you mean failed?" in wrong.stderr


def test_outbox_and_status_tell_the_deployment(shell: Shell, rows: Connection) -> None:
    rows.execute(
        "insert into ingestion.outbox (bucket, topic, key, event_id, type, headers, payload, "
        "created_at) values (1, 'turn.events', 'k', gen_random_uuid(), 'turn.ended', '{}', %s, "
        "now() - interval '2 minutes')",
        [CANARY.encode()],
    )
    waiting = shell.run("outbox", "status")
    assert waiting.stdout.startswith("1 events wait for the broker.")
    assert CANARY not in waiting.stdout + shell.run("outbox", "ls", "--json").stdout
    status = shell.run("status", "--json")
    assert status.returncode == ExitCode.NOT_READY  # no service runs
    told = json.loads(status.stdout)
    assert {one["health"] for one in told["deployment"]["services"]} == {"absent"}


def test_a_projection_is_rebuilt_goes_on_where_it_stopped_and_refuses_effects(
    shell: Shell, rows: Connection, failed: Turn
) -> None:
    line = Line(rows)
    line.post(line.id, "running", status="generating")
    line.post(line.id, "done")
    first = shell.document("replay", "project", "turns", "--out", "turns.sqlite")
    assert first["turns"] == {"completed": 1, "failed": 1, "started": 1}
    assert (first["read"], first["resumed"]) == (3, False)
    second = shell.document("replay", "project", "turns", "--out", "turns.sqlite")
    assert (second["read"], second["was_complete"]) == (0, True)
    first_row = "select t.id as turn_id, t.* from ingestion.turns t order by tenant_id, id limit 1"
    (row,) = rows.execute(first_row).fetchall()
    place = {"tenant": str(row["tenant_id"]), "turn": str(row["turn_id"])}
    with TurnTable.opened(shell.folder / "turns.sqlite") as table:
        table.clear()
        table.take("postgres", [fact_of_row(row)], place, is_last=False)  # and was stopped there
    resumed = shell.document("replay", "project", "turns", "--out", "turns.sqlite")
    assert (resumed["read"], resumed["resumed"], resumed["turns"]) == (2, True, first["turns"])
    third = shell.document("replay", "project", "turns", "--out", "turns.sqlite", "--again")
    assert (third["read"], third["turns"]) == (3, first["turns"])
    assert str(failed.id).encode() in (shell.folder / "turns.sqlite").read_bytes()
    assert CANARY.encode() not in (shell.folder / "turns.sqlite").read_bytes()

    refused = shell.run("replay", "project", "llm_gateway.steps")
    assert refused.returncode == ExitCode.CONFLICT
    assert "takes work that calls a paid model" in refused.stderr
    assert shell.run("replay", "project", "nothing").returncode == ExitCode.USAGE


@pytest.mark.parametrize(
    "command",
    [
        ("dlq", "ls"),
        ("turns", "events", str(UUID(int=1))),
        ("keys", "ls"),
        ("archive", "run", "--older-than", "1"),
        ("migrate",),
    ],
    ids=" ".join,
)
def test_an_unreachable_database_is_named_with_how_to_start_it(
    shell: Shell, command: tuple[str, ...]
) -> None:
    variable = "DATABASE_URL" if command == ("migrate",) else "TURNWIRE_OPS__DATABASE_URL"
    done = shell.run(*command, **{variable: AWAY})
    assert done.returncode == ExitCode.NOT_READY
    assert "Postgres at 127.0.0.1:1 does not answer (Connection refused)" in done.stderr
    assert "`turnwire up`" in done.stderr
    assert variable in done.stderr
    assert "secret-word" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_that_cannot_be_used_is_told_from_one_that_is_away(
    shell: Shell, database: TestDatabase
) -> None:
    other = database.url_of("ops")
    cases = {
        other + "_of_nobody": "turns us away: database",
        database.url_of("llm_gateway"): "Use the role turnwire_ops.",
        with_database(database.admin_url, "postgres"): "Run `turnwire migrate`.",
        "postgresql:/secret-word@host": "is no URL of a Postgres database.",
    }
    for url, told in cases.items():
        done = shell.run("outbox", "status", TURNWIRE_OPS__DATABASE_URL=url)
        assert (done.returncode, done.stdout) == (ExitCode.NOT_READY, ""), done.stderr
        assert told in done.stderr
        assert "secret-word" not in done.stderr


def test_the_status_of_a_deployment_that_is_away_says_so_in_json_too(shell: Shell) -> None:
    done = shell.run("status", "--json", TURNWIRE_OPS__DATABASE_URL=AWAY)
    assert done.returncode == ExitCode.NOT_READY
    told = json.loads(done.stdout)
    assert told["deployment"] is None
    assert "Postgres at 127.0.0.1:1 does not answer" in told["deployment_error"]
    assert "secret-word" not in done.stdout + done.stderr


def test_an_unreachable_broker_is_named_with_how_to_start_it(shell: Shell) -> None:
    done = shell.run("reconcile", "--dry-run", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert done.returncode == ExitCode.NOT_READY
    assert "Kafka at 127.0.0.1:1 does not answer" in done.stderr
    assert "turnwire up" in done.stderr
    assert shell.run("reconcile").returncode == ExitCode.USAGE
    done = shell.run("topics", "apply", "--dry-run", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert done.returncode == ExitCode.NOT_READY
    assert "Kafka at 127.0.0.1:1 does not answer" in done.stderr
    assert "turnwire up" in done.stderr


def test_a_password_comes_from_a_file_as_well(shell: Shell, tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text(os.environ["TURNWIRE_OPS__DATABASE_URL"] + "\n")
    shell.patch.delenv("TURNWIRE_OPS__DATABASE_URL")
    done = shell.run("dlq", "ls", TURNWIRE_OPS__DATABASE_URL_FILE=str(secret))
    assert (done.returncode, done.stdout) == (ExitCode.OK, "There are no dead letters.\n")


def test_a_pipe_that_is_closed_early_is_no_traceback(shell: Shell) -> None:
    """The reader is gone before the first line is written."""
    reader, writer_end = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "services.ops", "config", "show"],
            env=shell.environment(),
            cwd=shell.folder,
            stdout=writer_end,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(writer_end)
    assert done.stderr == ""
    assert done.returncode == NOBODY_READS
