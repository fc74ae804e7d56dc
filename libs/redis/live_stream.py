"""The live streams of turns in Redis: one script call per turn, pipelined over one connection."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from importlib import resources
from typing import cast
from uuid import UUID

from libs.errors import LiveStreamUnavailable
from libs.redis.link import ANSWER_TIMEOUT_S
from libs.redis.pipe import Argument, Pipe, Script
from libs.redis.ports import (
    STREAM_EXPIRE_S,
    WATCH_EXPIRE_S,
    Appended,
    expiry,
    is_fenced,
)
from libs.telemetry.labels import ByUse, LiveStreamUse
from schemas.streams import Entry, EntryId

MAX_ENTRIES = 20_000
"""Kept per stream. At 25 entries a second that is 13 minutes, more than twice a turn's deadline."""


def _script(name: str, *, key_count: int) -> Script:
    source = resources.files("libs.redis").joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return Script.of(source, key_count=key_count)


class RedisLiveStream:
    """Implements ``LiveStream`` on Redis 7 or Valkey."""

    def __init__(self, pipe: Pipe, *, errors: ByUse | None = None) -> None:
        self._pipe = pipe
        self._errors = errors
        self._append = _script("append", key_count=2)
        self._watch = _script("watch", key_count=1)
        self._watchers = _script("watchers", key_count=1)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        errors: ByUse | None = None,
    ) -> AsyncIterator["RedisLiveStream"]:
        """Connect, or go on trying in the background: a process starts without Redis as well.

        Args:
            answer_timeout_s: Longest wait for an answer.
            errors: Counts what Redis did not do.
        """
        pipe = Pipe(url, answer_timeout_s=answer_timeout_s)
        await pipe.open()
        try:
            yield cls(pipe, errors=errors)
        finally:
            await pipe.close()

    @property
    def connected(self) -> bool:
        """Whether Redis can be reached, as far as the process knows."""
        return self._pipe.connected

    async def append(
        self, turn_id: UUID, entries: Sequence[Entry], *, expire_s: int = STREAM_EXPIRE_S
    ) -> Appended:
        """Write entries in one script call; see ``LiveStream.append``."""
        if not entries:
            return Appended(0, await self.last_id(turn_id), fenced=False, created=False)
        arguments: list[Argument] = [expiry(entries, expire_s), MAX_ENTRIES]
        for entry in entries:
            arguments += (str(entry.id), entry.event, entry.data)
        try:
            answer = await self._pipe.run(
                self._append, _key(turn_id), f"bell:{turn_id}", *arguments
            )
        except LiveStreamUnavailable:
            self._count("append")
            raise
        accepted, last, created = cast("tuple[int, bytes, int]", answer)
        last_id = EntryId.parse(last.decode())
        return Appended(
            accepted,
            last_id,
            fenced=is_fenced(entries, accepted=accepted, last=last_id),
            created=bool(created),
        )

    async def append_many(
        self,
        batch: Sequence[tuple[UUID, Sequence[Entry]]],
        *,
        expire_s: int = STREAM_EXPIRE_S,
    ) -> dict[UUID, Appended]:
        """Write the entries of many turns in one round trip; see ``LiveStream.append_many``."""
        merged: dict[UUID, list[Entry]] = {}
        for turn_id, entries in batch:
            merged.setdefault(turn_id, []).extend(entries)
        results = await asyncio.gather(
            *(self.append(turn, entries, expire_s=expire_s) for turn, entries in merged.items())
        )
        return dict(zip(merged, results, strict=True))

    async def read(self, turn_id: UUID, after: EntryId, limit: int) -> list[Entry]:
        """Entries after an id, in order; see ``LiveStream.read``."""
        try:
            answer = await self._pipe.execute(
                "XRANGE", _key(turn_id), f"({after}", "+", "COUNT", limit
            )
        except LiveStreamUnavailable:
            self._count("read")
            raise
        rows = cast("list[tuple[bytes, list[bytes]]]", answer)
        return [_entry(id_, fields) for id_, fields in rows]

    async def last_id(self, turn_id: UUID) -> EntryId | None:
        """The id of the last entry; None if there is no stream."""
        answer = await self._pipe.execute("XREVRANGE", _key(turn_id), "+", "-", "COUNT", 1)
        rows = cast("list[tuple[bytes, list[bytes]]]", answer)
        return EntryId.parse(rows[0][0].decode()) if rows else None

    async def exists(self, turn_id: UUID) -> bool:
        """Whether Redis has a stream of this turn."""
        return bool(await self._pipe.execute("EXISTS", _key(turn_id)))

    async def forget(self, turn_id: UUID) -> bool:
        """Delete a turn's stream; False, never an error, if Redis did not take it."""
        try:
            await self._pipe.execute("UNLINK", _key(turn_id))
        except LiveStreamUnavailable:
            return False
        return True

    async def ring(self, channel: str, body: bytes) -> bool:
        """Publish; False, never an error, if Redis did not take it."""
        try:
            await self._pipe.execute("PUBLISH", channel, body)
        except LiveStreamUnavailable:
            self._count("ring")
            return False
        return True

    async def watch(self, turn_id: UUID, watcher: str) -> bool:
        """Report a watcher; False, never an error, if Redis did not take it."""
        try:
            await self._pipe.run(
                self._watch, _watch_key(turn_id), watcher, WATCH_EXPIRE_S, STREAM_EXPIRE_S
            )
        except LiveStreamUnavailable:
            self._count("watch")
            return False
        return True

    async def unwatch(self, turn_id: UUID, watcher: str) -> bool:
        """Take a watcher away; False, never an error, if Redis did not take it."""
        try:
            await self._pipe.execute("ZREM", _watch_key(turn_id), watcher)
        except LiveStreamUnavailable:
            return False
        return True

    async def watchers(self, turn_id: UUID) -> int | None:
        """How many watch; None where nobody can tell. See ``LiveStream.watchers``."""
        try:
            count = cast("int", await self._pipe.run(self._watchers, _watch_key(turn_id)))
        except LiveStreamUnavailable:
            self._count("watch")
            return None
        return count if count >= 0 else None

    def _count(self, use: LiveStreamUse) -> None:
        if self._errors is not None:
            self._errors.labels(use).inc()


def _key(turn_id: UUID) -> str:
    return f"turn:{turn_id}"


def _watch_key(turn_id: UUID) -> str:
    return f"watch:{turn_id}"


def _entry(id_: bytes, fields: list[bytes]) -> Entry:
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    return Entry(EntryId.parse(id_.decode()), values[b"event"].decode(), values[b"data"])
