"""Opens the operators' reads and acts of the deployment that the settings name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from libs.operating import Acts, Reads
from libs.postgres import Database
from libs.telemetry.tracing import configure_tracing
from services.ops.configuration import ops_settings
from services.ops.database import database_url, opened_database
from services.ops.keys import actor
from services.ops.settings import OpsSettings

POOL_SIZE = 4  # reads of one overview go side by side


@dataclass(frozen=True, slots=True)
class Operations:
    """A deployment, as its operator reaches it.

    Attributes:
        database: For what only the command line asks.
    """

    reads: Reads
    acts: Acts
    database: Database
    settings: OpsSettings


@asynccontextmanager
async def opened_operations(data_dir: Path) -> AsyncIterator[Operations]:
    """The deployment of the environment, else of a local stack's folder.

    Raises:
        MisconfiguredSettings: They name no database.
        CommandFailed: The database cannot be used.
    """
    settings = ops_settings(data_dir)
    url = database_url(settings)
    async with opened_database(url, schema="turnwire", size=POOL_SIZE) as database:
        tracing = configure_tracing("ops")
        try:
            acts = Acts(database, actor=actor(), tracing=tracing)
            yield Operations(Reads(database), acts, database, settings)
        finally:
            await tracing.close()
