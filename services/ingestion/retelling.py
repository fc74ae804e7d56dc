"""Tells ``turn.started`` again for turns that nobody has taken up: Kafka may have lost it."""

import structlog

from libs.clock import Clock
from libs.outbox import append_statement, outbox_message
from libs.postgres import Database, Statement
from libs.telemetry.metrics import Metrics
from schemas.registry import TURN_EVENTS
from services.ingestion.core import events
from services.ingestion.ports import HandOver
from services.ingestion.statements import SQL
from services.ingestion.store import startable_row

MAX_PER_SWEEP = 200
"""Turns told again by one sweep; a lost broker strands at most the turns of its outage."""

SWEEP_EVERY_S = 2.0


class Retelling:
    """Appends the same event again, with the same id, only for work the next service lacks."""

    def __init__(
        self,
        database: Database,
        relay: HandOver,
        *,
        clock: Clock,
        metrics: Metrics,
        silence_s: float = 10.0,
    ) -> None:
        """Wire the sweep.

        Args:
            silence_s: Planning takes milliseconds; so long without a step means that the event is
                lost or very late.
        """
        self._database = database
        self._relay = relay
        self._clock = clock
        self._metrics = metrics
        self._log = structlog.get_logger(__name__)
        self._silence_s = silence_s

    async def sweep(self) -> int:
        """Tell silent turns again; how many."""
        async with self._database.transaction() as transaction:
            claimed = await transaction.fetch(
                SQL["claim_silent_turns"],
                {"silence_s": self._silence_s, "max_rows": MAX_PER_SWEEP},
            )
            if not claimed:
                return 0
            await transaction.name_tenants({row["tenant_id"] for row in claimed})
            wanted = {
                "tenants": [row["tenant_id"] for row in claimed],
                "ids": [row["turn_id"] for row in claimed],
            }
            reads: list[Statement] = [
                (SQL["planned_turns"], {"turns": wanted["ids"]}),
                (SQL["started_turns"], wanted),
            ]
            planned, started = await transaction.batch(reads)
            known = {row["turn_id"] for row in planned}
            messages = [
                outbox_message(
                    events.started(
                        startable_row(row, row["id"]),
                        at=row["started_at"],
                        deadline_at=row["deadline_at"],
                    ),
                    TURN_EVENTS,
                )
                for row in started
                if row["id"] not in known
            ]
            rows = await transaction.commit_with([append_statement(messages)])
        self._relay.hand_over(messages, [row["id"] for row in rows[0]])
        if messages:
            self._metrics.turn_recoveries_total.labels("kafka_lost").inc(len(messages))
            self._log.warning("ingestion.turns_told_again", turns=len(messages))
        return len(messages)

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await self.sweep()
            await self._clock.sleep(SWEEP_EVERY_S)
