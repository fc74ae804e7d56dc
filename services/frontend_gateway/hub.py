"""All streams of a process: one tail per watched turn, one bounded seat per client, one ticker.

The hub hears bells once however many clients follow a turn, asks the rows of all silent turns in
one query, and closes seats that are too slow, whose key was revoked, or when the process stops.
"""

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from libs.errors import StoreUnavailable
from libs.redis.ports import WATCH_REFRESH_S, OnBell, OnLost, bell_channel, parse_bell
from schemas.streams import Entry, EntryId
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.ports import Facts, Proof, Watched

SEAT_ENTRIES = 256  # a reader ten seconds behind a full-speed answer comes back by its last id
SEAT_BYTES = 1024 * 1024  # the same bound where entries are large
MAX_ASKED = 500  # tails in one query; the others have their turn at the next tick
FACTS_TIMEOUT_S = 5.0  # a slower answer belongs to a database in trouble; the next tick asks again


@dataclass(frozen=True, slots=True)
class Pace:
    """How often streams are looked after, in seconds.

    Attributes:
        tick_s: Between two looks; snapshots from rows come so often while Redis is away.
        idle_s: Silence after which a bell, or the last entry, may have been lost.
        recheck_s: A revoked key keeps a stream open no longer.
        ping_s: Between comments on a silent stream; below the idle limits of common proxies.
    """

    tick_s: float = 1.0
    idle_s: float = 2.0
    recheck_s: float = 5.0
    ping_s: float = 15.0


class Closing(StrEnum):
    """Why a stream is ended before ``done``."""

    SLOW = "slow"
    REVOKED = "revoked"
    RESTART = "restart"
    GONE = "gone"
    DELETED = "deleted"


class SeatClosed(Exception):
    """The stream of this seat must stop now."""

    def __init__(self, why: Closing) -> None:
        super().__init__(why.value)
        self.why = why


class LiveRead(Protocol):
    """The part of the live stream that a gateway uses; see ``libs.redis.ports.LiveStream``."""

    async def read(self, turn_id: UUID, after: EntryId, limit: int) -> list[Entry]:
        """Up to ``limit`` entries with higher ids. May raise ``LiveStreamUnavailable``."""
        ...

    async def watch(self, turn_id: UUID, watcher: str) -> bool:
        """Say that this process watches a turn."""
        ...

    async def unwatch(self, turn_id: UUID, watcher: str) -> bool:
        """Say that it no longer does."""
        ...


class Bell(Protocol):
    """The part of the doorbell that a gateway uses; see ``libs.redis.ports.Doorbell``."""

    def listen(
        self, channel: str, on_bell: OnBell, on_lost: OnLost | None = None
    ) -> AbstractAsyncContextManager[bool]:
        """Hear a channel inside the ``async with``."""
        ...


@dataclass(frozen=True, slots=True)
class Bells:
    """Entries that were announced, in the order of their bells."""

    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Tick:
    """What the rows say about the turn."""

    facts: Facts


@dataclass(frozen=True, slots=True)
class Missed:
    """Bells may have been missed."""


class Seat:
    """One client's place at a tail: a bounded queue and the reasons to stop.

    Attributes:
        is_blind: The client waits for rows; set by its feed, read by the ticker.
    """

    def __init__(
        self, key_id: UUID, proof: Proof, on_close: Callable[[Closing], None] = lambda _: None
    ) -> None:
        self.key_id = key_id
        self.proof = proof
        self.is_blind = False
        self.closing: Closing | None = None
        self._on_close = on_close
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._facts: Facts | None = None
        self._has_missed = False
        self._woken = asyncio.Event()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of entries that the client has not taken yet."""
        return self._bytes

    def ring(self, entry: Entry) -> None:
        """Queue an announced entry; a full seat is closed, the client resumes by its last id."""
        if self.closing is not None:
            return
        if len(self._entries) >= SEAT_ENTRIES or self._bytes + len(entry.data) > SEAT_BYTES:
            if not self._entries:  # one huge entry: read it from the stream instead
                self.miss()
                return
            self.close(Closing.SLOW)
            return
        self._entries.append(entry)
        self._bytes += len(entry.data)
        self._woken.set()

    def tell(self, facts: Facts) -> None:
        """Leave the newest facts; older ones that were not taken are replaced."""
        self._facts = facts
        self._woken.set()

    def miss(self) -> None:
        """Say that bells may have been missed."""
        self._has_missed = True
        self._woken.set()

    def close(self, why: Closing) -> None:
        """End the stream; the first reason stays."""
        if self.closing is None:
            self.closing = why
            self._entries.clear()
            self._bytes = 0
            self._woken.set()
            self._on_close(why)

    async def next(self, timeout_s: float) -> Bells | Tick | Missed | None:
        """What there is, or None after ``timeout_s`` seconds of silence.

        Raises:
            SeatClosed: The seat was closed.
        """
        if not self._has_something():
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._woken.wait()
        if self.closing is not None:
            raise SeatClosed(self.closing)
        if self._has_missed:
            self._has_missed = False
            return Missed()
        if self._entries:
            entries = tuple(self._entries)
            self._entries.clear()
            self._bytes = 0
            return Bells(entries)
        facts, self._facts = self._facts, None
        return Tick(facts) if facts is not None else None

    def _has_something(self) -> bool:
        return (
            self.closing is not None
            or self._has_missed
            or bool(self._entries)
            or self._facts is not None
        )


class Tail:
    """One watched turn of this process."""

    def __init__(self, turn: TurnView, now: float) -> None:
        self.turn = turn
        self.seats: set[Seat] = set()
        self.heard_at = now
        self.ready = asyncio.Event()
        self.closed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def on_bell(self, channel: str, body: bytes) -> None:
        """Pass an announced entry to every seat; a body that is none means: read."""
        del channel  # a tail hears one channel
        self.heard_at = asyncio.get_running_loop().time()
        try:
            entry = parse_bell(body)
        except ValueError:
            self.on_lost()
            return
        for seat in tuple(self.seats):
            seat.ring(entry)

    def on_lost(self) -> None:
        """Tell every seat that bells may be missing."""
        for seat in tuple(self.seats):
            seat.miss()

    def wants_facts(self, now: float, *, idle_s: float) -> bool:
        """Whether a client waits for rows, or the turn has been silent for too long."""
        return now - self.heard_at >= idle_s or any(seat.is_blind for seat in self.seats)


class Hub:
    """Made once per process; ``run`` has to be running."""

    def __init__(
        self,
        *,
        live: LiveRead,
        bell: Bell,
        watched: Watched,
        is_allowed: Callable[[Proof], Awaitable[bool]],
        watcher: str,
        pace: Pace,
    ) -> None:
        self.live = live
        self.pace = pace
        self._bell = bell
        self._watched = watched
        self._is_allowed = is_allowed
        self._watcher = watcher
        self._tails: dict[UUID, Tail] = {}
        self._per_key: Counter[UUID] = Counter()
        self._is_draining = False
        self._emptied = asyncio.Event()
        self._reports: set[asyncio.Task[bool]] = set()

    @property
    def is_draining(self) -> bool:
        """Whether the process is about to end and takes no new stream."""
        return self._is_draining

    @property
    def stream_count(self) -> int:
        """Open streams."""
        return self._per_key.total()

    @property
    def buffered_bytes(self) -> int:
        """Bytes queued for all clients."""
        return sum(seat.buffered_bytes for tail in self._tails.values() for seat in tail.seats)

    def streams_of(self, key_id: UUID) -> int:
        """Open streams of one API key."""
        return self._per_key[key_id]

    @contextlib.asynccontextmanager
    async def seat(
        self, turn: TurnView, key_id: UUID, proof: Proof, on_close: Callable[[Closing], None]
    ) -> AsyncIterator[Seat]:
        """A place at the turn's tail, which hears its bells before this returns."""
        seat = Seat(key_id, proof, on_close)
        tail = self._tails.get(turn.id)
        if tail is None:
            tail = self._tails[turn.id] = Tail(turn, asyncio.get_running_loop().time())
            tail.task = asyncio.create_task(self._listen(tail), name=f"tail-{turn.id}")
        tail.seats.add(seat)
        self._per_key[key_id] += 1
        try:
            await tail.ready.wait()
            if self._is_draining:
                seat.close(Closing.RESTART)
            yield seat
        finally:
            tail.seats.discard(seat)
            self._per_key[key_id] -= 1
            if self._per_key[key_id] <= 0:
                del self._per_key[key_id]
            if not tail.seats:
                tail.closed.set()
                if self._tails.get(turn.id) is tail:
                    del self._tails[turn.id]
                if not self._tails:
                    self._emptied.set()

    async def run(self) -> None:
        """Tick until cancelled."""
        loop = asyncio.get_running_loop()
        recheck_at = report_at = loop.time()
        while True:
            await asyncio.sleep(self.pace.tick_s)
            await self._ask_rows(loop.time())
            if loop.time() >= report_at:
                report_at = loop.time() + WATCH_REFRESH_S
                for tail in self._tails.values():
                    self._report(tail, watching=True)
            if loop.time() >= recheck_at:
                recheck_at = loop.time() + self.pace.recheck_s
                await self._recheck()

    async def drain(self, over_s: float) -> None:
        """End all streams at random moments within ``over_s`` seconds; clients resume elsewhere."""
        self._is_draining = True
        if not self._tails:
            return
        self._emptied.clear()
        loop = asyncio.get_running_loop()
        for tail in self._tails.values():
            for seat in tail.seats:
                loop.call_later(random.uniform(0, over_s), seat.close, Closing.RESTART)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(over_s):
                await self._emptied.wait()

    def resume(self) -> None:
        """Take streams again after a drain that was called off."""
        self._is_draining = False

    async def close(self) -> None:
        """End what is left at once."""
        tasks = [tail.task for tail in self._tails.values() if tail.task is not None]
        for tail in tuple(self._tails.values()):
            for seat in tuple(tail.seats):
                seat.close(Closing.RESTART)
            tail.closed.set()
        if waiting := {*tasks, *self._reports}:
            await asyncio.wait(waiting, timeout=1)

    async def _listen(self, tail: Tail) -> None:
        try:
            async with self._bell.listen(bell_channel(tail.turn.id), tail.on_bell, tail.on_lost):
                tail.ready.set()
                self._report(tail, watching=True)
                await tail.closed.wait()
        finally:
            tail.ready.set()
            self._report(tail, watching=False)

    def _report(self, tail: Tail, *, watching: bool) -> None:
        """Count this process as a watcher, where somebody will read the count."""
        if not tail.turn.stops_without_watchers:
            return
        tell = self.live.watch if watching else self.live.unwatch
        task = asyncio.ensure_future(tell(tail.turn.id, self._watcher))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _ask_rows(self, now: float) -> None:
        waiting = [
            tail for tail in self._tails.values() if tail.wants_facts(now, idle_s=self.pace.idle_s)
        ]
        waiting.sort(key=lambda tail: tail.heard_at)
        asked = {tail.turn.id: tail for tail in waiting[:MAX_ASKED]}
        if not asked:
            return
        pairs = [(tail.turn.tenant_id, tail.turn.id) for tail in asked.values()]
        try:
            async with asyncio.timeout(FACTS_TIMEOUT_S):
                answered = await self._watched.facts(pairs)
        except (StoreUnavailable, TimeoutError):
            return  # the next tick asks again
        found = {facts.turn.id: facts for facts in answered}
        for turn_id, tail in asked.items():
            tail.heard_at = now
            facts = found.get(turn_id)
            for seat in tuple(tail.seats):
                if facts is None or facts.turn.is_answer_deleted:
                    seat.close(Closing.DELETED)
                else:
                    seat.tell(facts)

    async def _recheck(self) -> None:
        for proof in {seat.proof for tail in self._tails.values() for seat in tail.seats}:
            try:
                is_allowed = await self._is_allowed(proof)
            except StoreUnavailable:
                return  # not being able to ask is no reason to cut everybody off
            if not is_allowed:
                self._close_all_of(proof)

    def _close_all_of(self, proof: Proof) -> None:
        for tail in tuple(self._tails.values()):
            for seat in tuple(tail.seats):
                if seat.proof == proof:
                    seat.close(Closing.REVOKED)
