"""The commands about plans, instructions and captures: what they ask, say, and end with."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from services.ops.__main__ import main
from services.ops.failures import ExitCode

TURN = "01890000-0000-7000-8000-000000000001"
OTHER = "01890000-0000-7000-8000-000000000002"
DIFF: dict[str, Any] = {
    "turn_id": TURN,
    "against": OTHER,
    "is_healthy": True,
    "line": "Healthy: exactly the earlier answer and the new message were added.",
    "added": [TURN, OTHER],
    "vanished": [],
}
ABSENT: dict[str, Any] = {
    "verdict": "absent",
    "reason": "budget",
    "section": "history",
    "message_id": OTHER,
    "budget": {"before": 4_000, "used": 3_990, "after": 10},
    "also_in": [],
}
PRESENT: dict[str, Any] = {
    **ABSENT,
    "verdict": "present",
    "block": 3,
    "to_block": 3,
    "of": 9,
    "token_offset": 1_200,
    "of_tokens": 5_000,
    "trust": "user",
}
REPLAY: dict[str, Any] = {
    "step_no": 1,
    "equal": True,
    "fingerprint_sent": "f00",
    "fingerprint_now": "f00",
    "changed": [],
}
TOLD: dict[str, Any] = {
    "workspace": {"text": "Be brief.\x1b[2J", "version": 3},
    "system_policy": None,
}


@dataclass
class Gateway:
    """Answers everything with one document, and remembers what was asked."""

    answer: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    gateway = Gateway()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            gateway.asked.append((self.command, self.path, json.loads(raw) if raw else None))
            body = json.dumps(gateway.answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = _serve  # noqa: N815 -- names of the base class

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        gateway.url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("TURNWIRE_URL", gateway.url)
        monkeypatch.setenv("TURNWIRE_API_KEY", "tw_key")
        yield gateway
        server.shutdown()
        thread.join()


def test_a_healthy_difference_is_one_line(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answer = DIFF

    assert main(["turns", "diff", TURN, "--against", OTHER, "--step", "2"]) == ExitCode.OK

    path = f"/v1/turns/{TURN}/plan/diff?against={OTHER}&step=2"
    assert gateway.asked == [("GET", path, None)]
    assert capsys.readouterr().out.splitlines()[0] == f"ok  {DIFF['line']}"


def test_an_unhealthy_difference_has_an_exit_code_of_its_own(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = {"id": OTHER, "reason": "budget"}
    gateway.answer = {**DIFF, "is_healthy": False, "line": "1 vanished.", "vanished": [gone]}

    assert main(["turns", "diff", TURN]) == ExitCode.INVARIANT

    assert f"vanished  {OTHER} (budget)" in capsys.readouterr().out


def test_what_is_absent_is_explained_with_the_budget_of_that_time(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answer = ABSENT

    assert main(["turns", "explain", TURN, "the ferry"]) == ExitCode.OK

    assert gateway.asked == [("POST", f"/v1/turns/{TURN}/explain", {"text": "the ferry"})]
    out = capsys.readouterr().out
    assert "absent  budget, section history" in out
    assert "history: 4,000 tokens open, 3,990 used, 10 left" in out


def test_what_is_present_is_told_with_its_place(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answer = PRESENT

    assert main(["turns", "explain", TURN, "--message", OTHER]) == ExitCode.OK

    assert gateway.asked[0][2] == {"message_id": OTHER}
    assert "block 3 of 9, token 1,200 of 5,000, trust user" in capsys.readouterr().out


def test_a_text_over_several_blocks_is_told_from_the_first_to_the_last(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answer = {**PRESENT, "to_block": 5}

    assert main(["turns", "explain", TURN, "one\ntwo", "--step", "2"]) == ExitCode.OK

    assert gateway.asked[0][2] == {"text": "one\ntwo", "step": 2}
    assert "blocks 3 to 5 of 9, token 1,200" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [[], ["a text", "--message", OTHER]])
def test_a_text_or_a_message_is_explained_never_both(
    gateway: Gateway, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["turns", "explain", TURN, *wrong]) == ExitCode.USAGE
    assert gateway.asked == []
    assert "not both" in capsys.readouterr().err


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_replay_that_differs_has_an_exit_code_of_its_own(
    gateway: Gateway, is_equal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = [] if is_equal else [{"id": OTHER, "why": "text_changed"}]
    gateway.answer = {**REPLAY, "equal": is_equal, "changed": changed}

    code = main(["turns", "replay", TURN])

    assert code == (ExitCode.OK if is_equal else ExitCode.INVARIANT)
    assert (f"text_changed  {OTHER}" in capsys.readouterr().out) is not is_equal


def test_a_turn_is_cancelled_by_its_id(gateway: Gateway) -> None:
    names = ("id", "conversation_id", "user_message_id", "assistant_message_id")
    gateway.answer = {**dict.fromkeys(names, TURN), "seq": 1, "status": "generating"}

    assert main(["turns", "cancel", TURN]) == ExitCode.OK
    assert gateway.asked == [("POST", f"/v1/turns/{TURN}/cancel", None)]


def test_a_text_is_set_from_a_file_and_shown_without_control_characters(
    gateway: Gateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.answer = TOLD
    file = tmp_path / "workspace.txt"
    file.write_text("Be brief.\n")

    arguments = ["workspace", "--file", str(file), "--conversation", OTHER]
    assert main(["instructions", "set", *arguments]) == ExitCode.OK

    path = f"/v1/conversations/{OTHER}/instructions"
    assert gateway.asked == [("PUT", path, {"workspace": "Be brief."})]
    out = capsys.readouterr().out
    assert "workspace, version 3" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["instructions", "set", "policy", "--file", "x"],
        ["instructions", "set", "system_policy", "--file", "x", "--conversation", OTHER],
        ["instructions", "set", "workspace", "--file", "not-there.txt"],
        ["captures", "posture", "all"],
        ["captures", "posture", "none", "--sample", "5", "--yes"],
        ["captures", "posture", "none", "--no-input"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_asks_for_nothing(gateway: Gateway, arguments: list[str]) -> None:
    assert main(arguments) == ExitCode.USAGE
    assert gateway.asked == []


def test_what_is_kept_is_chosen_for_the_tenant_and_for_a_conversation(gateway: Gateway) -> None:
    assert main(["captures", "posture", "failures", "--sample", "10"]) == ExitCode.OK
    assert main(["captures", "posture", "none", "--yes"]) == ExitCode.OK
    assert main(["captures", "flag", OTHER, "--off"]) == ExitCode.OK

    assert gateway.asked == [
        ("PUT", "/v1/capture", {"posture": "failures", "sampled_per_mille": 10}),
        ("PUT", "/v1/capture", {"posture": "none", "sampled_per_mille": 0}),
        ("PUT", f"/v1/conversations/{OTHER}/capture", {"enabled": False}),
    ]
