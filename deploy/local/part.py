"""What every server of the local stack can do, and the life cycle they share."""

import contextlib
import importlib
import importlib.util
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from deploy.local.child import Child, Launch, log_tail
from deploy.local.errors import PartFailed, PartUnavailable
from deploy.local.identity import ProcessIdentity
from deploy.local.ports import require_free
from deploy.local.waiting import until_async

Note = Callable[[str], None]  # takes one line for a person who waits


def silent(_line: str) -> None:
    """Drop a progress line."""


class Part(Protocol):
    """A server that can be started, stopped, killed and started again on the same port."""

    name: str

    @property
    def url(self) -> str:
        """Where clients reach it, credentials included."""
        ...

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        ...

    @property
    def log_path(self) -> Path:
        """The file that has its output; made by the first start."""
        ...

    async def start(self) -> str:
        """Start it, wait until it is ready, and return ``url``."""
        ...

    async def stop(self) -> None:
        """Ask it to end, and kill it after a bound. Idempotent."""
        ...

    async def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        ...

    async def restart(self) -> str:
        """``stop`` if it runs, then ``start`` with the data it has."""
        ...


class Server(ABC):
    """A ``Part`` that is one child process with one folder.

    Args:
        folder: Made with mode 0700; everything the server writes lies in it.
        port: On 127.0.0.1, the only address it listens on.
        note: Told one line whenever something takes longer than a start usually does.
    """

    name: str
    STOP_SIGNAL: signal.Signals = signal.SIGTERM
    STOP_BOUND_S: float = 10.0
    START_BOUND_S: float = 30.0

    def __init__(self, folder: Path, *, port: int, note: Note = silent) -> None:
        self.folder = folder.absolute()
        self.port = port
        self._note = note
        self._child: Child | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients reach it, credentials included."""

    @property
    def public_url(self) -> str:
        """Where it is, without credentials; fit for a log or a status line."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        return self._child.pid if self._child is not None and self._child.is_running() else None

    @property
    def identity(self) -> ProcessIdentity | None:
        """Its process in a form that can be recognised later; None while it does not run."""
        return self._child.identity if self._child is not None and self.pid else None

    @property
    def log_path(self) -> Path:
        """The file that has its output; made by the first start."""
        return self.folder / f"{self.name}.log"

    async def start(self) -> str:
        """Start the server and wait until it is ready. Does nothing if it runs.

        Raises:
            PartUnavailable: If its wheel is not installed.
            PortBusy: If somebody else listens on its port.
            PartFailed: If it ended or was not ready within ``START_BOUND_S``.
        """
        if self.pid is not None:
            return self.url
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._prepare()
        require_free(self.port, purpose=self.name)
        child = Child(self._launch())
        self._child = child
        try:
            await self._wait_until_ready(child)
        except BaseException:  # a cancelled start leaves nothing running either
            child.kill_now()
            raise
        return self.url

    async def stop(self) -> None:
        """End the server with its own signal, and kill it after ``STOP_BOUND_S``. Idempotent."""
        await self._end(self.STOP_SIGNAL)

    async def kill(self) -> None:
        """End the server with SIGKILL, as a crash would, and reap it. Idempotent."""
        if self._child is not None:
            await self._child.kill()

    async def restart(self) -> str:
        """Stop the server if it runs, and start it with the data it has."""
        await self.stop()
        return await self.start()

    def pause(self) -> None:
        """Stop the server's clock with SIGSTOP, as a frozen machine would."""
        if self._child is not None:
            self._child.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo ``pause``."""
        if self._child is not None:
            self._child.send(signal.SIGCONT)

    async def _end(self, number: signal.Signals) -> None:
        if self._child is not None:
            await self._child.end(number, bound_s=self.STOP_BOUND_S)

    async def _prepare(self) -> None:  # noqa: B027 -- a hook; the model needs no files
        """Make the files the server needs; runs before every start."""

    @abstractmethod
    def _launch(self) -> Launch:
        """How to start the process."""

    @abstractmethod
    async def _is_ready(self) -> bool:
        """Whether a client would be served now; bounds its own wait to a few seconds."""

    async def _wait_until_ready(self, child: Child) -> None:
        async def settled() -> bool:
            return not child.is_running() or await self._is_ready()

        in_time = await until_async(settled, timeout_s=self.START_BOUND_S)
        if child.is_running() and in_time:
            return
        if child.is_running():
            await child.kill()
            reason = f"was not ready after {self.START_BOUND_S:.0f} s"
        else:
            reason = f"ended with code {child.exit_code} before it was ready"
        raise PartFailed(
            f"{self.name} {reason}. The end of its log {self.log_path}:\n{log_tail(self.log_path)}"
        )


def base_environment() -> dict[str, str]:
    """What a server may know of our environment: where programs are, and no secret."""
    environment = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PATH": os.environ.get("PATH", os.defpath)}
    for name in ("HOME", "TMPDIR"):
        with contextlib.suppress(KeyError):
            environment[name] = os.environ[name]
    return environment


def local_module(name: str, *, instead: str) -> ModuleType | Any:
    """Import a wheel of the optional group ``local``, or say how to do without it.

    Args:
        instead: The environment variable that names an own server of this kind.

    Raises:
        PartUnavailable: If the wheel is not installed or does not load here.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PartUnavailable(
            f"The local stack needs the Python package {name}, which cannot be imported ({error}). "
            f"Install the dependency group `local`, or set {instead} to a server of your own."
        ) from error


def wheel_folder(name: str, *, instead: str) -> Path:
    """Where a wheel's package is, without importing it and what else it would import.

    Raises:
        PartUnavailable: If the wheel is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise PartUnavailable(
            f"The local stack needs the Python package {name}, which is not installed. Install the "
            f"dependency group `local`, or set {instead} to a server of your own."
        )
    return Path(spec.submodule_search_locations[0])


def module_environment() -> dict[str, str]:
    """As ``base_environment``, for a Python module of this repository run with ``-m``."""
    root = str(Path(__file__).parents[2])
    given = os.environ.get("PYTHONPATH")
    path = f"{root}{os.pathsep}{given}" if given else root
    return {**base_environment(), "PYTHONPATH": path}
