"""Ends turns that every other limit has failed to end, and starts heads of branches left behind.

One look a second at the open turns, in one round trip, serves the canceller too, and finds what
operators have ended: they do it in the database, so only here can it be counted.
"""

from dataclasses import dataclass

import structlog

from libs.clock import Clock
from libs.postgres import Database, Row, Statement
from libs.telemetry.metrics import Metrics
from services.ingestion.cancelling import Canceller
from services.ingestion.core.endings import of_deadline
from services.ingestion.statements import SQL
from services.ingestion.stopping import Stopper

MAX_PER_SWEEP = 50
"""Turns ended by one sweep; what is left is the next one's, a second later."""

CAUSE = "deadline"


@dataclass(frozen=True, slots=True)
class ReaperLimits:
    """When the reaper looks, and when it acts.

    Attributes:
        grace_s: llm_gateway ends a turn at its deadline; this much later its event is not coming.
        every_s: Between two sweeps.
    """

    grace_s: float = 15.0
    every_s: float = 1.0


class Reaper:
    """The last limit: what it ends says ``deadline``."""

    def __init__(
        self,
        database: Database,
        stopper: Stopper,
        canceller: Canceller,
        *,
        clock: Clock,
        metrics: Metrics,
        limits: ReaperLimits,
    ) -> None:
        self._database = database
        self._stopper = stopper
        self._canceller = canceller
        self._clock = clock
        self._metrics = metrics
        self._limits = limits
        self._log = structlog.get_logger(__name__)

    async def sweep(self) -> int:
        """End overdue and cancelled turns, start what waits for nothing; how many were touched."""
        looks: list[Statement] = [
            (SQL["overdue_turns"], {"grace_s": self._limits.grace_s, "max_rows": MAX_PER_SWEEP}),
            self._canceller.statement(),
            (SQL["unstarted_heads"], {"max_rows": MAX_PER_SWEEP}),
            (SQL["count_open_turns"], {}),
            (SQL["uncounted_ends"], {"max_rows": MAX_PER_SWEEP}),
        ]
        async with self._database.transaction() as transaction:
            overdue, cancelled, heads, counted, ends = await transaction.commit_with(looks)
        self._metrics.turns_in_progress.set(counted[0]["open"])
        self._metrics.turns_overdue.set(counted[0]["overdue"])
        for row in overdue:
            await self._end(row)
        await self._canceller.end(cancelled)
        if heads:
            behind = [(head["tenant_id"], head["conversation_id"]) for head in heads]
            await self._stopper.settler.start_heads(behind)
        if ends:
            await self._count_ends()
        return len(overdue) + len(cancelled) + len(heads)

    async def _end(self, row: Row) -> None:
        answer = await self._stopper.stop(
            row, cause=CAUSE, end=lambda length: of_deadline(length=length)
        )
        if answer is not None:
            self._metrics.turn_recoveries_total.labels("deadline").inc()
            self._log.warning(
                "ingestion.turn_reaped",
                turn_id=str(row["turn_id"]),
                conversation_id=str(row["conversation_id"]),
                status=answer.ending.status,
                length=answer.length,
            )

    async def _count_ends(self) -> None:
        """Count what operators ended; the statement gives each end to one process alone."""
        parameters = {"max_rows": MAX_PER_SWEEP}
        for row in await self._database.fetch(SQL["count_ends"], parameters):
            self._metrics.turns_terminal_total.labels(row["status"], row["reason"]).inc()
            if row["lasted_s"] is not None:
                self._metrics.turn_duration_seconds.observe(row["lasted_s"])

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await self.sweep()
            await self._clock.sleep(self._limits.every_s)
