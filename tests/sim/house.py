"""The services of one run, wired as their processes wire them, on the twins and on virtual time."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

from prometheus_client import CollectorRegistry

from libs.catalogue import Catalogue
from libs.errors import StoreUnavailable
from libs.kafka.loop import BatchHandler, BatchLoop
from libs.kafka.parking import Parking
from libs.outbox import Relay
from libs.redis.memory import MemoryRedis
from libs.service import supervise
from libs.settings import LOCAL_LIMITS, TimeLimits
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import configure_tracing
from schemas.registry import decode
from services.context_assembly import app as context_assembly
from services.context_assembly.settings import ContextSettings
from services.frontend_gateway import app as frontend_gateway
from services.frontend_gateway.operators import MemoryOperators
from services.frontend_gateway.settings import GatewaySettings
from services.frontend_gateway.store import PostgresStore
from services.ingestion import app as ingestion
from services.ingestion.settings import IngestionSettings
from services.ingestion.tokens import CatalogueTokens
from services.llm_gateway import app as llm_gateway
from services.llm_gateway.instruments import Instruments
from services.llm_gateway.pool import PoolLimits
from services.llm_gateway.settings import LlmSettings
from tests.sim.faults import Fault
from tests.sim.kafka import Broker, Member, SimPublisher
from tests.sim.postgres import SimDatabase, Store
from tests.sim.process import Process, ProcessClock
from tests.sim.provider import SimProvider
from tests.sim.redis import SimDoorbell, SimLive
from tests.sim.world import World

MASTER_KEY = "a master key of the simulation only"
SERVICES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway")
MODELS = Path(__file__).with_name("models.toml")
RESTART_S = (0.1, 4.0)
"""A supervisor brings a dead process back after between so many seconds."""

LIMITS = replace(LOCAL_LIMITS, sweep_s=2 * LOCAL_LIMITS.sweep_s)
"""Those of one machine; half as many sweeps, since in most of a run's seconds nothing happens."""

TAKEN_OVER_S = LIMITS.lease_s + 3.0
"""Nobody who stood still so long holds a lease, and whoever takes over has done it by then."""

LATE_S = 6.0
"""Who stood still wakes up when somebody has taken over, in every second case up to 3 s later."""

LEASED = """
select step_id, attempt from llm_gateway.work where worker_id = %s and state = 'running' order by 1
"""

LONGEST_PAUSE_S = 20.0
"""Beyond the lease, the session of the group, and every time-out in between."""


@cache
def catalogue() -> Catalogue:
    """The model that ships for tests, and two that have little room."""
    return Catalogue.load(MODELS)


@cache
def metrics_of(service: str) -> Metrics:
    """One registry per service and worker; nothing in a run depends on a figure."""
    del service
    return Metrics(CollectorRegistry())


class SimIngestionSettings(IngestionSettings):
    """As it ships, with sweeps further apart."""

    @property
    def limits(self) -> TimeLimits:
        """See ``ServiceSettings.limits``."""
        return LIMITS


class SimLlmSettings(LlmSettings):
    """As it ships, with sweeps and looks further apart."""

    @property
    def limits(self) -> TimeLimits:
        """See ``ServiceSettings.limits``."""
        return LIMITS

    @property
    def pool_limits(self) -> PoolLimits:
        """See ``LlmSettings.pool_limits``."""
        shipped = super().pool_limits
        return replace(shipped, look_s=2 * shipped.look_s)


@cache
def settings_of(service: str, *, is_hasty: bool) -> Any:
    """Short limits, so that a run shows in a minute what takes hours outside.

    Args:
        is_hasty: Deleted conversations are purged within seconds.
    """
    hasty = {"restore_within_s": 8, "purge_every_s": 5} if is_hasty else {}
    common = {"database_url": "postgresql://unused", "profile": "local"}
    match service:
        case "ingestion":
            return SimIngestionSettings(
                **common,
                door_master_key=MASTER_KEY,
                turn_deadline_s=60,
                reap_after_s=5,
                retell_after_s=6,
                **hasty,
            )
        case "context_assembly":
            return ContextSettings(**common, step_deadline_s=40, retell_after_s=6)
        case "llm_gateway":
            return SimLlmSettings(**common, step_s=25, idle_s=6, retell_after_s=6, max_running=8)
        case _:
            return GatewaySettings(
                **common, door_master_key=MASTER_KEY, acceptance_wait_s=6, models_file=MODELS
            )


@dataclass(frozen=True, slots=True)
class Death:
    """An attempt whose worker was killed while it held the lease, in virtual seconds."""

    at_s: float
    step_id: UUID
    attempt: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a process held when it was made to stand still, and how late it wakes up."""

    held: set[tuple[UUID, int]]
    value: float


@dataclass(slots=True)
class Running:
    """The parts of a process that others must reach."""

    process: Process
    members: list[Member]
    asgi: Any = None
    worker_id: UUID | None = None


class SimHouse:
    """All processes of one run.

    Attributes:
        deaths: Attempts that lost their worker.
    """

    def __init__(self, world: World, store: Store, *, is_hasty: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.world = world
        self._is_hasty = is_hasty
        self.store = store
        self.broker = Broker(world)
        self.redis = MemoryRedis(now=loop.time)
        self.provider = SimProvider(world)
        self.running: dict[str, Running] = {}
        self.deaths: list[Death] = []
        self._frozen: dict[Process, Frozen] = {}
        self._lives = 0
        world.strike = self._strike
        world.before_step = self._thaw

    def start(self, sizes: Mapping[str, int]) -> None:
        """Start so many processes of each service."""
        for service in SERVICES:
            for number in range(sizes[service]):
                self._start(f"{service}.{number}", service)

    def gateways(self) -> list[Running]:
        """Gateways that can be reached."""
        return [
            one for one in self.running.values() if one.asgi is not None and one.process.is_alive
        ]

    def heal(self) -> None:
        """No more faults, and whatever is away comes back."""
        self.world.is_healed = True
        self.store.come_back()
        self.broker.come_back()
        self.redis.come_back()
        for one in self.running.values():
            one.process.skew_s = 0.0

    # Processes

    def _start(self, name: str, service: str) -> None:
        self._lives += 1
        process = Process(f"{name}#{self._lives}", service, self.world)
        running = self.running[name] = Running(process, [])
        process.spawn(self._live(name, running))

    async def _live(self, name: str, running: Running) -> None:
        """The main function of a process: what cannot start ends, and is started again."""
        process = running.process
        try:
            await self._work(process, running)
        except StoreUnavailable:
            self._die(name, process)

    def _die(self, name: str, process: Process) -> None:
        process.kill()
        again_s = self.world.random.uniform(*RESTART_S)
        self.world.later(again_s, self._start, name, process.kind)

    async def _work(self, process: Process, running: Running) -> None:
        clock = ProcessClock(process, self.world.random_bytes)
        database = SimDatabase(self.store, process.kind)
        publisher = SimPublisher(self.broker, process)
        live = SimLive(self.redis, process, self.world)
        metrics = metrics_of(process.kind)
        tracing = configure_tracing(process.kind)
        if process.kind == "frontend_gateway":
            gateway = frontend_gateway.build_app(
                self._settings_of(process.kind),
                frontend_gateway.Adapters(
                    store=PostgresStore(database),
                    publisher=publisher,
                    live=live,
                    bell=SimDoorbell(self.redis, process, self.world),
                    clock=clock,
                    metrics=metrics,
                    tracing=tracing,
                    operators=MemoryOperators().operators(),
                    random_bytes=self.world.random_bytes,
                ),
            )
            running.asgi = gateway.asgi
            await _serve_lifespan(gateway.asgi)
            return
        relay = Relay(database, publisher, clock=clock, metrics=metrics)
        running.worker_id = clock.new_id()
        handlers, background = await self._worker(
            running, database, relay, (clock, live, metrics, tracing)
        )
        for work_name, work in {"relay": relay.run, **background}.items():
            process.spawn(supervise(work_name, work, clock=clock))
        for handler in handlers:
            parking = Parking(database, relay, consumer=handler.consumer, metrics=metrics)
            loop = BatchLoop(handler, decode=decode, parking=parking, clock=clock, metrics=metrics)
            member = Member(self.broker, loop, self.world)
            running.members.append(member)
            process.spawn(member.run())

    def _settings_of(self, service: str) -> Any:
        return settings_of(service, is_hasty=self._is_hasty)

    async def _worker(
        self, running: Running, database: SimDatabase, relay: Relay, outside: tuple[Any, ...]
    ) -> tuple[Sequence[BatchHandler], Mapping[str, Callable[[], Awaitable[None]]]]:
        clock, live, metrics, tracing = outside
        process = running.process
        assert running.worker_id is not None
        settings = self._settings_of(process.kind)
        match process.kind:
            case "ingestion":
                first = ingestion.build_app(
                    settings,
                    ingestion.Adapters(
                        database=database,
                        relay=relay,
                        live=live,
                        tokens=CatalogueTokens(catalogue()),
                        clock=clock,
                        metrics=metrics,
                        tracing=tracing,
                    ),
                )
                return (first.requests, first.context, first.generation), first.background
            case "context_assembly":
                second = context_assembly.build_app(
                    settings,
                    context_assembly.Adapters(
                        database=database,
                        relay=relay,
                        catalogue=catalogue(),
                        clock=clock,
                        metrics=metrics,
                        tracing=tracing,
                    ),
                )
                return (second.turns, second.endings), second.background
        third = llm_gateway.build_app(
            settings,
            llm_gateway.Adapters(
                database=database,
                relay=relay,
                live=live,
                provider=self.provider,
                catalogue=catalogue(),
                instruments=Instruments(clock, metrics, tracing),
            ),
            worker_id=running.worker_id,
        )
        await third.begin()
        return (third.steps, third.turns), third.background

    # Faults of whole processes

    def _strike(self, fault: Fault, process: Process) -> None:
        name = process.name.partition("#")[0]
        match fault.kind:
            case "crash":
                self._note_death(self.running[name])
                self._die(name, process)
            case "pause":
                self._pause(name, process, 0.5 + fault.value * LONGEST_PAUSE_S)
            case "run_out":
                self._pause(name, process, TAKEN_OVER_S)
                self._frozen[process] = Frozen(self._leased(name), fault.value)
            case _:
                process.skew_s = (fault.value - 0.5) * 2_000

    def _pause(self, name: str, process: Process, for_s: float) -> None:
        process.is_paused = True
        for member in self.running[name].members:
            member.paused(for_s)
        self.world.later(for_s, _go_on, process)

    def _leased(self, name: str) -> set[tuple[UUID, int]]:
        rows = self.store.rows(LEASED, self.running[name].worker_id)
        return {(row["step_id"], row["attempt"]) for row in rows}

    def _thaw(self, acting: Process) -> None:
        """Wake who stood still once others have taken something of theirs over."""
        if not self._frozen or acting.kind != "llm_gateway":
            return
        for process, frozen in tuple(self._frozen.items()):
            if not (process.is_alive and process.is_paused):
                del self._frozen[process]
            elif not frozen.held <= self._leased(process.name.partition("#")[0]):
                del self._frozen[process]
                self.world.later(max(0.0, frozen.value - 0.5) * LATE_S, _go_on, process)

    def _note_death(self, running: Running) -> None:
        """Remember what a worker leased when it died: somebody else must bring it to an end."""
        if running.process.kind != "llm_gateway" or running.worker_id is None:
            return
        at_s = asyncio.get_running_loop().time()
        for step_id, attempt in sorted(self._leased(running.process.name.partition("#")[0])):
            self.deaths.append(Death(at_s, step_id, attempt))


def _go_on(process: Process) -> None:
    process.is_paused = False
    loop: Any = asyncio.get_running_loop()
    loop.go_on(process)


async def _serve_lifespan(asgi: Any) -> None:
    """Start the application and keep it until the process ends."""
    never = asyncio.Event()
    asked = False

    async def receive() -> dict[str, str]:
        nonlocal asked
        if asked:
            await never.wait()
        asked = True
        return {"type": "lifespan.startup"}

    async def send(_message: Mapping[str, Any]) -> None:
        return

    with contextlib.suppress(asyncio.CancelledError):
        await asgi({"type": "lifespan", "state": {}}, receive, send)
