"""Ends turns that every other limit has failed to end, and starts heads of branches left behind."""

from dataclasses import dataclass

import structlog

from libs import ids
from libs.clock import Clock
from libs.postgres import Database, Row
from libs.telemetry.metrics import Metrics
from services.ingestion.settling import Proposal, Settler
from services.ingestion.shown import Shown
from services.ingestion.store import SQL

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
        settler: Settler,
        shown: Shown,
        *,
        clock: Clock,
        metrics: Metrics,
        limits: ReaperLimits | None = None,
    ) -> None:
        self._database = database
        self._settler = settler
        self._shown = shown
        self._clock = clock
        self._metrics = metrics
        self._limits = limits or ReaperLimits()
        self._log = structlog.get_logger(__name__)

    async def sweep(self) -> int:
        """End overdue turns and start what waits for nothing; how many turns were touched."""
        overdue = await self._database.fetch(
            SQL["overdue_turns"], {"grace_s": self._limits.grace_s, "max_rows": MAX_PER_SWEEP}
        )
        for row in overdue:
            await self._end(row)
        heads = await self._database.fetch(SQL["unstarted_heads"], {"max_rows": MAX_PER_SWEEP})
        if heads:
            await self._settler.start_heads([(h["tenant_id"], h["conversation_id"]) for h in heads])
        rows = await self._database.fetch(SQL["count_open_turns"])
        self._metrics.turns_in_progress.set(rows[0]["open"])
        return len(overdue) + len(heads)

    async def _end(self, row: Row) -> None:
        tenant_id, turn_id = row["tenant_id"], row["turn_id"]
        answer = await self._shown.of(tenant_id, turn_id)
        cause = ids.caused_id(turn_id, CAUSE)
        proposal = Proposal(cause, tenant_id, row["conversation_id"], turn_id, answer)
        settled = await self._settler.settle([proposal], consumer=None)
        if settled.ended:
            self._metrics.turn_recoveries_total.labels("deadline").inc()
            self._log.warning(
                "ingestion.turn_reaped",
                turn_id=str(turn_id),
                conversation_id=str(row["conversation_id"]),
                status=answer.ending.status,
                length=answer.length,
            )

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await self.sweep()
            await self._clock.sleep(self._limits.every_s)
