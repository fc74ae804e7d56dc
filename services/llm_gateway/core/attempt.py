"""The text of one attempt, and the number of its next stream entry."""

import hashlib

from schemas.streams import Entry, EntryId, content_delta

FIRST_DELTA_N = 2
"""Entry 1 of an attempt is its status."""


class AttemptText:
    """Grows by entries: text, length, hash and ``upto`` always describe the same entries."""

    def __init__(self, attempt: int, *, text: str = "", upto: EntryId | None = None) -> None:
        """``text`` and ``upto`` are what recovery found of an attempt; a fresh one has neither."""
        self.attempt = attempt
        self._pieces = [text] if text else []
        raw = text.encode()
        self._length = len(raw)
        self._sha256 = hashlib.sha256(raw)
        self._upto = upto or EntryId(attempt, FIRST_DELTA_N - 1)

    @property
    def upto(self) -> EntryId:
        """The last entry that the text covers; the status entry while there is no text."""
        return self._upto

    @property
    def text(self) -> str:
        """All text so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def length(self) -> int:
        """Bytes of the text in UTF-8."""
        return self._length

    @property
    def sha256(self) -> str:
        """Of the text in UTF-8, hexadecimal."""
        return self._sha256.hexdigest()

    @property
    def is_shown(self) -> bool:
        """Whether any of it was handed to the stream."""
        return self._length > 0

    def append(self, piece: str) -> Entry:
        """Add a piece and return its entry; ids are contiguous from 2."""
        raw = piece.encode()
        self._pieces.append(piece)
        self._length += len(raw)
        self._sha256.update(raw)
        self._upto = EntryId(self.attempt, self._upto.n + 1)
        return content_delta(self._upto, piece)
