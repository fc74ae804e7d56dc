"""Stops calls that nobody watches any more, where their request asked for it."""

import asyncio
from uuid import UUID

from libs.clock import Clock
from libs.redis.ports import LiveStream
from libs.telemetry.logging import get_logger
from services.llm_gateway.pool import Pool

NO_SUBSCRIBER = "no_subscriber"


class Watch:
    """Counts, for each such call, how long ago its last watcher was seen to be gone.

    Only a count of 0 starts the clock: a turn that was never watched goes on, and so does one whose
    watchers nobody can tell, because Redis is away or has lost its memory. A step that is claimed
    again starts its clock again.
    """

    def __init__(self, pool: Pool, live: LiveStream, *, clock: Clock, every_s: float) -> None:
        """``every_s`` is the pause between two looks."""
        self._pool = pool
        self._live = live
        self._clock = clock
        self._every_s = every_s
        self._alone_since: dict[tuple[UUID, int], float] = {}
        self._log = get_logger()

    async def run(self) -> None:
        """Look until cancelled; without such calls a look asks nobody anything."""
        while True:
            await self._clock.sleep(self._every_s)
            await self.look()

    async def look(self) -> None:
        """Ask who is watched, and stop what was alone for long enough."""
        calls = self._pool.stopping_alone
        counts = await asyncio.gather(*(self._live.watchers(facts.turn_id) for facts, _ in calls))
        now = self._clock.monotonic()
        alone: dict[tuple[UUID, int], float] = {}
        over: dict[UUID, str] = {}
        for (facts, cancel_after_s), count in zip(calls, counts, strict=True):
            if count != 0:
                continue
            attempt = (facts.step_id, facts.attempt)
            since = self._alone_since.get(attempt, now)
            alone[attempt] = since
            if now - since >= cancel_after_s:
                over[facts.step_id] = NO_SUBSCRIBER
                self._log.info("llm.nobody_watches", turn_id=str(facts.turn_id))
        self._alone_since = alone
        self._pool.stop(over)
