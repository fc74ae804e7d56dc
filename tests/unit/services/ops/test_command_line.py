"""The command line as a person or a script meets it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.ports import pick_port
from libs.catalogue import DEFAULT_PATH
from services.ops.__main__ import main
from services.ops.cli.command import split_everywhere
from services.ops.failures import ExitCode

ROOT = Path(__file__).parents[4]
TIMEOUT_S = 60
COMMANDS = (
    ("demo",),
    ("up",),
    ("down",),
    ("status",),
    ("doctor",),
    ("chat",),
    ("run",),
    ("migrate",),
    ("version",),
    ("topics", "apply"),
    ("turns", "show"),
    ("turns", "plan"),
    ("turns", "diff"),
    ("turns", "explain"),
    ("turns", "replay"),
    ("turns", "cancel"),
    ("turns", "events"),
    ("turns", "find"),
    ("turns", "ls"),
    ("turns", "end"),
    ("turns", "reap"),
    ("dlq", "ls"),
    ("dlq", "show"),
    ("dlq", "redrive"),
    ("outbox", "status"),
    ("outbox", "ls"),
    ("replay", "ls"),
    ("replay", "project"),
    ("reconcile",),
    ("archive", "run"),
    ("archive", "restore"),
    ("captures", "posture"),
    ("captures", "flag"),
    ("instructions", "show"),
    ("instructions", "set"),
    ("keys", "create"),
    ("keys", "ls"),
    ("keys", "revoke"),
    ("config", "show"),
    ("config", "check"),
)
SECRET = "not-to-be-shown"
NEEDED = {
    "TURNWIRE_DOOR_MASTER_KEY": f"{SECRET}-door",
    **{
        f"TURNWIRE_{name}__DATABASE_URL": f"postgresql://turnwire:{SECRET}@db.example/turnwire"
        for name in ("FRONTEND_GATEWAY", "INGESTION", "CONTEXT_ASSEMBLY", "LLM_GATEWAY", "OPS")
    },
}


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("TURNWIRE_", "LLM_")) or name in ("DATABASE_URL", "REDIS_URL"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_help_starts_with_examples(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == ExitCode.OK
    head, example, *_ = capsys.readouterr().out.splitlines()
    assert head == "Examples:"
    assert " ".join(("turnwire", *command)) in example


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("statsu",), "status"),
        (("keys", "crate"), "create"),
        (("dlq", "redirve"), "redrive"),
        (("reconsile",), "reconcile"),
    ],
)
def test_an_unknown_command_suggests_the_nearest(
    typed: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == ExitCode.USAGE
    printed = capsys.readouterr()
    assert f"Did you mean '{meant}'?" in printed.err
    assert printed.out == ""


def test_an_unknown_service_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "ingestoin"]) == ExitCode.USAGE
    assert "Did you mean ingestion?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--json", "version"), ("version", "--json")])
def test_json_may_stand_before_and_behind_a_command(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.OK
    assert set(json.loads(capsys.readouterr().out)) == {"turnwire", "python"}


def test_what_stands_behind_two_hyphens_is_left_alone() -> None:
    screen, rest = split_everywhere(["-q", "chat", "--", "--json", "-q"])
    assert (screen.quiet, screen.as_json) == (True, False)
    assert rest == ["chat", "--", "--json", "-q"]


def test_a_folder_where_nothing_runs_is_not_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "none"
    assert main(["status", "--data-dir", str(folder)]) == ExitCode.NOT_READY
    assert f"turnwire up --data-dir {folder}" in capsys.readouterr().out
    assert main(["status", "--json", "--data-dir", str(folder)]) == ExitCode.NOT_READY
    assert json.loads(capsys.readouterr().out)["ready"] is False
    assert not folder.exists()


def test_stopping_what_does_not_run_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["down", "--json", "--data-dir", str(tmp_path)]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == {"stopped": []}


@pytest.mark.usefixtures("bare_environment")
@pytest.mark.parametrize(
    ("arguments", "code", "variable"),
    [
        (["migrate"], ExitCode.NOT_READY, "DATABASE_URL"),
        (["keys", "ls"], ExitCode.NOT_READY, "TURNWIRE_OPS__DATABASE_URL"),
        (["archive", "run", "--older-than", "1"], ExitCode.NOT_READY, "TURNWIRE_OPS__DATABASE_URL"),
        (["chat"], ExitCode.USAGE, "TURNWIRE_API_KEY"),
    ],
)
def test_what_is_not_set_is_named(
    arguments: list[str],
    code: ExitCode,
    variable: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = [] if arguments == ["migrate"] else ["--data-dir", str(tmp_path / "none")]
    assert main([*arguments, *where]) == code
    assert variable in capsys.readouterr().err


@pytest.mark.usefixtures("bare_environment")
def test_a_busy_port_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], taken_port: int
) -> None:
    folder = tmp_path / "data"
    code = main(["up", "--data-dir", str(folder), "--port", str(taken_port)])
    assert code == ExitCode.CONFLICT
    error = capsys.readouterr().err
    assert f"Port {taken_port} is needed for the chat page" in error
    assert "--port" in error
    assert not folder.exists()


@pytest.mark.usefixtures("bare_environment")
def test_shown_settings_hold_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LLM_BASE_URL", f"https://user:{SECRET}@llm.example/v1")
    for arguments in (["config", "show"], ["config", "show", "--json"], ["config", "check"]):
        main([*arguments, "--data-dir", str(tmp_path / "none")])
        printed = capsys.readouterr()
        assert SECRET not in printed.out + printed.err
        assert printed.out


@pytest.mark.usefixtures("bare_environment")
def test_a_missing_setting_is_found_without_starting_a_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)
    where = ["--json", "--data-dir", str(tmp_path / "none")]
    assert main(["config", "check", *where]) == ExitCode.OK
    capsys.readouterr()
    monkeypatch.delenv("TURNWIRE_INGESTION__DATABASE_URL")
    assert main(["config", "check", *where]) == ExitCode.FAILED
    mistakes = json.loads(capsys.readouterr().out)["mistakes"]
    missing = "TURNWIRE_INGESTION__DATABASE_URL"
    assert [(m["service"], m["setting"]) for m in mistakes] == [("ingestion", missing)]
    assert main(["config", "check", "llm-gateway", *where]) == ExitCode.OK
    assert main(["config", "check", "ingestion", *where]) == ExitCode.FAILED
    assert main(["config", "check", "ingestoin", *where]) == ExitCode.USAGE
    assert "Did you mean ingestion?" in capsys.readouterr().err


@pytest.mark.usefixtures("bare_environment")
def test_the_database_to_migrate_may_be_named_by_a_file(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = pick_port()
    mounted = tmp_path / "database-url"
    monkeypatch.setenv("DATABASE_URL_FILE", str(mounted))
    assert main(["migrate"]) == ExitCode.NOT_READY
    assert "DATABASE_URL_FILE names a file that cannot be read" in capsys.readouterr().err
    mounted.write_text(f"postgresql://a:{SECRET}@127.0.0.1:{port}/t\n", encoding="utf-8")
    assert main(["migrate"]) == ExitCode.NOT_READY
    told = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in told
    assert SECRET not in told


def test_a_scope_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["keys", "create", "--tenant", "t", "--scope", "root"])
    assert code == ExitCode.USAGE
    assert "chat, read, admin" in capsys.readouterr().err


def test_nothing_heavy_is_loaded_before_a_command_needs_it() -> None:
    heavy = "{'psycopg', 'aiokafka', 'pydantic', 'httpx', 'asyncio', 'rich', 'structlog', 'yaml'}"
    script = f"import sys, services.ops.__main__ as m; m.build(); print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.usefixtures("bare_environment")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("TURNWIRE_INGESTON__DATABASE_URL", "TURNWIRE_INGESTION__DATABASE_URL"),
        ("TURNWIRE_LLM_GATEWAY__MAX_RUNING", "TURNWIRE_LLM_GATEWAY__MAX_RUNNING"),
        ("TURNWIRE_DOOR_MASTERKEY_FILE", "TURNWIRE_DOOR_MASTER_KEY_FILE"),
        ("TURNWRE_INGESTION__QUEUE_DEPTH", "TURNWIRE_INGESTION__QUEUE_DEPTH"),
        ("KAFKA_BOOTSTRAP_SERVER", "KAFKA_BOOTSTRAP_SERVERS"),
        ("LLM_MODLE", "LLM_MODEL"),
        ("OTEL_EXPORTER_OTLP_ENPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ],
)
def test_a_misspelt_variable_is_found_and_the_right_one_suggested(
    written: str,
    meant: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TURNWIRE_FAILPOINT", "x:1:exit")  # is read, though it is no setting
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "x")  # a library reads it
    monkeypatch.setenv("REDIS_TLS_URL", "x")  # somebody else's
    monkeypatch.setenv("TURNWIRE_MODELS_FILE", str(DEFAULT_PATH))  # a setting, not a file of one
    monkeypatch.setenv(written, SECRET)
    arguments = ["config", "check", "--data-dir", str(tmp_path / "none")]

    assert main(arguments) == ExitCode.FAILED
    printed = capsys.readouterr().out
    assert f"did you mean {meant}?" in printed
    assert SECRET not in printed
    assert main([*arguments, "--json"]) == ExitCode.FAILED
    told = json.loads(capsys.readouterr().out)
    assert [one["variable"] for one in told["unread"]] == [written]
    assert told["mistakes"] == []

    monkeypatch.delenv(written)
    assert main(arguments) == ExitCode.OK
