"""A database with outbox, inbox and dead letters in one schema, and nothing of a service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from libs.clock import SystemClock
from libs.kafka.publisher import Publisher
from libs.outbox import Relay
from libs.postgres import Database
from libs.postgres.migrations import Migration, migrate
from libs.telemetry.metrics import Metrics
from services.ops.migrations import SHARED_UNIT, all_migrations

SCHEMA = "ingestion"
"""Any schema will do: the mechanics are the same in all of them."""

EFFECTS = """
create table ingestion.effects (
  event_id uuid primary key, key text not null, said text not null, place bigint not null
);
"""


async def make_mechanics(url: str) -> None:
    """Bring an empty database to the shared migrations and one schema's mechanics."""
    shared = [migration for migration in all_migrations() if migration.unit == SHARED_UNIT]
    mechanics = Migration(
        "test", "0001_mechanics.sql", f"select turnwire.create_mechanics('{SCHEMA}'); {EFFECTS}"
    )
    await migrate(url, [*shared, mechanics])


@asynccontextmanager
async def mechanics_database(url: str, *, size: int = 8) -> AsyncIterator[Database]:
    """A pool on such a database, as the superuser: rights are not what these tests are about."""
    database = await Database.open(url, schema=SCHEMA, size=size)
    try:
        yield database
    finally:
        await database.close()


def make_metrics() -> Metrics:
    """Metrics in a registry of their own."""
    return Metrics(CollectorRegistry())


def make_relay(database: Database, publisher: Publisher) -> Relay:
    """A relay on the real clock."""
    return Relay(database, publisher, clock=SystemClock(), metrics=make_metrics())
