"""Tells live listeners what has been committed: stream entries and rings, at best effort.

Everything told here also follows from rows, so a failure costs a client at most a poll. It happens
after the commit, never inside a transaction, and never fails the work it follows.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from uuid import UUID

import structlog

from libs.errors import LiveStreamUnavailable
from libs.redis.ports import LiveStream, reply_channel
from schemas.streams import Entry

ANNOUNCE_TIMEOUT_S = 1.0
"""A Redis that hangs must not hold up the batches behind; the gateway polls anyway."""


class Announcer:
    """Writes to the live stream on behalf of committed transactions."""

    def __init__(self, live: LiveStream) -> None:
        self._live = live
        self._log = structlog.get_logger(__name__)

    async def announce(
        self,
        entries: Sequence[tuple[UUID, Sequence[Entry]]],
        *,
        outcomes: Sequence[tuple[UUID, str]] = (),
        forgotten: Sequence[UUID] = (),
    ) -> None:
        """Append entries of turns and ring for outcomes, each (request, outcome); never raises.

        Args:
            forgotten: Turns whose answer is deleted: their streams go too. Where Redis does not
                hear it, a stream stays until it expires, and nobody is let in to read it.
        """
        rings: list[Awaitable[object]] = [
            self._live.ring(reply_channel(request), outcome.encode())
            for request, outcome in outcomes
        ]
        rings += [self._live.forget(turn_id) for turn_id in forgotten]
        try:
            async with asyncio.timeout(ANNOUNCE_TIMEOUT_S):
                if entries:
                    await asyncio.gather(*rings, self._live.append_many(entries))
                else:
                    await asyncio.gather(*rings)
        except (LiveStreamUnavailable, TimeoutError) as error:
            self._log.warning(
                "ingestion.not_announced", turns=len(entries), reason=type(error).__name__
            )
