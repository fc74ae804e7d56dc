"""Brings the entries of running attempts to the live stream: in order, and again if lost."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from uuid import UUID

from libs.clock import Clock
from libs.errors import LiveStreamUnavailable
from libs.failpoints import failpoint
from libs.redis.ports import Appended, LiveStream
from libs.retry import Backoff
from libs.telemetry.logging import get_logger
from schemas.streams import Entry

MAX_PENDING = 2_000
"""Entries of one attempt held while Redis is away: 80 s at the highest rate. Beyond it the oldest
go: the checkpoint holds their text, and a client gets a snapshot instead."""

MAX_ENTRIES_AT_ONCE = 64
"""Entries of one attempt in one append; more only after a pause of Redis, in several rounds."""

RETRY = Backoff(base_s=0.05, cap_s=1.0)
"""Between attempts to reach Redis. The longest is the rate at which gateways read checkpoints."""


class Channel:
    """The entries of one attempt on their way; made by ``LiveWriter.open``."""

    __slots__ = ("_settled", "is_closed", "is_fenced", "on_fenced", "pending", "turn_id")

    def __init__(self, turn_id: UUID, on_fenced: Callable[[], None]) -> None:
        self.turn_id = turn_id
        self.on_fenced = on_fenced
        self.pending: deque[Entry] = deque()
        self.is_fenced = False
        self.is_closed = False
        self._settled: asyncio.Event | None = None

    async def settled(self, timeout_s: float) -> bool:
        """Wait until nothing is pending, or the time is up, or a higher attempt has written."""
        if not self.pending:
            return True
        self._settled = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._settled.wait()
        except TimeoutError:
            return False
        finally:
            self._settled = None
        return not self.pending

    def settle(self) -> None:
        """Wake whoever waits in ``settled``."""
        if self._settled is not None:
            self._settled.set()


class LiveWriter:
    """The one writer of a process: all turns that have something to say go in one round trip.

    One round at a time, so two appends of one turn never overtake each other.
    """

    def __init__(self, live: LiveStream, *, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._dirty: dict[UUID, Channel] = {}
        self._wake = asyncio.Event()
        self._log = get_logger()

    @property
    def connected(self) -> bool:
        """Whether Redis can be reached, as far as the process knows."""
        return self._live.connected

    def open(self, turn_id: UUID, on_fenced: Callable[[], None]) -> Channel:
        """A channel for one attempt; ``on_fenced`` is called if a higher attempt has written."""
        return Channel(turn_id, on_fenced)

    def put(self, channel: Channel, entry: Entry) -> None:
        """Send an entry soon; never blocks and cannot fail."""
        if channel.is_fenced or channel.is_closed:
            return
        if len(channel.pending) >= MAX_PENDING:
            channel.pending.popleft()
        channel.pending.append(entry)
        self._dirty[channel.turn_id] = channel
        self._wake.set()

    def close(self, channel: Channel) -> None:
        """Forget what is still pending; the stored text covers it."""
        channel.is_closed = True
        channel.pending.clear()
        if self._dirty.get(channel.turn_id) is channel:
            del self._dirty[channel.turn_id]

    async def run(self) -> None:
        """Write until cancelled; while Redis is away entries wait, and generation goes on."""
        failures = 0
        while True:
            if not self._dirty:
                await self._wake.wait()
            self._wake.clear()
            batch = {
                turn_id: list(channel.pending)[:MAX_ENTRIES_AT_ONCE]
                for turn_id, channel in self._dirty.items()
            }
            try:
                results = await self._append(batch)
            except LiveStreamUnavailable:
                failures += 1
                if failures == 1:
                    self._log.warning("llm.live_stream_away", turns=len(batch))
                await self._clock.sleep(RETRY.delay_s(failures, jitter=0.5))
                continue
            if failures:
                self._log.info("llm.live_stream_back", failures=failures)
                failures = 0
            self._settle(batch, results)

    async def _append(self, batch: Mapping[UUID, list[Entry]]) -> Mapping[UUID, Appended]:
        if len(batch) == 1:
            turn_id, entries = next(iter(batch.items()))
            return {turn_id: await self._live.append(turn_id, entries)}
        return await self._live.append_many(list(batch.items()))

    def _settle(self, batch: Mapping[UUID, list[Entry]], results: Mapping[UUID, Appended]) -> None:
        for turn_id, entries in batch.items():
            channel = self._dirty.get(turn_id)
            if channel is None:
                continue
            for entry in entries:
                # The head may have been dropped meanwhile; never more than what was sent.
                if channel.pending and channel.pending[0].id <= entry.id:
                    channel.pending.popleft()
                if entry.event == "content_delta":
                    failpoint("llm.after_delta")
            if results[turn_id].fenced:
                channel.is_fenced = True
                channel.pending.clear()
                channel.on_fenced()
            if not channel.pending:
                del self._dirty[turn_id]
                channel.settle()
