"""The house under attack: two of every service, and a proxy between any two parts."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from deploy.local.errors import LocalStackError
from deploy.local.kafka_settings import SideDoor
from deploy.local.ports import pick_port
from deploy.local.processes import ServiceProcess
from tests.chaos.proxy import Proxy
from tests.rig.house import WORKERS, ApiKey, House, Size
from tests.rig.ledger import Ledger

GATEWAY = "frontend_gateway"
SERVICES = (GATEWAY, *WORKERS)
STORES = ("postgres", "kafka", "redis")
GATEWAYS = 2
WORKERS_OF_A_KIND = 2

DRAIN_S = 15
"""Longer than any scripted answer runs, so that a rolling restart ends none of them early."""

LOOK_EVERY_S = 0.5
BALANCER_LOOKS_EVERY_S = 1.0
"""How soon a dead gateway leaves the list, and a live one is back; usual for balancers."""

BALANCER_WAITS_S = 2.0
BACK_WITHIN_S = 90.0
"""A service that was started while its stores were down may have to be started again and again."""

START_AGAIN_S = 1.0
GAVE_UP = '"event":"service.failed"'
TAIL_CHARS = 20_000
SHOWN_CHARS = 2_000
LEAVE_ROTATION_S = 1.0
"""Between a gateway's leaving the list and its SIGTERM: requests that chose it are sent by then."""


@dataclass(frozen=True, slots=True)
class Death:
    """A process that ended by SIGKILL, by the clock that the rows have too."""

    service: str
    index: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Crash:
    """A store that was killed, by the clock that the rows have too."""

    store: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Surprise:
    """A process that ended although nobody had asked it to."""

    service: str
    exit_code: int | None
    at_s: float
    log_tail: str

    @property
    def is_orderly(self) -> bool:
        """Whether the service said itself that it could not go on and left it to the next one.

        It does so when the Kafka client has lost a consumer for good, or when Postgres is away at
        the start; whoever supervises it starts it again.
        """
        failed = GAVE_UP in self.log_tail
        return failed and self.exit_code is not None and self.exit_code > 0


class ChaosHouse(House):
    """Two gateways and two workers of each kind; every edge between two parts has its proxy.

    Attributes:
        edges: Proxies by ``<service>-<part>``, such as ``ingestion-postgres``; one for each kind
            of service, and ``llm_gateway-provider``.
        known_dead_letters: Ids that a fault has caused on purpose.
        deaths: Every SIGKILL of a service, in order.
        began: Monotonic moment from which ``now_s`` counts.
        crashes: Every crash of a store, in order.
        surprises: Processes that ended by themselves; a finding, unless they gave a reason.
    """

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, size=Size(gateways=GATEWAYS, workers=WORKERS_OF_A_KIND))
        self.edges: dict[str, Proxy] = {}
        self.known_dead_letters: set[UUID] = self._dead_on_purpose
        self.deaths: list[Death] = []
        self.crashes: list[Crash] = []
        self._own_ledgers: list[Ledger] = []
        self.surprises: list[Surprise] = []
        self._ports: dict[str, int] = {}
        self._resting: set[int] = set()
        self._sick: set[int] = set()
        self._holds: dict[str, asyncio.Lock] = {}
        self._watches: list[asyncio.Task[None]] = []
        self.began = monotonic()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._watches = [
            asyncio.create_task(self._watch_for_surprises()),
            asyncio.create_task(self._balance()),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        # The processes first: a service that drains still needs its stores.
        await self.supervisor.stop()
        for proxy in self.edges.values():
            await proxy.stop()
        await super().__aexit__(kind, error, traceback)

    # Time

    def begin(self) -> None:
        """From now on ``now_s`` counts."""
        self.began = monotonic()

    def now_s(self) -> float:
        """Monotonic seconds since the run's start."""
        return monotonic() - self.began

    async def reach(self, at_s: float) -> None:
        """Wait until the run's clock shows ``at_s``."""
        while (left_s := at_s - self.now_s()) > 0:
            await asyncio.sleep(left_s)

    # Edges

    async def open_side_doors(self) -> Sequence[SideDoor]:
        """One listener of the broker for each kind of service, advertised as its proxy."""
        doors: list[SideDoor] = []
        for service in SERVICES:
            port = pick_port(avoid=[door.port for door in doors])
            doors.append(SideDoor(port, await self._open_edge(f"{service}-kafka", port)))
        return doors

    async def before_services(self) -> None:
        """The other edges; the ports of their parts are known by now."""
        for service in SERVICES:
            await self._open_edge(f"{service}-postgres", self.stack.postgres.port)
            await self._open_edge(f"{service}-redis", self.stack.valkey.port)
        await self._open_edge("llm_gateway-provider", self.provider.port)

    async def _open_edge(self, name: str, upstream_port: int) -> int:
        proxy = Proxy("127.0.0.1", upstream_port)
        self._ports[name] = await proxy.start()
        self.edges[name] = proxy
        return self._ports[name]

    def environment(self, name: str, index: int = 0) -> dict[str, str]:
        """As in every house, but all addresses are those of proxies."""
        wanted = super().environment(name, index)
        if name not in SERVICES:
            return wanted
        own = f"TURNWIRE_{name.upper()}__"
        database = own + "DATABASE_URL"
        wanted[database] = _with_port(wanted[database], self._ports[f"{name}-postgres"])
        wanted["REDIS_URL"] = _with_port(wanted["REDIS_URL"], self._ports[f"{name}-redis"])
        wanted["KAFKA_BOOTSTRAP_SERVERS"] = f"127.0.0.1:{self._ports[f'{name}-kafka']}"
        if name == "llm_gateway":
            provider = self._ports["llm_gateway-provider"]
            wanted["LLM_BASE_URL"] = _with_port(wanted["LLM_BASE_URL"], provider)
            wanted[own + "DRAIN_S"] = str(DRAIN_S)
        return wanted

    # Addresses for faults, clients and checks; none of them goes through a proxy

    @property
    def database_url(self) -> str:
        """Of a superuser."""
        return self.stack.database_url

    @property
    def kafka_bootstrap(self) -> str:
        """The broker itself."""
        return self.stack.kafka_bootstrap_servers

    @property
    def redis_url(self) -> str:
        """The Valkey itself."""
        return self.stack.redis_url

    @property
    def services(self) -> Mapping[str, ServiceProcess]:
        """Processes by name and number, such as ``ingestion-1``."""
        return {process.spec.label: process for process in self.supervisor.processes}

    @property
    def members(self) -> Mapping[str, ServiceProcess]:
        """The processes that are always there, without those that only join for a while."""
        usual = max(GATEWAYS, WORKERS_OF_A_KIND)
        return {n: process for n, process in self.services.items() if process.spec.index < usual}

    def gateway_urls(self) -> list[str]:
        """Where a balancer would send a request now; ask before every request.

        A gateway that is about to be restarted in order has left the list. One that was killed or
        frozen stays in it for a second or two, as long as a balancer's look at its health takes.
        """
        resting = [n for n in range(GATEWAYS) if n not in self._resting]
        well = [n for n in resting if n not in self._sick]
        return [self.gateway_url(n) for n in well or resting or range(GATEWAYS)]

    async def _balance(self) -> None:
        """Look after the gateways' health, as a balancer does."""
        while True:
            for index in range(GATEWAYS):
                try:
                    async with asyncio.timeout(BALANCER_WAITS_S):
                        is_well = await self.process(GATEWAY, index).is_ready()
                except TimeoutError:
                    is_well = False
                (self._sick.discard if is_well else self._sick.add)(index)
            await asyncio.sleep(BALANCER_LOOKS_EVERY_S)

    async def key(self, tenant: str, principal: str = "tester") -> ApiKey:
        """The tenant's API key, made at the first call."""
        if (tenant, principal) not in self._keys:
            self._keys[tenant, principal] = await self.make_key(tenant, principal)
        return self._keys[tenant, principal]

    async def new_ledger(self, tenant: str) -> Ledger:
        """A ledger that the final check will read."""
        ledger = Ledger((await self.key(tenant)).tenant_id)
        self._own_ledgers.append(ledger)
        return ledger

    @property
    def ledgers(self) -> list[Ledger]:
        """Those of all clients, however they were made."""
        return [*self._own_ledgers, *(client.ledger for client in self._clients)]

    # Processes

    @property
    def log_folder(self) -> Path:
        """Has one file for every process."""
        return self._data_dir / "services"

    @contextlib.asynccontextmanager
    async def holding(self, resource: str) -> AsyncIterator[None]:
        """Have a part to oneself, such as ``kafka``: two faults do not restart it at once."""
        async with self._holds.setdefault(resource, asyncio.Lock()):
            yield

    async def hold(self, resource: str) -> None:
        """As ``holding``, for an injection that is healed in another call."""
        await self._holds.setdefault(resource, asyncio.Lock()).acquire()

    def let_go(self, resource: str) -> None:
        """End ``hold``."""
        self._holds[resource].release()

    def is_held(self, resource: str) -> bool:
        """Whether a fault has it just now."""
        held = self._holds.get(resource)
        return held is not None and held.locked()

    async def kill(self, process: ServiceProcess) -> None:
        """SIGKILL, noted. The caller holds the process."""
        self.note_death(process)
        await process.kill()

    def note_death(self, process: ServiceProcess) -> None:
        """Remember when a process was killed."""
        spec = process.spec
        self.deaths.append(Death(spec.name, spec.index, datetime.now(UTC)))

    def note_crash(self, store: str) -> None:
        """Remember when a store was killed."""
        self.crashes.append(Crash(store, datetime.now(UTC)))

    async def bring_back(
        self, process: ServiceProcess, *, env: Mapping[str, str] | None = None
    ) -> float:
        """Start a process until it is ready, by default plainly; the seconds it took.

        As a supervisor does: one that ended while its stores were away is started again.

        Raises:
            LocalStackError: It was not ready after ``BACK_WITHIN_S``.
        """
        process.env = env or self.environment(process.spec.name, process.spec.index)
        began = monotonic()
        while True:
            try:
                await process.start()
            except LocalStackError:
                if monotonic() - began > BACK_WITHIN_S:
                    raise
                await asyncio.sleep(START_AGAIN_S)
            else:
                return monotonic() - began

    @contextlib.asynccontextmanager
    async def out_of_rotation(self, process: ServiceProcess) -> AsyncIterator[None]:
        """While the block runs no client is sent to this gateway; of a worker nothing changes."""
        if process.spec.name != GATEWAY:
            yield
            return
        self._resting.add(process.spec.index)
        try:
            await self.reach(self.now_s() + LEAVE_ROTATION_S)
            yield
        finally:
            self._resting.discard(process.spec.index)

    async def _watch_for_surprises(self) -> None:
        """Bring back what ended by itself, and remember it."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for name, process in self.services.items():
                if process.pid is not None or self.is_held(name) or not process.is_wanted:
                    continue
                async with self.holding(name):
                    await self._take_note(process)

    async def _take_note(self, process: ServiceProcess) -> None:
        tail = process.log_path.read_text(errors="replace")[-TAIL_CHARS:]
        found = Surprise(process.spec.label, process.exit_code(), self.now_s(), tail)
        self.surprises.append(found)
        sys.stderr.write(f"{found.service} ended by itself with {found.exit_code}\n")
        with contextlib.suppress(LocalStackError):
            await self.bring_back(process)


def _with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}{at}127.0.0.1:{port}"))
