"""The services as processes of this machine: started, awaited, killed and brought back."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import MappingProxyType

from deploy.local.child import Launch
from deploy.local.errors import LocalStackError
from deploy.local.part import Note, Server, module_environment, silent
from deploy.local.ports import pick_port
from deploy.local.state import ProcessEntry
from deploy.local.waiting import http_status

WATCH_S = 0.2  # how soon an ended process is noticed
FIRST_PAUSE_S = 0.5  # before the first restart; doubled for each further one
LONGEST_PAUSE_S = 10.0
STEADY_S = 30.0  # after this long up, a process counts as healthy and its pause starts over
_HTTP_OK = 200


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A service process to run.

    Attributes:
        name: The service's folder; the process is ``python -m services.<name>``.
        env: Its settings. Nothing else is inherited but ``PATH`` and the like. Without
            ``TURNWIRE_<NAME>__OPS_PORT`` a port is picked.
        index: Tells several processes of one service apart.
        module: Run instead of ``services.<name>``, for a process that is no service of ours.
    """

    name: str
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    index: int = 0
    module: str = ""

    @property
    def label(self) -> str:
        """Names the process in logs and states, such as ``ingestion-0``."""
        return f"{self.name}-{self.index}"

    @property
    def ops_port_variable(self) -> str:
        """The setting that tells the service where to answer for its health."""
        return f"TURNWIRE_{self.name.upper()}__OPS_PORT"


class ServiceProcess(Server):
    """One service process; ready when its ``/readyz`` says so.

    Killing and pausing it are those of every ``Server``. Its port is the ops port.
    """

    START_BOUND_S = 60.0  # imports take 1 s of CPU, and several services start on two cores
    STOP_BOUND_S = 30.0  # a service drains what it is doing for at most 20 s

    def __init__(self, spec: ServiceSpec, *, log_folder: Path, note: Note = silent) -> None:
        given = spec.env.get(spec.ops_port_variable)
        super().__init__(log_folder, port=int(given) if given else pick_port(), note=note)
        self.name = spec.label
        self.spec = spec
        self.env: Mapping[str, str] = spec.env
        self.is_wanted = False  # whether somebody who keeps it alive should

    @property
    def url(self) -> str:
        """Where it answers for its health, metrics included."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def public_url(self) -> str:
        """The same."""
        return self.url

    @property
    def entry(self) -> ProcessEntry:
        """Its line in ``stack.json``."""
        return ProcessEntry(self.name, self.url, self.identity, str(self.log_path))

    async def start(self) -> str:
        """Start it and wait for ``/readyz``; see ``Server.start``."""
        self.is_wanted = True
        return await super().start()

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after the bound; it stays stopped."""
        self.is_wanted = False
        await super().stop()

    async def restart(self, *, env: Mapping[str, str] | None = None) -> str:
        """Stop it if it runs and start it on the same ports.

        Args:
            env: Replaces its settings from now on, for instance without a fail point.
        """
        if env is not None:
            self.env = env
        return await super().restart()

    async def is_ready(self) -> bool:
        """Whether ``/readyz`` answers 200 now."""
        return await self._is_ready()

    def exit_code(self) -> int | None:
        """None while it runs or before it first ran; minus the signal that ended it, if one did."""
        return self._child.exit_code if self._child is not None else None

    def _launch(self) -> Launch:
        own = {self.spec.ops_port_variable: str(self.port)}
        return Launch(
            command=(sys.executable, "-m", self.spec.module or f"services.{self.spec.name}"),
            log_path=self.log_path,
            env={**module_environment(), **self.env, **own},
            cwd=self.folder,
            death_signal=signal.SIGTERM,
        )

    async def _is_ready(self) -> bool:
        return await http_status(self.port, "/readyz") == _HTTP_OK


class Supervisor:
    """Several service processes, kept together.

    Args:
        log_folder: Gets one file for every process.
        keep_alive: Start a process again, after a growing pause, when it ends by itself.
        note: Told one line about every restart.
        changed: Called after processes came, went or came back, to record ``entries``.
    """

    def __init__(
        self,
        log_folder: Path,
        *,
        keep_alive: bool = False,
        note: Note = silent,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._log_folder = log_folder
        self._keep_alive = keep_alive
        self._note = note
        self._changed = changed
        self._processes: dict[tuple[str, int], ServiceProcess] = {}
        self._watches: list[asyncio.Task[None]] = []

    @property
    def processes(self) -> Sequence[ServiceProcess]:
        """All processes, in the order in which they were added."""
        return tuple(self._processes.values())

    @property
    def entries(self) -> Sequence[ProcessEntry]:
        """Their lines for ``stack.json``."""
        return tuple(process.entry for process in self.processes)

    def process(self, name: str, index: int = 0) -> ServiceProcess:
        """One process by its service and index.

        Raises:
            LocalStackError: If there is none.
        """
        try:
            return self._processes[name, index]
        except KeyError:
            known = ", ".join(process.name for process in self.processes) or "none"
            raise LocalStackError(
                f"No process {name}-{index} was started; there are: {known}."
            ) from None

    async def start(self, specs: Sequence[ServiceSpec]) -> None:
        """Start processes side by side and wait until each is ready. All or none.

        Raises:
            LocalStackError: If one did not become ready; the ones of this call were stopped again.
        """
        added = [ServiceProcess(spec, log_folder=self._log_folder) for spec in specs]
        for process in added:
            if (process.spec.name, process.spec.index) in self._processes:
                raise LocalStackError(f"{process.name} was started before; give it another index.")
            self._processes[process.spec.name, process.spec.index] = process
        results = await asyncio.gather(
            *(process.start() for process in added), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            for process in added:
                await process.stop()
                del self._processes[process.spec.name, process.spec.index]
            raise failures[0]
        if self._keep_alive:
            self._watches += [asyncio.create_task(self._watch(process)) for process in added]
        self._changed()

    async def stop(self) -> None:
        """Stop all processes at once and wait for their ends. Idempotent."""
        for watch in self._watches:
            watch.cancel()
        for watch in self._watches:
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        self._watches = []
        await asyncio.gather(*(process.stop() for process in self.processes))
        self._processes = {}

    async def _watch(self, process: ServiceProcess) -> None:
        """Bring one process back whenever it ends without having been stopped."""
        pause_s, up_since = FIRST_PAUSE_S, monotonic()
        while True:
            await asyncio.sleep(WATCH_S)
            if process.pid is not None or not process.is_wanted:
                continue
            if monotonic() - up_since >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            self._note(
                f"{process.name} ended with code {process.exit_code()}; it starts again in "
                f"{pause_s:.1f} s; its log: {process.log_path}"
            )
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
            try:
                await process.start()
            except LocalStackError as error:
                self._note(f"{process.name} did not come back: {error}")
            up_since = monotonic()
            self._changed()
