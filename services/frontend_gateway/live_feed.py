"""One client's way through one turn's stream: what to send, when to read, when to ask the rows."""

from collections.abc import AsyncIterator, Sequence

from libs.errors import LiveStreamUnavailable, StoreUnavailable
from schemas.streams import BEFORE_ALL, Entry, EntryId
from services.frontend_gateway.core import turns
from services.frontend_gateway.core.cursors import cursor_invalid
from services.frontend_gateway.core.following import (
    Backlog,
    Position,
    Verdict,
    advanced,
    before,
    is_next,
    judge,
    promised_length,
)
from services.frontend_gateway.core.sse import PING, PREAMBLE, frame
from services.frontend_gateway.core.turns import Checkpoint, TurnView
from services.frontend_gateway.hub import (
    Bells,
    Closing,
    Hub,
    LiveRead,
    Missed,
    Seat,
    SeatClosed,
    Tick,
)
from services.frontend_gateway.ports import Facts, Reads

PAGE_ENTRIES = 500  # read at once: bounds the memory of a client that starts from the beginning


async def locate(turn: TurnView, wanted: EntryId, *, live: LiveRead, reads: Reads) -> Position:
    """Where a client that has everything up to ``wanted`` goes on.

    Raises:
        Problem: ``cursor-invalid`` if this turn never issued that id.
    """
    backlog = Backlog.of(wanted)
    after = BEFORE_ALL
    try:
        while after <= wanted:
            entries = await live.read(turn.id, after, PAGE_ENTRIES)
            for entry in entries:
                after = entry.id
                backlog = backlog.seen(entry)
                if entry.id > wanted:
                    break
            if len(entries) < PAGE_ENTRIES:
                break
    except LiveStreamUnavailable:
        return Position(wanted, None)  # nobody can judge it
    position = backlog.position(turn.upto)
    if position is None and not turn.has_ended:
        checkpoint = (await reads.checkpoints(turn.tenant_id, [turn.id])).get(turn.id)
        position = backlog.position(checkpoint.upto if checkpoint else None)
    if position is None:
        raise cursor_invalid("This turn never issued that entry id.")
    return position


class Feed:
    """The bytes that one client gets, in order; ends by itself after ``done``.

    It never starts work and never waits for itself: new entries come from its seat's bells, from
    reading the stream where a bell may be missing, and from the rows where the stream is.

    Attributes:
        position: What the client was given so far.
    """

    def __init__(
        self, turn: TurnView, position: Position | None, *, seat: Seat, hub: Hub, reads: Reads
    ) -> None:
        self._turn = turn
        self._is_fresh = position is None
        self.position = position or Position(BEFORE_ALL, 0)
        self._seat = seat
        self._live = hub.live
        self._ping_s = hub.pace.ping_s
        self._reads = reads
        self._is_dirty = True  # the stream may hold more than was read
        self._is_away = False  # the last read failed
        self._needs: EntryId | None = None  # what a snapshot must reach before entries go on
        self._checkpoint: Checkpoint | None = None
        self._is_over = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """Chunks of whole events.

        Raises:
            SeatClosed: The stream must stop here: too slow, key revoked, or a restart.
        """
        yield PREAMBLE
        if self._turn.has_ended and self._is_fresh:
            text = await self._answer()
            yield b"".join(frame(entry) for entry in turns.replay(self._turn, text))
            return
        if self._is_fresh:
            yield self._sent(turns.opening(self._turn))
        while not self._is_over:
            try:
                chunk = await self._next()
            except StoreUnavailable:
                chunk = b""  # the rows are asked again at the next tick
                self._is_dirty = False
                chunk += await self._wait()
            if chunk:
                yield chunk

    async def _next(self) -> bytes:
        if self._is_dirty and self._needs is None and not self._is_away:
            return await self._page()
        if self._turn.has_ended:
            return await self._end_from_rows()
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None and checkpoint.upto >= self._wanted_upto():
            return self._snapshot(checkpoint)
        return await self._wait()

    def _wanted_upto(self) -> EntryId:
        """What a checkpoint has to cover so that the client gains from it."""
        last = self.position.last
        return self._needs or EntryId(last.attempt, last.n + 1)

    async def _wait(self) -> bytes:
        self._seat.is_blind = self._is_away or self._needs is not None
        match await self._seat.next(self._ping_s):
            case Bells(entries):
                return self._heard(entries)
            case Tick(facts):
                self._told(facts)
                return b""
            case Missed():
                self._is_dirty = True
                self._is_away = False
                return b""
        return PING

    def _heard(self, entries: Sequence[Entry]) -> bytes:
        """Bells with their bodies; anything but the very next entry means reading the stream."""
        if self._needs is not None or self._is_dirty or self._is_away:
            self._is_dirty = True
            self._is_away = False
            return b""
        chunk: list[bytes] = []
        for entry in entries:
            if is_next(self.position.last, entry.id):
                chunk.append(self._sent(entry))
            elif entry.id > self.position.last:
                self._is_dirty = True
                break
        return b"".join(chunk)

    def _told(self, facts: Facts) -> None:
        """What the rows say, once the stream has been silent or unreadable for a while."""
        self._turn = facts.turn
        self._checkpoint = facts.checkpoint
        self._is_dirty = True
        self._is_away = False

    async def _page(self) -> bytes:
        try:
            entries = await self._live.read(self._turn.id, self.position.last, PAGE_ENTRIES)
        except LiveStreamUnavailable:
            self._is_away = True
            return b""
        started_at = self.position.last
        chunk: list[bytes] = []
        self._is_dirty = False
        for index, entry in enumerate(entries):
            verdict = judge(self.position.last, entry)
            if verdict is Verdict.GAP:
                self._needs = before(entry.id)
                break
            if verdict is Verdict.END:
                chunk.append(await self._end(entries[index:]))
                break
            if verdict is Verdict.SEND:
                chunk.append(self._sent(entry))
        else:
            self._is_dirty = len(entries) == PAGE_ENTRIES and self.position.last > started_at
        return b"".join(chunk)

    async def _end(self, entries: Sequence[Entry]) -> bytes:
        """The last entries as the stream holds them, if the client's text is whole."""
        done = entries[-1]
        if done.is_done and self._is_whole(promised_length(done)):
            self._is_over = True
            return b"".join(self._sent(entry) for entry in entries)
        turn = await self._reads.turn(self._turn.tenant_id, self._turn.id)
        if turn is None or not turn.has_ended:
            return b""  # the row was rolled back in front of the stream: wait for the next tick
        self._turn = turn
        return await self._end_from_rows()

    async def _end_from_rows(self) -> bytes:
        turn = self._turn
        entries = turns.rest_of_ending(turn, self.position.last)
        if entries is None:
            entries = turns.ending(turn)
            if not self._is_whole(turn.length or 0):
                text = await self._answer()
                whole = turns.whole_answer(turn, text, held=self.position.last)
                entries = (whole, *entries)
        self._is_over = True
        return b"".join(self._sent(entry) for entry in entries)

    async def _answer(self) -> str:
        """The stored answer.

        Raises:
            SeatClosed: It was deleted in this very moment.
        """
        text = await self._reads.answer(self._turn.tenant_id, self._turn.id)
        if text is None:
            raise SeatClosed(Closing.DELETED)
        return text

    def _is_whole(self, length: int) -> bool:
        """Whether the client holds the whole answer, or is past the point where that mattered."""
        is_past = turns.is_terminal_id(self.position.last)
        return is_past or (self._needs is None and self.position.length == length)

    def _snapshot(self, checkpoint: Checkpoint) -> bytes:
        self._needs = None
        self._is_dirty = True
        return self._sent(turns.partial_answer(checkpoint))

    def _sent(self, entry: Entry) -> bytes:
        self.position = advanced(self.position, entry)
        return frame(entry)
