"""Decides, entry by entry, what a client that follows a stream gets next.

A client's copy is right if every entry it lacks is sent in order, or replaced by a snapshot. So an
entry is sent only where nothing with text can be missing before it.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

import orjson

from schemas.streams import (
    MESSAGE_STARTED_ID,
    TERMINAL_ATTEMPT,
    Entry,
    EntryId,
    delta_text,
)

FIRST_WITH_TEXT = 2  # number 1 of an attempt is its status


class Verdict(Enum):
    """What to do with an entry that the stream holds after the client's position."""

    SKIP = auto()  # a fence, or the client has it
    SEND = auto()
    GAP = auto()  # text before it is missing: a snapshot has to come first
    END = auto()  # one of the last entries: the length decides


def judge(last: EntryId, entry: Entry) -> Verdict:
    """What to do with ``entry``, read from the stream as the next one after ``last``.

    Entries of attempt 0 hold no text, so what is missing among them is not missed.
    """
    id_ = entry.id
    if id_ <= last or entry.is_fence:
        return Verdict.SKIP
    if id_.attempt == TERMINAL_ATTEMPT:
        return Verdict.END
    if id_.attempt == 0:
        return Verdict.SEND
    expected = last.n + 1 if id_.attempt == last.attempt else FIRST_WITH_TEXT
    return Verdict.SEND if id_.n <= expected else Verdict.GAP


def is_next(last: EntryId, id_: EntryId) -> bool:
    """Whether a bell's entry certainly follows ``last``, so that the stream need not be read."""
    return id_.attempt == last.attempt != TERMINAL_ATTEMPT and id_.n == last.n + 1


@dataclass(frozen=True, slots=True)
class Position:
    """What a client has.

    Attributes:
        last: Id of the last entry it was sent.
        length: Bytes of text it holds in UTF-8; None where that cannot be known.
    """

    last: EntryId
    length: int | None


def advanced(position: Position, entry: Entry) -> Position:
    """The position after ``entry`` was sent."""
    if entry.event == "snapshot":
        return Position(entry.id, _size(orjson.loads(entry.data)["text"]))
    if position.length is None or entry.event != "content_delta":
        return replace(position, last=entry.id)
    return Position(entry.id, position.length + _size(delta_text(entry)))


def promised_length(done: Entry) -> int:
    """The bytes of the answer that a ``done`` entry names."""
    length = orjson.loads(done.data)["length"]
    if not isinstance(length, int):
        msg = "a done entry names no length"
        raise TypeError(msg)
    return length


def before(id_: EntryId) -> EntryId:
    """The id a snapshot has to reach so that ``id_`` may follow."""
    return EntryId(id_.attempt, id_.n - 1)


@dataclass(frozen=True, slots=True)
class Backlog:
    """What the stream tells about the place where a returning client stopped.

    Walk the stream's entries in order, up to and including the first one after ``wanted``.

    Attributes:
        wanted: Id the client says it has.
        walked: Last entry seen that is not after ``wanted``.
        length: Bytes of text up to ``walked``; None after a gap.
        is_held: The stream holds ``wanted``, or it is the entry made from the row.
        is_in_hole: ``wanted`` lies where entries are missing, so it may have been issued.
        is_empty: No entry was seen: nothing can be judged.
    """

    wanted: EntryId
    walked: EntryId = MESSAGE_STARTED_ID
    length: int | None = 0
    is_held: bool = False
    is_in_hole: bool = False
    is_empty: bool = True

    @classmethod
    def of(cls, wanted: EntryId) -> "Backlog":
        """Before the first entry was seen."""
        return cls(wanted, is_held=wanted == MESSAGE_STARTED_ID)

    def seen(self, entry: Entry) -> "Backlog":
        """The backlog after one more entry."""
        if entry.is_fence:
            return self
        if entry.id > self.wanted:
            # Ids of an attempt have no gaps, so one below a held id was issued; and where the
            # stream begins after ``wanted``, what stood before is lost.
            was_issued = self.is_empty or entry.id.attempt == self.wanted.attempt
            return replace(self, is_empty=False, is_in_hole=was_issued)
        length = None if judge(self.walked, entry) is Verdict.GAP else self.length
        walked = advanced(Position(self.walked, length), entry)
        return replace(
            self,
            is_empty=False,
            walked=max(walked.last, self.walked),
            length=walked.length,
            is_held=self.is_held or entry.id == self.wanted,
        )

    def position(self, covered: EntryId | None) -> Position | None:
        """Where to go on from, or None if the turn never issued ``wanted``.

        Args:
            covered: Last entry that the stored text covers. Redis may have lost entries that
                clients were shown; what the rows cover was issued.
        """
        if self.is_held:
            return Position(self.wanted, self.length)
        is_covered = (
            covered is not None
            and covered.attempt == self.wanted.attempt
            and self.wanted <= covered
        )
        if self.is_empty or self.is_in_hole or is_covered:
            return Position(self.wanted, None)
        return None


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
