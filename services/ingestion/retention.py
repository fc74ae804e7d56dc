"""Drops what is kept for a while only: outcomes, inbox, dead letters, and what was deleted."""

from dataclasses import dataclass

import structlog

from libs import inbox
from libs.clock import Clock
from libs.kafka.parking import purge_statement
from libs.postgres import Database, Statement
from services.ingestion.statements import SQL

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

MAX_ROWS = 5_000
"""Rows of one statement, so that no purge holds locks for long."""

MAX_ROUNDS = 200
"""Rounds of one sweep: a million rows of each kind; the rest is the next sweep's."""

SWEEP_EVERY_S = 600.0

MAX_CONVERSATIONS = 1
"""Conversations of one purging transaction: one may have ten thousand messages."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How long each kind of row stays, in seconds."""

    outcomes_s: float = DAY_S
    inbox_s: float = 14 * DAY_S  # the topics' 7 days and 7 more: a record older than this is gone
    dead_letters_s: float = 14 * DAY_S


class Retention:
    """One job of the service; running twice at once is harmless."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        keep: Keep | None = None,
        purge_every_s: float = 30.0,
    ) -> None:
        """``purge_every_s`` is the pause between two looks for conversations to purge."""
        self._database = database
        self._purge_every_s = purge_every_s
        self._clock = clock
        self._keep = keep or Keep()
        self._log = structlog.get_logger(__name__)

    async def sweep(self) -> int:
        """Drop what is too old; how many rows."""
        outcomes = (
            SQL["purge_outcomes"],
            {"keep_s": self._keep.outcomes_s, "max_rows": MAX_ROWS},
        )
        total = 0
        for statement in (
            outcomes,
            inbox.purge_statement(self._keep.inbox_s, max_rows=MAX_ROWS),
            purge_statement(self._keep.dead_letters_s, max_rows=MAX_ROWS),
        ):
            total += await self._drop(statement)
        if total:
            self._log.info("ingestion.purged", rows=total)
        return total

    async def _drop(self, statement: Statement) -> int:
        total = 0
        for _ in range(MAX_ROUNDS):
            purged: int = (await self._database.fetch(*statement))[0]["purged"]
            total += purged
            if purged < MAX_ROWS:
                break
        return total

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await self.sweep()
            await self._clock.sleep(SWEEP_EVERY_S)

    async def purge_conversations(self) -> int:
        """Delete the rows of deleted conversations whose time is over; how many conversations.

        The events that tell it are written beside and leave with the relay's next sweep: nobody
        waits for them.
        """
        parameters = {"max_rows": MAX_CONVERSATIONS}
        purged = 0
        for _ in range(MAX_ROUNDS):
            gone = await self._database.fetch(SQL["purge_conversations"], parameters)
            purged += len(gone)
            for row in gone:
                self._log.info(
                    "ingestion.conversation_purged", conversation_id=str(row["conversation_id"])
                )
            if len(gone) < MAX_CONVERSATIONS:
                break
        return purged

    async def run_purges(self) -> None:
        """Purge conversations until cancelled."""
        while True:
            await self.purge_conversations()
            await self._clock.sleep(self._purge_every_s)
