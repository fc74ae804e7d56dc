"""Decodes a byte stream of server-sent events, cut anywhere, into the data of its events."""

import re

from libs.errors import Terminal

MAX_EVENT_BYTES = 1024 * 1024
"""Of one event and of one unfinished line; providers send hundreds of bytes."""

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


class EventTooLarge(Terminal):
    """One event, or one line without an end, grew beyond the limit."""

    code = "sse.event_too_large"

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(f"one event of the provider's stream is larger than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


class SseDecoder:
    """Incremental: ``feed`` takes packets as they come and returns the events they complete.

    Source: WHATWG HTML section 9.2.6. Lines end in LF, CR or CR LF, also when CR and LF come in
    different packets; ``data`` lines of one event are joined by LF; comments, ``event``, ``id`` and
    ``retry`` are read and dropped, because no model provider gives them a meaning of their own. An
    event that has no closing blank line when the stream ends does not count.

    Lines are cut as bytes and decoded whole, so a character is never decoded in halves.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._partial: list[bytes] = []  # pieces of the unfinished line
        self._partial_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._skip_lf = (
            False  # the last packet ended in CR: a LF at the next one's start belongs to it
        )
        self._at_start = True

    def feed(self, raw: bytes) -> list[str]:
        """The data of every event that these bytes complete, in order.

        Raises:
            EventTooLarge: The bound was passed; the decoder is of no more use.
        """
        if self._skip_lf and raw:
            self._skip_lf = False
            raw = raw.removeprefix(b"\n")
        if not raw:
            return []
        if b"\r" in raw:
            self._skip_lf = raw.endswith(b"\r")
            lines = _LINE_END.split(raw)
        else:
            lines = raw.split(b"\n")
        rest = lines.pop()
        events: list[str] = []
        for line in lines:
            self._end_of_line(line, events)
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
            self._check(self._partial_bytes)
        return events

    def _end_of_line(self, line: bytes, events: list[str]) -> None:
        if self._partial:
            line = b"".join((*self._partial, line))
            self._partial.clear()
            self._partial_bytes = 0
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(events)
        elif line.startswith(b"data"):
            self._field(line)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name != b"data":
            return
        value = value.removeprefix(b" ")
        self._data.append(value)
        self._data_bytes += len(value) + 1
        self._check(self._data_bytes)

    def _dispatch(self, events: list[str]) -> None:
        if self._data:
            events.append(b"\n".join(self._data).decode("utf-8", "replace"))
            self._data.clear()
            self._data_bytes = 0

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._max_event_bytes:
            raise EventTooLarge(limit_bytes=self._max_event_bytes)
