import os
import signal
import subprocess
import sys
from pathlib import Path

from deploy.local.child import Child, Launch
from deploy.local.identity import ProcessIdentity, children_of
from deploy.local.waiting import until

ROOT = Path(__file__).parents[3]


def python(code: str, log_path: Path) -> Launch:
    return Launch(command=(sys.executable, "-c", code), log_path=log_path, env={})


async def test_a_child_that_ignores_its_signal_is_killed_after_the_bound(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""
    child = Child(python(code, log))
    assert await until(lambda: log.read_text() == "up\n", timeout_s=10)

    await child.end(signal.SIGTERM, bound_s=0.3)

    assert child.exit_code == -signal.SIGKILL


async def test_a_child_sees_only_the_environment_it_was_given(tmp_path: Path) -> None:
    log = tmp_path / "log"
    launch = Launch(
        command=(sys.executable, "-c", "import os; print(os.environ.get('HOME'), os.environ['A'])"),
        log_path=log,
        env={"A": "1"},
    )
    assert await Child(launch).wait(timeout_s=10)
    assert log.read_text() == "None 1\n"


async def test_a_log_is_appended_to_and_private(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log"
    for word in ("first", "second"):
        assert await Child(python(f"print('{word}')", log)).wait(timeout_s=10)
    assert log.read_text() == "first\nsecond\n"
    assert log.stat().st_mode & 0o777 == 0o600


async def test_a_killed_child_takes_what_it_started_along(tmp_path: Path) -> None:
    code = "import subprocess,time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    child = Child(python(code, tmp_path / "log"))
    assert await until(lambda: bool(children_of(child.pid)), timeout_s=10)
    grandchild = ProcessIdentity.of(children_of(child.pid)[0])
    assert grandchild is not None

    await child.kill()

    assert await until(lambda: not grandchild.is_running(), timeout_s=5)


PARENT = """
import sys, time
from pathlib import Path
from deploy.local.child import Child, Launch
launch = Launch(command=("/bin/sleep", "60"), log_path=Path(sys.argv[1]), env={})
print(Child(launch).pid, flush=True)
time.sleep(60)
"""


def start_parent(log_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, log_path],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )


async def test_a_child_does_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    with start_parent(tmp_path / "log") as parent:
        assert parent.stdout is not None
        child = ProcessIdentity.of(int(parent.stdout.readline()))
        assert child is not None
        assert child.is_running()
        parent.kill()
    assert await until(lambda: not child.is_running(), timeout_s=5)


def test_a_recorded_identity_does_not_fit_another_process_with_that_id() -> None:
    here = ProcessIdentity.of(os.getpid())
    assert here is not None
    assert here.is_running()
    assert not ProcessIdentity(here.pid, here.started_ticks - 1).is_running()
