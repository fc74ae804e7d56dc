"""A worker's lease on a real Postgres: it beats, it fences itself, it is given up."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from libs.leases import LeaseTimes, WorkerLease
from libs.postgres import Database
from tests.rig.mechanics import make_mechanics, mechanics_database

pytestmark = pytest.mark.postgres

TIMES = LeaseTimes(lease_s=8, beat_s=2, self_fence_s=5, sweep_s=1)
TABLE = (
    "create table ingestion.workers (worker_id uuid primary key, lease_until timestamptz not null)"
)


class SteppedClock:
    """A clock that moves only when it is told to; sleeping hands over to the loop."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept = asyncio.Event()
        self.go_on = asyncio.Event()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, delay_s: float) -> None:
        self.seconds += delay_s
        self.slept.set()
        await self.go_on.wait()
        self.go_on.clear()

    def new_id(self) -> uuid.UUID:
        return uuid.uuid4()

    async def step(self) -> None:
        """Let the sleeper go on, and wait until it sleeps again."""
        self.slept.clear()
        self.go_on.set()
        async with asyncio.timeout(10):
            await self.slept.wait()


@pytest.fixture
async def database(empty_database_url: str) -> AsyncIterator[Database]:
    await make_mechanics(empty_database_url)
    async with mechanics_database(empty_database_url) as database:
        await database.fetch(TABLE)
        yield database


async def lease_of(database: Database) -> tuple[datetime, datetime | None]:
    """The database's clock, and the end of the only lease."""
    (row,) = await database.fetch(
        "select now() as at, (select lease_until from ingestion.workers) as lease_until"
    )
    return row["at"], row["lease_until"]


async def test_a_beat_extends_the_lease_by_the_databases_clock(database: Database) -> None:
    lease = WorkerLease(
        database, worker_id=uuid.uuid4(), times=TIMES, clock=SteppedClock(), on_lost=lambda: None
    )
    assert not lease.is_held

    before, _ = await lease_of(database)
    await lease.beat()
    after, until = await lease_of(database)

    assert lease.is_held
    assert until is not None
    assert before <= until - timedelta(seconds=TIMES.lease_s) <= after
    await lease.give_up()
    assert (await lease_of(database))[1] is None


async def test_a_worker_that_cannot_beat_stops_before_its_lease_runs_out(
    database: Database,
) -> None:
    clock = SteppedClock()
    lost: list[float] = []
    lease = WorkerLease(
        database,
        worker_id=uuid.uuid4(),
        times=TIMES,
        clock=clock,
        on_lost=lambda: lost.append(clock.seconds),
    )
    beating = asyncio.create_task(lease.run())
    async with asyncio.timeout(10):
        await clock.slept.wait()
    assert lease.is_held

    await database.fetch("alter table ingestion.workers rename to away")
    for _ in range(20):
        await clock.step()
    assert not lease.is_held
    assert len(lost) == 1
    assert TIMES.self_fence_s <= lost[0] < TIMES.lease_s

    await database.fetch("alter table ingestion.away rename to workers")
    await clock.step()
    assert lease.is_held
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


async def test_a_process_that_was_frozen_knows_it_before_its_next_beat(database: Database) -> None:
    clock = SteppedClock()
    lost: list[float] = []
    lease = WorkerLease(
        database,
        worker_id=uuid.uuid4(),
        times=TIMES,
        clock=clock,
        on_lost=lambda: lost.append(clock.seconds),
    )
    beating = asyncio.create_task(lease.run())
    async with asyncio.timeout(10):
        await clock.slept.wait()

    clock.seconds += TIMES.lease_s  # nothing ran for that long
    await clock.step()

    assert len(lost) == 1
    assert lease.is_held
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


def test_times_that_would_let_an_owner_outlive_its_lease_are_refused() -> None:
    with pytest.raises(ValueError, match="self_fence_s"):
        LeaseTimes(lease_s=5, beat_s=2, self_fence_s=5)
