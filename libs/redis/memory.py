"""Redis in memory: twins of the live stream and the doorbell, for tests and simulations."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from libs.errors import LiveStreamUnavailable
from libs.redis.ports import (
    STREAM_EXPIRE_S,
    WATCH_EXPIRE_S,
    Appended,
    OnBell,
    OnLost,
    bell_body,
    bell_channel,
    expiry,
    is_fenced,
)
from schemas.streams import BEFORE_ALL, Entry, EntryId


@dataclass(slots=True)
class MemoryStream:
    """Entries of one turn, ascending, and the time at which they are forgotten."""

    entries: list[Entry] = field(default_factory=list)
    expires_at: float = 0.0

    @property
    def last(self) -> EntryId | None:
        """The highest id."""
        return self.entries[-1].id if self.entries else None


@dataclass(slots=True, eq=False)
class MemoryListener:
    """Somebody who listens to a channel."""

    channel: str
    on_bell: OnBell
    on_lost: OnLost | None


class MemoryRedis:
    """What the twins share: one imagined server, with its faults at the caller's command.

    Args:
        now: Seconds on a clock that never runs backwards; a simulation passes its own.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.is_away = False
        self.watchers: dict[UUID, dict[str, float]] = {}
        self.listeners: list[MemoryListener] = []
        self._streams: dict[UUID, MemoryStream] = {}

    def go_away(self) -> None:
        """Refuse everything until ``come_back``; what is stored stays."""
        self.is_away = True

    def lost(self) -> None:
        """Forget everything, and refuse everything until ``come_back``: a killed server."""
        self.flush()
        self.is_away = True

    def flush(self) -> None:
        """Forget everything, without a word to anybody."""
        self._streams.clear()
        self.watchers.clear()

    def come_back(self) -> None:
        """Answer again, and tell every listener that it may have missed bells."""
        self.is_away = False
        for listener in tuple(self.listeners):
            if listener.on_lost is not None:
                listener.on_lost()

    def expires_in(self, turn_id: UUID) -> float | None:
        """Seconds until a stream is forgotten; None if there is none."""
        stream = self.stream(turn_id)
        return stream.expires_at - self.now() if stream is not None else None

    def stream(self, turn_id: UUID) -> MemoryStream | None:
        """The stream of a turn, if it has not expired."""
        stream = self._streams.get(turn_id)
        if stream is not None and stream.expires_at <= self.now():
            del self._streams[turn_id]
            return None
        return stream

    def store(self, turn_id: UUID, stream: MemoryStream) -> None:
        """Keep a stream."""
        self._streams[turn_id] = stream

    def forget(self, turn_id: UUID) -> None:
        """Keep it no longer."""
        self._streams.pop(turn_id, None)

    def publish(self, channel: str, body: bytes) -> None:
        """Ring for everybody who listens to the channel."""
        for listener in tuple(self.listeners):
            if listener.channel == channel:
                listener.on_bell(channel, body)

    def check(self) -> None:
        """Answer as a server does that may be away.

        Raises:
            LiveStreamUnavailable: It is away.
        """
        if self.is_away:
            msg = "the in-memory Redis is away; bring it back with come_back()"
            raise LiveStreamUnavailable(msg)


class MemoryLiveStream:
    """Twin of ``RedisLiveStream``."""

    def __init__(self, server: MemoryRedis) -> None:
        self._server = server

    @property
    def connected(self) -> bool:
        """Whether the imagined server answers."""
        return not self._server.is_away

    async def append(
        self, turn_id: UUID, entries: Sequence[Entry], *, expire_s: int = STREAM_EXPIRE_S
    ) -> Appended:
        """Write entries in one step; see ``LiveStream.append``."""
        self._server.check()
        stream = self._server.stream(turn_id)
        if not entries:
            return Appended(0, stream.last if stream else None, fenced=False, created=False)
        created = stream is None
        stream = stream or MemoryStream()
        accepted = [entry for entry in entries if self._write(turn_id, stream, entry)]
        if accepted:
            stream.expires_at = self._server.now() + expiry(entries, expire_s)
            self._server.store(turn_id, stream)
        last = stream.last or BEFORE_ALL
        return Appended(
            len(accepted),
            last,
            fenced=is_fenced(entries, accepted=len(accepted), last=last),
            created=created,
        )

    def _write(self, turn_id: UUID, stream: MemoryStream, entry: Entry) -> bool:
        if entry.id <= (stream.last or BEFORE_ALL):
            return False
        stream.entries.append(entry)
        if not entry.is_fence:
            self._server.publish(bell_channel(turn_id), bell_body(entry))
        return True

    async def append_many(
        self,
        batch: Sequence[tuple[UUID, Sequence[Entry]]],
        *,
        expire_s: int = STREAM_EXPIRE_S,
    ) -> dict[UUID, Appended]:
        """Write the entries of many turns; see ``LiveStream.append_many``."""
        merged: dict[UUID, list[Entry]] = {}
        for turn_id, entries in batch:
            merged.setdefault(turn_id, []).extend(entries)
        return {
            turn_id: await self.append(turn_id, entries, expire_s=expire_s)
            for turn_id, entries in merged.items()
        }

    async def read(self, turn_id: UUID, after: EntryId, limit: int) -> list[Entry]:
        """Entries after an id, in order; see ``LiveStream.read``."""
        self._server.check()
        stream = self._server.stream(turn_id)
        entries = stream.entries if stream is not None else []
        return [entry for entry in entries if entry.id > after][:limit]

    async def last_id(self, turn_id: UUID) -> EntryId | None:
        """The id of the last entry; None if there is no stream."""
        self._server.check()
        stream = self._server.stream(turn_id)
        return stream.last if stream is not None else None

    async def exists(self, turn_id: UUID) -> bool:
        """Whether there is a stream of this turn."""
        return await self.last_id(turn_id) is not None

    async def forget(self, turn_id: UUID) -> bool:
        """Delete a turn's stream; False, never an error, if the server is away."""
        if self._server.is_away:
            return False
        self._server.forget(turn_id)
        return True

    async def ring(self, channel: str, body: bytes) -> bool:
        """Publish; False, never an error, if the server is away."""
        if self._server.is_away:
            return False
        self._server.publish(channel, body)
        return True

    async def watch(self, turn_id: UUID, watcher: str) -> bool:
        """Report a watcher; False, never an error, if the server is away."""
        if self._server.is_away:
            return False
        reports = self._server.watchers.setdefault(turn_id, {})
        reports[watcher] = self._server.now() + WATCH_EXPIRE_S
        return True

    async def unwatch(self, turn_id: UUID, watcher: str) -> bool:
        """Take a watcher away; False, never an error, if the server is away."""
        if self._server.is_away:
            return False
        self._server.watchers.get(turn_id, {}).pop(watcher, None)
        return True

    async def watchers(self, turn_id: UUID) -> int | None:
        """How many watch; None where nobody can tell. See ``LiveStream.watchers``."""
        reports = self._server.watchers.get(turn_id)
        if self._server.is_away or reports is None:
            return None
        return sum(runs_out > self._server.now() for runs_out in reports.values())


class MemoryDoorbell:
    """Twin of ``RedisDoorbell``."""

    def __init__(self, server: MemoryRedis) -> None:
        self._server = server

    @property
    def connected(self) -> bool:
        """Whether bells can be heard at the moment."""
        return not self._server.is_away

    @contextlib.asynccontextmanager
    async def listen(
        self, channel: str, on_bell: OnBell, on_lost: OnLost | None = None
    ) -> AsyncIterator[bool]:
        """Hear a channel; see ``Doorbell.listen``."""
        listener = MemoryListener(channel, on_bell, on_lost)
        self._server.listeners.append(listener)
        try:
            yield self.connected
        finally:
            self._server.listeners.remove(listener)
