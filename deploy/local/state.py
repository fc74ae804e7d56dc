"""What runs in a data folder, written for ``turnwire status`` and ``turnwire down``."""

import fcntl
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from deploy.local.credentials import LOCK_NAME
from deploy.local.errors import StackAlreadyRunning
from deploy.local.identity import ProcessIdentity, boot_id
from deploy.local.private_files import write_private
from deploy.local.waiting import until

OWNER_BOUND_S = 60.0  # the owner stops services and four parts in order, each within its own bound
LEFTOVER_BOUND_S = 20.0  # a Kafka that flushes its logs takes the longest
KILLED_BOUND_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process of a stack, or a part that was given by a URL.

    Attributes:
        url: Where it is reached; holds no password.
        identity: None for a part that was given.
        log_path: None for a part that was given.
    """

    name: str
    url: str
    identity: ProcessIdentity | None
    log_path: str | None

    @property
    def external(self) -> bool:
        """Whether it was given by a URL, so that nobody here started it."""
        return self.log_path is None


@dataclass(frozen=True, slots=True)
class StackState:
    """The content of ``stack.json``.

    Attributes:
        boot: The boot in which it was written; after another one no entry runs any more.
        owner: The process that started the stack and stops it.
        started_at: ISO 8601, UTC.
    """

    boot: str
    owner: ProcessIdentity
    started_at: str
    parts: Sequence[ProcessEntry] = ()
    services: Sequence[ProcessEntry] = field(default=())

    def owner_is_running(self) -> bool:
        """Whether the process that owns the stack is alive; false after a reboot."""
        return self.boot == boot_id() and self.owner.is_running()

    def is_running(self, entry: ProcessEntry) -> bool:
        """Whether the very process of an entry is alive; false after a reboot."""
        return self.boot == boot_id() and entry.identity is not None and entry.identity.is_running()

    def running(self) -> list[ProcessEntry]:
        """The entries whose processes are alive; services first, the order in which to stop."""
        return [entry for entry in (*self.services, *self.parts) if self.is_running(entry)]


def state_path(data_dir: Path) -> Path:
    """The file that holds a data folder's state."""
    return data_dir / "stack.json"


def write_state(data_dir: Path, state: StackState) -> None:
    """Write the file, whole or not at all."""
    write_private(state_path(data_dir), json.dumps(asdict(state), indent=2) + "\n")


def read_state(data_dir: Path) -> StackState | None:
    """What was last written; None if nothing was, or not by this version.

    It may be stale: ask ``owner_is_running`` and ``running``.
    """
    try:
        raw = json.loads(state_path(data_dir).read_text())
        return StackState(
            boot=raw["boot"],
            owner=ProcessIdentity(**raw["owner"]),
            started_at=raw["started_at"],
            parts=tuple(_entry(part) for part in raw["parts"]),
            services=tuple(_entry(service) for service in raw["services"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _entry(raw: dict[str, object]) -> ProcessEntry:
    identity = raw["identity"]
    return ProcessEntry(
        name=str(raw["name"]),
        url=str(raw["url"]),
        identity=ProcessIdentity(**identity) if isinstance(identity, dict) else None,
        log_path=None if raw["log_path"] is None else str(raw["log_path"]),
    )


@contextmanager
def exclusive(data_dir: Path) -> Iterator[None]:
    """Hold a data folder for one stack; the kernel lets go of it however the process ends.

    Raises:
        StackAlreadyRunning: If another process holds it.
    """
    path = data_dir / LOCK_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = path.read_text().strip() or "unknown"
            raise StackAlreadyRunning(
                f"A stack already runs on {data_dir} (process {who}). Use it as it is, stop it "
                f"with `turnwire down --data-dir {data_dir}`, or choose another --data-dir."
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


async def stop_recorded(data_dir: Path) -> list[ProcessEntry]:
    """Stop what ``stack.json`` names: its owner first, which stops the rest, then what is left.

    Returns:
        What ran when it was called; empty if there was nothing to stop.
    """
    state = read_state(data_dir)
    if state is None:
        return []
    ran = state.running()
    if state.owner_is_running() and state.owner.pid != os.getpid():
        _signal(state.owner, signal.SIGTERM)
        await until(lambda: not state.owner_is_running(), timeout_s=OWNER_BOUND_S)
    await stop_leftovers(state)
    return ran


async def stop_leftovers(state: StackState) -> None:
    """End the processes of a stack whose owner is gone without having stopped them."""
    for number, bound_s in ((signal.SIGINT, LEFTOVER_BOUND_S), (signal.SIGKILL, KILLED_BOUND_S)):
        for entry in state.running():
            if entry.identity is not None:
                # SIGINT: all of ours end at it, and Postgres without waiting for its clients.
                _signal(entry.identity, number)
        if await until(lambda: not state.running(), timeout_s=bound_s):
            return


def _signal(identity: ProcessIdentity, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(identity.pid, number)
