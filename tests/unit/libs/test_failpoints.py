"""Fail points are off by default, and one armed point kills the process at the named time."""

import signal
import subprocess
import sys

SCRIPT = """
from libs.failpoints import failpoint
for n in range(1, 4):
    failpoint("llm.after_delta")
    failpoint("llm.after_accept")
    print(n, flush=True)
"""


def run(specification: str | None) -> subprocess.CompletedProcess[str]:
    environment = {} if specification is None else {"TURNWIRE_FAILPOINT": specification}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_nothing_happens_where_nothing_is_armed() -> None:
    done = run(None)

    assert (done.returncode, done.stdout.split()) == (0, ["1", "2", "3"])


def test_the_process_dies_the_second_time_it_is_there() -> None:
    done = run("llm.after_delta:2:exit")

    assert (done.returncode, done.stdout.split()) == (-signal.SIGKILL, ["1"])


def test_a_misspelt_point_stops_the_start() -> None:
    done = run("llm.after_dleta:1:exit")

    assert done.returncode == 1
    assert "llm.after_delta" in done.stderr
