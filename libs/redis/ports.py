"""What the services ask of Redis: the live stream of a turn, and the bells that announce it.

Nothing here is needed for a turn to be right. Everything may vanish at any moment, and then the
same facts come from rows.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from schemas.streams import Entry, EntryId

STREAM_EXPIRE_S = 7200
"""A running turn's stream; the time is set again by every accepted write."""

ENDED_EXPIRE_S = 600
"""An ended turn's stream: long enough for a client that was cut off at the end to come back."""

WATCH_EXPIRE_S = 15
"""A watcher that does not report again within this time counts as gone (its gateway crashed)."""

WATCH_REFRESH_S = 5
"""How often a gateway reports the turns it watches: two reports may be lost before it counts."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of the entries of one append.

    A writer that repeats its tail after a lost answer sees ``accepted == 0`` and not ``fenced``:
    that is success. ``fenced`` means that a higher attempt has written, so stop.
    ``created`` by a write that is not the turn's first says that Redis lost what clients were
    shown; the absence of entries then proves nothing.

    Attributes:
        accepted: How many entries were new and are now in the stream.
        last: The last id of the stream afterwards; None only where nothing was written to none.
        fenced: All were refused because a higher attempt has already written.
        created: This append made the stream: what was there before is gone, or never was.
    """

    accepted: int
    last: EntryId | None
    fenced: bool
    created: bool


def bell_channel(turn_id: UUID) -> str:
    """The channel on which the accepted entries of a turn are announced."""
    return f"bell:{turn_id}"


def reply_channel(request_id: UUID) -> str:
    """The channel on which the outcome of a request is announced."""
    return f"reply:{request_id}"


def bell_body(entry: Entry) -> bytes:
    """An entry as the bell carries it: ``<id> <event> <json>``."""
    return b"%b %b %b" % (str(entry.id).encode(), entry.event.encode(), entry.data)


def parse_bell(body: bytes) -> Entry:
    """Read what ``bell_body`` wrote.

    Raises:
        ValueError: The body is not such a bell.
    """
    parts = body.split(b" ", 2)
    try:
        id_, event, data = parts
        return Entry(EntryId.parse(id_.decode()), event.decode(), data)
    except ValueError as error:
        msg = "a bell is an entry id, an event name and JSON, separated by single spaces"
        raise ValueError(msg) from error


def expiry(entries: Iterable[Entry], expire_s: int) -> int:
    """Seconds a stream lives after these entries: the end of a turn shortens its life."""
    ends = any(entry.is_done for entry in entries)
    return min(expire_s, ENDED_EXPIRE_S) if ends else expire_s


def is_fenced(entries: Sequence[Entry], *, accepted: int, last: EntryId) -> bool:
    """Whether all entries were refused because a higher attempt than any of them has written."""
    return accepted == 0 and last.attempt > max(entry.id.attempt for entry in entries)


class LiveStream(Protocol):
    """The live streams of all turns, one Redis Stream each, with explicit ids.

    Every method raises ``LiveStreamUnavailable`` where Redis does not answer in time, except those
    that say otherwise. All may be called again after it: ids are explicit, so a repeat is refused.
    One writer must not have two appends of the same turn under way: an earlier one that failed
    could not be repeated once a later one was accepted.
    """

    @property
    def connected(self) -> bool:
        """Whether Redis can be reached, as far as the process knows."""
        ...

    async def append(
        self, turn_id: UUID, entries: Sequence[Entry], *, expire_s: int = STREAM_EXPIRE_S
    ) -> Appended:
        """Write entries in the order of their ids, in one step, and ring for each accepted one.

        An entry whose id is not above the stream's last is refused alone, the others are written.
        A fence is written but never announced. ``done`` cuts the expiry to ``ENDED_EXPIRE_S``.
        """
        ...

    async def append_many(
        self,
        batch: Sequence[tuple[UUID, Sequence[Entry]]],
        *,
        expire_s: int = STREAM_EXPIRE_S,
    ) -> dict[UUID, Appended]:
        """Like ``append`` for many turns in one round trip; entries of one turn go together."""
        ...

    async def read(self, turn_id: UUID, after: EntryId, limit: int) -> list[Entry]:
        """Up to ``limit`` entries with higher ids, in order; fences are among them."""
        ...

    async def last_id(self, turn_id: UUID) -> EntryId | None:
        """The id of the last entry; None if there is no stream."""
        ...

    async def exists(self, turn_id: UUID) -> bool:
        """Whether Redis has a stream of this turn."""
        ...

    async def forget(self, turn_id: UUID) -> bool:
        """Delete a turn's stream, since its answer was deleted.

        Returns False, never an error, if Redis did not take it: what is left goes with its expiry.
        For ended turns alone: with the stream goes the fence that shuts out dead writers.
        """
        ...

    async def ring(self, channel: str, body: bytes) -> bool:
        """Announce something on a channel; False, never an error, if Redis did not take it."""
        ...

    async def watch(self, turn_id: UUID, watcher: str) -> bool:
        """Say that a process watches a turn; to be said again every ``WATCH_REFRESH_S``.

        Returns False, never an error, if Redis did not take it.
        """
        ...

    async def unwatch(self, turn_id: UUID, watcher: str) -> bool:
        """Say that a process no longer watches; False, never an error, if Redis did not take it."""
        ...

    async def watchers(self, turn_id: UUID) -> int | None:
        """How many processes watch a turn, without those that fell silent.

        Never raises. None where nobody can tell: Redis is away, has lost its memory, or the turn
        was never watched. Only ``0`` is evidence that the last watcher left.
        """
        ...


OnBell = Callable[[str, bytes], None]
"""Called with channel and body, on the event loop, in order; must not block and must not raise."""

OnLost = Callable[[], None]
"""Called when bells may have been missed and the channel is heard again: read now."""


class Doorbell(Protocol):
    """Hears the bells of one process over one connection."""

    @property
    def connected(self) -> bool:
        """Whether bells can be heard at the moment. Without them a gateway is degraded."""
        ...

    def listen(
        self, channel: str, on_bell: OnBell, on_lost: OnLost | None = None
    ) -> AbstractAsyncContextManager[bool]:
        """Hear a channel inside the ``async with``; enter before the first read of the stream.

        Yields True once Redis has confirmed the subscription. Yields False, never an error, where
        it did not in time; the channel is then subscribed later, followed by ``on_lost``.
        """
        ...
