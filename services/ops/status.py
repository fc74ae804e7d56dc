"""What runs in a data folder: parts and services with process, port, uptime, health and log."""

import asyncio
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deploy.local.state import ProcessEntry, StackState
from deploy.local.waiting import http_status
from libs.errors import ChatError
from services.ops.data_folder import DataFolder
from services.ops.failures import CommandFailed
from services.ops.operations import opened_operations
from services.ops.screen import Screen, duration, table

HTTP_OK = 200
ACCEPT_S = 5.0  # of a server on this machine; it takes a millisecond where nothing else runs


@dataclass(frozen=True, slots=True)
class Running:
    """One part or service.

    Attributes:
        health: ``ready``, ``not ready``, ``ended`` or, of a part that was given, ``given``.
    """

    kind: str
    name: str
    health: str
    pid: int | None
    port: int | None
    uptime_s: float | None
    log: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """The state of one data folder."""

    data_dir: str
    url: str | None
    started_at: str | None
    parts: tuple[Running, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether it runs, and everything that belongs to it is well."""
        return bool(self.parts) and all(p.health in ("ready", "given") for p in self.parts)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"ready": self.is_ready, **asdict(self)}


async def status_of(folder: DataFolder) -> Status:
    """Look at the processes that a data folder names."""
    state = folder.state
    if state is None or not state.owner_is_running():
        return Status(str(folder.path), folder.url, None)
    found = [await _running("part", entry, state) for entry in state.parts]
    found += [await _running("service", entry, state) for entry in state.services]
    return Status(str(folder.path), folder.url, state.started_at, tuple(found))


def is_named() -> bool:
    """Whether the environment names a deployment's database."""
    name = "TURNWIRE_OPS__DATABASE_URL"
    return bool(os.environ.get(name) or os.environ.get(f"{name}_FILE"))


async def deployment_of(data_dir: Path) -> tuple[dict[str, Any] | None, str]:
    """The figures of the deployment; without a database None, and why."""
    try:
        async with opened_operations(data_dir) as operations:
            return await operations.reads.overview(), ""
    except (CommandFailed, ChatError) as error:
        return None, f"No figures of the deployment: {error}"


def status_lines(screen: Screen, status: Status) -> list[str]:
    """The answer first, then the table, then what to do next."""
    if status.started_at is None:
        return [
            f"Nothing runs in {status.data_dir}.",
            f"Start it with `turnwire up --data-dir {status.data_dir}`.",
        ]
    well = sum(1 for p in status.parts if p.health in ("ready", "given"))
    rows = [
        (
            p.name,
            screen.state(p.health),
            "" if p.pid is None else str(p.pid),
            "" if p.port is None else str(p.port),
            "" if p.uptime_s is None else duration(p.uptime_s),
            p.log or "",
        )
        for p in status.parts
    ]
    numbers = ("process", "port", "uptime")
    return [
        f"{well} of {len(status.parts)} parts and services are ready at {status.url}/ui/",
        "",
        *table(("name", "health", "process", "port", "uptime", "log"), rows, numbers=numbers),
        "",
        "Stop it with `turnwire down`."
        if status.is_ready
        else "Read the log of what is not ready, then run `turnwire doctor`.",
    ]


async def _running(kind: str, entry: ProcessEntry, state: StackState) -> Running:
    port = _port_of(entry.url)
    pid = entry.identity.pid if entry.identity is not None else None
    started = entry.identity.started_ticks if entry.identity is not None else None
    uptime_s = None
    if entry.external:
        health = "given"
    elif not state.is_running(entry):
        health, pid = "ended", None
    else:
        uptime_s = None if started is None else _uptime_s(started)
        health = await _health(kind, port)
    return Running(kind, entry.name, health, pid, port, uptime_s, entry.log_path)


async def _health(kind: str, port: int | None) -> str:
    if port is None:
        return "not ready"
    if kind == "part":
        return "ready" if await _accepts(port) else "not ready"
    return "ready" if await http_status(port, "/readyz") == HTTP_OK else "not ready"


async def _accepts(port: int) -> bool:
    try:
        async with asyncio.timeout(ACCEPT_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _port_of(url: str) -> int | None:
    try:
        return urlsplit(url if "://" in url else f"//{url}").port
    except ValueError:
        return None


def _uptime_s(started_ticks: int) -> float:
    since_boot_s = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    return max(0.0, since_boot_s - started_ticks / os.sysconf("SC_CLK_TCK"))
