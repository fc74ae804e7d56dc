"""Ends turns that are to stop where nobody else does, and turns that have waited too long."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence

import structlog

from libs import ids
from libs.clock import Clock
from libs.postgres import Database, Row, Statement
from services.ingestion.core.answer import nothing
from services.ingestion.core.endings import QUEUE_TIMEOUT, of_cancel
from services.ingestion.settling import Proposal
from services.ingestion.statements import SQL
from services.ingestion.stopping import Stopper

MAX_PER_SWEEP = 50
"""Turns found at once: bounds a transaction and the locks it holds."""

MAX_IN_A_ROW = 40
"""How often a look goes on after a full page: 2,000 turns; what is left is the next one's."""

MAX_LOOKS = 100
"""Looks remembered for later; what is forgotten beyond them, the reaper's sweep finds."""

LOOK_STEP_S = 0.1
"""Marks that come closer together share the later look."""

LATE_S = 0.05
"""A look that comes a little after the grace finds what one at its very end might miss."""


class Canceller:
    """Ends what has not started at once, and what runs once its worker had time to tell the end.

    It looks when turns were marked in this process, once more after the grace, and with every
    sweep of the reaper; that finds what other processes have marked before they died.
    """

    def __init__(
        self,
        database: Database,
        stopper: Stopper,
        *,
        clock: Clock,
        grace_s: float,
    ) -> None:
        """Wire it.

        Args:
            grace_s: What runs is ended by its worker, which tells what it cost; after so many
                seconds that is not coming, or comes too late.
        """
        self._database = database
        self._stopper = stopper
        self._clock = clock
        self._grace_s = grace_s
        self._woken = asyncio.Event()
        self._looks: deque[float] = deque(maxlen=MAX_LOOKS)
        self._log = structlog.get_logger(__name__)

    def wake(self) -> None:
        """Say that turns were marked; never blocks."""
        look_s = self._clock.monotonic() + self._grace_s + LATE_S
        if not self._looks or look_s - self._looks[-1] > LOOK_STEP_S:
            self._looks.append(look_s)
        else:
            self._looks[-1] = look_s
        self._woken.set()

    def statement(self) -> Statement:
        """Finds the turns that are due; for whoever looks at rows anyway."""
        return SQL["cancelled_turns"], {"grace_s": self._grace_s, "max_rows": MAX_PER_SWEEP}

    async def sweep(self) -> int:
        """End the turns that are due; how many."""
        ended = 0
        for _ in range(MAX_IN_A_ROW):
            rows = await self._database.fetch(*self.statement())
            ended += await self.end(rows)
            if len(rows) < MAX_PER_SWEEP:
                break
        return ended

    async def end(self, rows: Sequence[Row]) -> int:
        """End the turns that ``statement`` found; how many were still open."""
        waiting = [_waiting(row) for row in rows if not row["has_started"]]
        ended = 0
        if waiting:
            settled = await self._stopper.settler.settle(waiting, consumer=None)
            ended += len(settled.ended)
        for row in rows:
            if row["has_started"]:
                ended += await self._stop(row)
        return ended

    async def _stop(self, row: Row) -> int:
        ending = of_cancel(row["reason"])
        answer = await self._stopper.stop(row, cause=_cause(row), end=lambda _shown: ending)
        if answer is None:
            return 0
        self._log.info(
            "ingestion.turn_stopped_here",
            turn_id=str(row["turn_id"]),
            conversation_id=str(row["conversation_id"]),
            reason=ending.reason,
            length=answer.length,
        )
        return 1

    async def run(self) -> None:
        """Look whenever somebody marked turns, and again after the grace, until cancelled."""
        while True:
            await self._wait()
            await self.sweep()

    async def _wait(self) -> None:
        now_s = self._clock.monotonic()
        timeout_s = max(0.0, self._looks[0] - now_s) if self._looks else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        self._woken.clear()
        while self._looks and self._looks[0] <= self._clock.monotonic():
            self._looks.popleft()


def _waiting(row: Row) -> Proposal:
    """The end of a turn that has not started, unless it has by the time its rows are locked."""
    reason = row["reason"]
    ending = QUEUE_TIMEOUT if reason == QUEUE_TIMEOUT.reason else of_cancel(reason)
    return Proposal(
        ids.caused_id(row["turn_id"], _cause(row)),
        row["tenant_id"],
        row["conversation_id"],
        row["turn_id"],
        nothing(ending),
        is_for_waiting=True,
    )


def _cause(row: Row) -> str:
    return f"stop:{row['reason']}"
