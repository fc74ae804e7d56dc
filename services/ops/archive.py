"""Moves old messages to the archive and back, through ingestion's operator functions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from libs.postgres import Database
from libs.postgres.queries import load_queries
from libs.postgres.refusals import RefusedByFunction, refusals
from services.ops.database import database_url, opened_database
from services.ops.failures import CommandFailed, ExitCode
from services.ops.keys import actor
from services.ops.settings import OpsSettings

POOL_SIZE = 1  # one conversation after the other
MAX_CONVERSATIONS = 10_000  # of one run; what is left is there for the next one
_SQL = load_queries("services.ops")


@dataclass(frozen=True, slots=True)
class Old:
    """A conversation with messages that are old enough.

    Attributes:
        below: Messages below this number may go.
        messages: How many that are.
    """

    tenant_id: UUID
    conversation_id: UUID
    below: int
    messages: int

    def document(self) -> dict[str, Any]:
        """As it is printed."""
        return asdict(self)


class Archive:
    """The archive of one deployment."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def candidates(
        self, older_than_s: float, *, max_rows: int = MAX_CONVERSATIONS
    ) -> list[Old]:
        """Conversations with messages that were written longer ago than that."""
        values = {"older_than_s": older_than_s, "max_rows": max_rows}
        return [Old(**row) for row in await self._database.fetch(_SQL["archivable"], values)]

    async def put_away(self, conversation_id: UUID, below: int) -> int:
        """Move a conversation's messages below a number; how many.

        Raises:
            CommandFailed: A turn of that part is open.
        """
        values = {"conversation": conversation_id, "below": below, "actor": actor()}
        return await self._moved("archive", values)

    async def bring_back(self, conversation_id: UUID) -> int:
        """Move all of a conversation back; how many messages."""
        return await self._moved("unarchive", {"conversation": conversation_id, "actor": actor()})

    async def _moved(self, query: str, values: dict[str, Any]) -> int:
        try:
            with refusals():
                rows = await self._database.fetch(_SQL[query], values)
        except RefusedByFunction as error:
            msg = f"Conversation {values['conversation']} stays as it is: {error}."
            raise CommandFailed(msg, exit_code=ExitCode.CONFLICT) from None
        return int(rows[0]["moved"])


@asynccontextmanager
async def opened_archive(settings: OpsSettings) -> AsyncIterator[Archive]:
    """The archive of the deployment that the settings name.

    Raises:
        MisconfiguredSettings: They name no database.
        CommandFailed: The database cannot be used.
    """
    url = database_url(settings)
    async with archive_at(url) as archive:
        yield archive


@asynccontextmanager
async def archive_at(url: str) -> AsyncIterator[Archive]:
    """The archive of the deployment whose database is at ``url``, as the role turnwire_ops.

    Raises:
        CommandFailed: The database cannot be used.
    """
    async with opened_database(url, schema="ingestion", size=POOL_SIZE) as database:
        yield Archive(database)
