"""One child process: logs to a file, is ended by its id, and never outlives its parent."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deploy.local.errors import PartFailed
from deploy.local.identity import ProcessIdentity
from deploy.local.waiting import until

KILL_BOUND_S = (
    10.0  # the kernel takes milliseconds; a process stuck in I/O on a bad disk takes longer
)
TAIL_BYTES = 2_000  # of a log, shown when a start fails: the last twenty lines or so
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Account:
    """A user to run a child as; only root can."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a child.

    Attributes:
        env: The whole environment of the child, nothing is inherited.
        death_signal: Sent by the kernel when the parent ends without having stopped the child.
    """

    command: Sequence[str]
    log_path: Path
    env: Mapping[str, str]
    cwd: Path | None = None
    account: Account | None = None
    death_signal: signal.Signals = signal.SIGTERM


class Child:
    """A running child process in a session of its own; not started is ``PartFailed``.

    A session of its own, because Ctrl-C on the terminal must reach the parent alone, which then
    stops its children in order. Start it from the main thread: the kernel takes the end of the
    starting thread for the end of the parent.
    """

    def __init__(self, launch: Launch) -> None:
        self._process = _popen(launch)
        self.log_path = launch.log_path
        self.identity = ProcessIdentity.of(self._process.pid)

    @property
    def pid(self) -> int:
        """The id; it cannot mean another process before this object has seen the end."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while running; minus the signal's number if a signal ended it. Reaps."""
        return self._process.poll()

    def is_running(self) -> bool:
        """Whether the process has not ended; a stopped one has not."""
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        self._process.send_signal(number)

    async def wait(self, *, timeout_s: float) -> bool:
        """Whether the process ended, and was reaped, within ``timeout_s``."""
        return await until(lambda: not self.is_running(), timeout_s=timeout_s)

    async def end(self, number: signal.Signals, *, bound_s: float) -> None:
        """Ask the process to end with a signal, and kill it after ``bound_s``. Idempotent."""
        if self.is_running():
            self.send(number)
            self.send(signal.SIGCONT)  # a stopped process takes no other signal
            if await self.wait(timeout_s=bound_s):
                return
        await self.kill()

    async def kill(self) -> None:
        """End the process and what it started in its session with SIGKILL, and reap it."""
        self.kill_now()
        await self.wait(timeout_s=KILL_BOUND_S)

    def kill_now(self) -> None:
        """As ``kill``, without waiting for the end: for the way out of a cancelled start."""
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def log_tail(path: Path) -> str:
    """The end of a log, for an error's text."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            return log.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _popen(launch: Launch) -> subprocess.Popen[bytes]:
    account = launch.account
    try:
        with os.fdopen(_open_log(launch.log_path), "ab") as log:
            return subprocess.Popen(  # noqa: S603 -- commands are ours, no shell
                list(launch.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=launch.cwd,
                env=dict(launch.env),
                start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
                # Runs between fork and exec; it only makes two system calls.
                preexec_fn=_die_with_parent(launch.death_signal),  # noqa: PLW1509
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise PartFailed(
            f"{launch.command[0]} could not be started: {error}. See that the file is there and "
            "may be executed, and that the disk is not full."
        ) from error


def _open_log(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # loaded here: nothing is loaded after fork
    return partial(_ask_for_signal, prctl, number.value, os.getpid())


def _ask_for_signal(prctl: Callable[[int, int], int], number: int, parent_pid: int) -> None:
    prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:  # the parent ended in between, and no signal will come
        os._exit(1)
