"""Drops what nobody needs any more: inbox, dead letters, texts of ended turns, old attempts."""

from dataclasses import dataclass

from libs import inbox
from libs.clock import Clock
from libs.errors import StoreUnavailable
from libs.kafka.parking import purge_statement
from libs.postgres import Database
from libs.telemetry.logging import get_logger
from services.llm_gateway.store import Store

DAY_S = 86_400.0
MAX_ROWS = 5_000
"""Rows of one purge, so that its transaction stays short; the next round takes more."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Seconds.

    Attributes:
        every_s: Pause between two rounds.
        inbox_s: Retention of the topics plus a week.
        dead_letters_s: Time to look at a dead letter.
        work_s: A turn lives minutes; work of a turn that is not open after an hour was forgotten.
        attempts_s: Time to ask why an attempt failed. The ledger of usage is kept.
    """

    every_s: float = 60.0
    inbox_s: float = 14 * DAY_S
    dead_letters_s: float = 14 * DAY_S
    work_s: float = 3_600.0
    attempts_s: float = 30 * DAY_S


class Upkeep:
    """The retention job of the service."""

    def __init__(
        self, database: Database, store: Store, *, retention: Retention, clock: Clock
    ) -> None:
        self._database = database
        self._store = store
        self._retention = retention
        self._clock = clock
        self._log = get_logger()

    async def run(self) -> None:
        """Work at intervals until cancelled; an outage of Postgres is waited out."""
        while True:
            await self._clock.sleep(self._retention.every_s)
            try:
                await self.work()
            except StoreUnavailable as error:
                self._log.warning("llm.retention_postponed", reason=str(error))

    async def work(self) -> None:
        """One round."""
        keep = self._retention
        await self._database.fetch(*inbox.purge_statement(keep.inbox_s, max_rows=MAX_ROWS))
        await self._database.fetch(*purge_statement(keep.dead_letters_s, max_rows=MAX_ROWS))
        forgotten = await self._store.forget_ended(keep_s=keep.work_s)
        if forgotten:
            self._log.warning("llm.forgotten_work_dropped", steps=forgotten)
        await self._store.purge(texts_s=DAY_S, attempts_s=keep.attempts_s, workers_s=keep.work_s)
