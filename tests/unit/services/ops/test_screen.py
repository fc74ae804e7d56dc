"""What is printed is exact, and nothing in it can move a cursor."""

import io

import pytest

from services.ops.failures import CommandFailed, ExitCode
from services.ops.screen import Screen, duration, harmless, painted, table, width_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0304, "30.4 ms"),
        (0.5, "500 ms"),
        (1.2345, "1.23 s"),
        (59.9, "59.9 s"),
        (61, "1 min 1 s"),
        (3_720, "1 h 2 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_has_three_significant_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_table_has_two_spaces_between_columns_and_numbers_at_the_right() -> None:
    assert table(("name", "port"), [("kafka", "9092"), ("日本", "80")], numbers=("port",)) == [
        "name   port",
        "-----  ----",
        "kafka  9092",
        "日本     80",
    ]


def test_a_table_without_rows_is_its_header() -> None:
    assert table(("name", "port"), []) == ["name  port", "----  ----"]


def test_colours_take_no_width() -> None:
    assert width_of("\x1b[32mready\x1b[0m") == 5


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert painted("ready", "ok", on=Terminal()) == "\x1b[32mready\x1b[0m"
    assert painted("ready", "ok", on=io.StringIO()) == "ready"
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted("ready", "ok", on=Terminal()) == "ready"


def test_an_answer_cannot_move_the_cursor() -> None:
    assert harmless("a\x1b[2Jb\rc\x9b1md\te\nf") == "a�[2Jb�c�1md\te\nf"


def test_results_go_to_stdout_and_messages_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.say("working")
    screen.result({"a": 1}, ["a is 1"])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("a is 1\n", "working\n")


def test_a_quiet_run_says_results_and_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(quiet=True, as_json=True)
    screen.say("working")
    screen.result({"a": "ä"}, ["a"])
    screen.fail("It broke.")
    printed = capsys.readouterr()
    assert printed.out == '{\n  "a": "ä"\n}\n'
    assert printed.err == "Error: It broke.\n"


def test_where_nobody_can_be_asked_a_dangerous_act_needs_yes() -> None:
    with pytest.raises(CommandFailed, match="--yes") as failed:
        Screen(no_input=True).confirm("Revoke?", yes=False)
    assert failed.value.exit_code is ExitCode.USAGE
    Screen(no_input=True).confirm("Revoke?", yes=True)
