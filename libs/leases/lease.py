"""The lease of one worker process, kept in the table ``workers`` of its service's schema.

All comparisons of ``lease_until`` are made by the database's clock. The process itself only knows
how long ago its last beat succeeded, by its monotonic clock: past ``self_fence_s`` it must assume
that others take its work over, and stops before they do.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import psycopg
import structlog

from libs.clock import Clock
from libs.errors import StoreUnavailable
from libs.postgres import Database, load_queries

_SQL = load_queries("libs.leases")


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds; ``beat_s < self_fence_s < lease_s`` keeps an owner from outliving its lease."""

    lease_s: float = 15.0
    beat_s: float = 4.0
    self_fence_s: float = 10.0
    sweep_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.beat_s < self.self_fence_s < self.lease_s:
            msg = "lease times must satisfy 0 < beat_s < self_fence_s < lease_s"
            raise ValueError(msg)


class WorkerLease:
    """Beats on a connection of its own, so that a busy pool cannot cost the lease."""

    def __init__(
        self,
        database: Database,
        *,
        worker_id: UUID,
        times: LeaseTimes,
        clock: Clock,
        on_lost: Callable[[], None],
    ) -> None:
        self.worker_id = worker_id
        self._session = database.session()
        self._times = times
        self._clock = clock
        self._on_lost = on_lost
        self._last_beat_s: float | None = None
        self._is_lost = False
        self._log = structlog.get_logger(__name__).bind(worker_id=str(worker_id))

    @property
    def is_held(self) -> bool:
        """Whether the last beat is recent enough to go on working."""
        if self._last_beat_s is None:
            return False
        return self._clock.monotonic() - self._last_beat_s < self._times.self_fence_s

    async def beat(self) -> None:
        """Extend the lease once.

        Raises:
            StoreUnavailable: Postgres did not take the beat in time.
        """
        # The lease counts from before the statement: never later than the database believes.
        started_s = self._clock.monotonic()
        parameters = {"worker_id": self.worker_id, "lease_s": self._times.lease_s}
        try:
            async with asyncio.timeout(self._times.beat_s):
                await self._session.fetch(_SQL["beat"], parameters)
        except TimeoutError as error:
            msg = f"a beat took longer than {self._times.beat_s:g} s"
            raise StoreUnavailable(msg) from error
        self._last_beat_s = started_s
        self._is_lost = False

    async def run(self) -> None:
        """Beat until cancelled; calls ``on_lost`` once each time the lease is lost."""
        try:
            while True:
                pause_s = self._times.beat_s
                # First of all: a process that was frozen wakes up here, and its next beat would
                # succeed although others have taken its work over meanwhile.
                self._note_loss()
                try:
                    await self.beat()
                except (StoreUnavailable, psycopg.Error) as error:
                    pause_s = min(0.5, self._times.beat_s)
                    self._log.warning("lease.beat_failed", reason=type(error).__name__)
                self._note_loss()
                await self._clock.sleep(pause_s)
        finally:
            await self._session.close()

    def _note_loss(self) -> None:
        """Tell once that a lease which was held is held no more."""
        if self._last_beat_s is None or self.is_held or self._is_lost:
            return
        self._is_lost = True
        self._log.error("lease.lost", self_fence_s=self._times.self_fence_s)
        self._on_lost()

    async def give_up(self) -> None:
        """End the lease at once, so that others need not wait for it to run out."""
        try:
            async with asyncio.timeout(self._times.beat_s):
                await self._session.fetch(_SQL["give_up"], {"worker_id": self.worker_id})
        except (StoreUnavailable, TimeoutError):
            self._log.warning("lease.not_given_up")
        await self._session.close()
