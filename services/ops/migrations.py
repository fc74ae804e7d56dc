"""Finds the migrations of all services and hands them to the engine in ``libs.postgres``."""

from collections.abc import Mapping
from importlib import resources

from libs.postgres import migrations as engine
from libs.postgres.migrations import Migration

SHARED_UNIT = "postgres"
"""Roles and the shared schema; its first file runs in every database, the ledger follows in it."""

SERVICES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway")
"""In the order in which their migrations apply."""


def all_migrations() -> list[Migration]:
    """Every migration file of this release, in the order in which they apply."""
    found = _files(SHARED_UNIT, "deploy.postgres")
    for service in SERVICES:
        found += _files(service, f"services.{service}.migrations")
    return found


def _files(unit: str, package: str) -> list[Migration]:
    folder = resources.files(package)
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [Migration(unit, name, (folder / name).read_text(encoding="utf-8")) for name in names]


async def migrate(url: str, *, passwords: Mapping[str, str] | None = None) -> list[Migration]:
    """Bring the database at ``url`` to this release; see ``libs.postgres.migrations.migrate``."""
    return await engine.migrate(url, all_migrations(), passwords=passwords)


async def pending_migrations(url: str) -> list[Migration]:
    """What ``migrate`` would apply."""
    return await engine.pending(url, all_migrations())
