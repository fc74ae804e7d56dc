"""Turnwire on one machine: started, found, refused twice, stopped, and started with all it had."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.identity import start_ticks
from deploy.local.ports import pick_port
from services.ops.failures import ExitCode

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
COMMAND_BOUND_S = 60
LOOKS = 5
# No turn is asked for, so the model is only named.
ENVIRONMENT = {"LLM_BASE_URL": "http://127.0.0.1:9/v1", "PATH": os.environ["PATH"]}


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "services.ops", *arguments, "--json", "--data-dir", str(folder)]


def asked(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        command(folder, *arguments),
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=COMMAND_BOUND_S,
        check=False,
    )


def well(folder: Path) -> dict[str, Any]:
    """What ``status`` says once all is well; on a busy machine a part may miss one look."""
    status: dict[str, Any] = {}
    for _ in range(LOOKS):
        status = json.loads(asked(folder, "status").stdout)
        if status["ready"]:
            break
    return status


@contextmanager
def running(
    folder: Path, port: int, *, end_with: signal.Signals | None
) -> Iterator[dict[str, Any]]:
    """What ``up`` prints once it is ready; it ends with a signal, or by whoever uses it."""
    with subprocess.Popen(
        command(folder, "up", "--port", str(port)),
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield _first_document(process)
            if end_with is not None:
                process.send_signal(end_with)
            assert process.wait(COMMAND_BOUND_S) == ExitCode.OK
        finally:
            process.terminate()
            process.communicate(timeout=COMMAND_BOUND_S)


def _first_document(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:  # ends with the process, whose start is bounded
        lines.append(line)
        if line == "}\n":
            document: dict[str, Any] = json.loads("".join(lines))
            return document
    assert process.stderr is not None
    pytest.fail(f"up ended before it was ready:\n{process.stderr.read()}")


def test_up_keeps_everything_over_a_stop_and_leaves_nothing_running(tmp_path: Path) -> None:
    folder, port = tmp_path / "data", pick_port()
    with running(folder, port, end_with=signal.SIGINT) as address:
        key = Path(address["key_path"]).read_text(encoding="utf-8").strip()
        assert Path(address["key_path"]).stat().st_mode & 0o777 == 0o600
        assert key not in json.dumps(address)
        client = {"base_url": address["url"], "headers": {"Authorization": f"Bearer {key}"}}
        with httpx.Client(**client, trust_env=False, timeout=COMMAND_BOUND_S) as gateway:
            made = gateway.post("/v1/conversations", json={"title": "kept"}).json()

        again = asked(folder, "up", "--port", str(port))
        assert again.returncode == ExitCode.CONFLICT
        assert "already runs" in again.stderr
        elsewhere = asked(tmp_path / "other", "up", "--port", str(port))
        assert elsewhere.returncode == ExitCode.CONFLICT
        assert f"Port {port} is needed for the chat page" in elsewhere.stderr

        status = well(folder)
        assert status["ready"] is True
        assert {part["health"] for part in status["parts"]} == {"ready", "given"}
        processes = [part["pid"] for part in status["parts"] if part["pid"]]
        assert len(processes) == 7
        doctor = json.loads(asked(folder, "doctor").stdout)
        assert [f["name"] for f in doctor["findings"] if f["verdict"] == "fail"] == ["model"]

    assert [pid for pid in processes if start_ticks(pid) is not None] == []

    with running(folder, port, end_with=None) as address:
        assert Path(address["key_path"]).read_text(encoding="utf-8").strip() == key
        assert address["key_is_new"] is False
        with httpx.Client(**client, trust_env=False, timeout=COMMAND_BOUND_S) as gateway:
            listed = gateway.get("/v1/conversations").json()["data"]
        assert [row["id"] for row in listed] == [made["id"]]
        stopped = asked(folder, "down")
        assert stopped.returncode == ExitCode.OK
        assert len(json.loads(stopped.stdout)["stopped"]) == 7
