"""What takes long says so on a terminal, whatever it waits for, and nowhere else."""

import ast
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from services.ops.bars import SHOW_AFTER_S, Bar

ROOT = Path(__file__).parents[4]
TIMEOUT_S = 60
TURN = "01890000-0000-7000-8000-000000000001"
ANSWER = b'{"id": "of the gateway"}'
WITH_PROGRESS_OF_THEIR_OWN = {"_run_up", "smoke", "reached"}


@contextmanager
def slow_gateway(may_answer: threading.Event) -> Iterator[str]:
    """A gateway that answers when it may; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            may_answer.wait(TIMEOUT_S)
            self.send_response(200)
            self.send_header("Content-Length", str(len(ANSWER)))
            self.end_headers()
            self.wfile.write(ANSWER)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            may_answer.set()
            server.shutdown()
            thread.join()


def asking(url: str, *, stderr: int) -> subprocess.Popen[bytes]:
    """``turnwire turns show``, which has to wait for the gateway."""
    return subprocess.Popen(
        [sys.executable, "-m", "services.ops", "turns", "show", TURN, "--json", "--url", url],
        env={**os.environ, "TURNWIRE_API_KEY": "tw_key", "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


def test_a_wait_has_a_bar_on_a_terminal_and_none_in_a_pipe() -> None:
    assert SHOW_AFTER_S == 2.0
    may_answer = threading.Event()
    seen = b""
    terminal, end = pty.openpty()
    try:
        with slow_gateway(may_answer) as url:
            piped = asking(url, stderr=subprocess.PIPE)
            shown = asking(url, stderr=end)
            os.close(end)
            while f"Asking {url}".encode() not in seen:
                seen += os.read(terminal, 4096)  # ends with an error once the command has ended
            may_answer.set()
            out, _ = shown.communicate(timeout=TIMEOUT_S)
            told, silent = piped.communicate(timeout=TIMEOUT_S)
    finally:
        os.close(terminal)
    assert out == told == b'{\n  "id": "of the gateway"\n}\n'
    assert silent == b""
    assert (shown.returncode, piped.returncode) == (0, 0)


def test_a_bar_that_nobody_sees_only_counts(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("Reading", total=2)
    bar.advance(1)
    bar.stage("Comparing")
    bar.close()
    bar.show()  # the timer may come while the work ends
    assert capsys.readouterr().err == ""


def waits(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Functions of a module that wait for something, and whether it is inside a bar."""
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        under_bars = {
            id(inner)
            for block in ast.walk(function)
            if isinstance(block, ast.With) and "bar(" in ast.unparse(block.items[0])
            for inner in ast.walk(block)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.run":
                yield function.name, id(node) in under_bars


def test_every_command_that_waits_has_a_bar() -> None:
    found = [
        wait
        for path in sorted((ROOT / "services/ops/cli").glob("*.py"))
        for wait in waits(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(found) > 10
    assert {name for name, is_shown in found if not is_shown} == WITH_PROGRESS_OF_THEIR_OWN
