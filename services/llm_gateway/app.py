"""Wires the model gateway from the parts it is given."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from libs.catalogue import Catalogue
from libs.leases import LeaseTimes, WorkerLease
from libs.outbox import Relay
from libs.postgres import Database
from libs.redis.ports import LiveStream
from services.llm_gateway.calls import Caller
from services.llm_gateway.finisher import Finisher
from services.llm_gateway.handlers import StepHandlers, TurnHandlers
from services.llm_gateway.instruments import Instruments
from services.llm_gateway.live import LiveWriter
from services.llm_gateway.pool import Pool
from services.llm_gateway.ports import Provider
from services.llm_gateway.recoverer import Recoverer
from services.llm_gateway.settings import LlmSettings
from services.llm_gateway.store import Store
from services.llm_gateway.upkeep import Retention, Upkeep
from services.llm_gateway.watching import Watch

Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Adapters:
    """The outside world."""

    database: Database
    relay: Relay
    live: LiveStream
    provider: Provider
    catalogue: Catalogue
    instruments: Instruments


@dataclass(frozen=True, slots=True)
class App:
    """The service's own parts; what runs them is the frame's business.

    Attributes:
        background: Name -> work that runs until cancelled.
    """

    steps: StepHandlers
    turns: TurnHandlers
    pool: Pool
    store: Store
    recoverer: Recoverer
    lease: WorkerLease
    background: Mapping[str, Work]

    async def begin(self) -> None:
        """Take the lease: work claimed without one would be taken over at once.

        Raises:
            StoreUnavailable: Postgres did not answer.
        """
        await self.lease.beat()

    async def drain(self) -> None:
        """Let running calls end, hand the rest back, and end the lease."""
        await self.pool.drain()
        await self.pool.close()


def build_app(settings: LlmSettings, adapters: Adapters, *, worker_id: UUID) -> App:
    """Wire the parts of one worker process."""
    instruments = adapters.instruments
    clock = instruments.clock
    store = Store(adapters.database, adapters.relay, worker_id=worker_id, now=clock.now)
    live = LiveWriter(adapters.live, clock=clock)
    finisher = Finisher(store, instruments=instruments)

    def lost() -> None:
        pool.lose_all()

    lease = WorkerLease(
        adapters.database,
        worker_id=worker_id,
        times=_lease_times(settings),
        clock=clock,
        on_lost=lost,
    )
    pool = Pool(
        store,
        _caller(settings, adapters, live),
        finisher,
        holds_lease=lambda: lease.is_held,
        limits=settings.pool_limits,
        instruments=instruments,
    )
    recoverer = Recoverer(
        store,
        adapters.live,
        pool,
        catalogue=adapters.catalogue,
        limits=settings.recovery_limits,
        instruments=instruments,
    )
    watch = Watch(pool, adapters.live, clock=clock, every_s=settings.watch_every_s)
    upkeep = Upkeep(adapters.database, store, retention=Retention(), clock=clock)
    return App(
        steps=StepHandlers(store, pool, clock=clock, tracing=instruments.tracing),
        turns=TurnHandlers(store, pool),
        pool=pool,
        store=store,
        recoverer=recoverer,
        lease=lease,
        background={
            "lease": lease.run,
            "live_writer": live.run,
            "finisher": finisher.run,
            "claims": pool.run_claims,
            "looks": pool.run_looks,
            "watching": watch.run,
            "checkpoints": pool.run_checkpoints,
            "sweeps": recoverer.run,
            "retention": upkeep.run,
        },
    )


def _caller(settings: LlmSettings, adapters: Adapters, live: LiveWriter) -> Caller:
    return Caller(
        adapters.provider,
        live,
        catalogue=adapters.catalogue,
        limits=settings.call_limits,
        instruments=adapters.instruments,
    )


def _lease_times(settings: LlmSettings) -> LeaseTimes:
    limits = settings.limits
    return LeaseTimes(limits.lease_s, limits.beat_s, limits.self_fence_s, limits.sweep_s)
