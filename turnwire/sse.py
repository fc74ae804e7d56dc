"""Takes a stream of server-sent events apart: bytes in, events out."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

from turnwire.errors import UnexpectedAnswer

MAX_LINE_CHARACTERS = 8_388_608
"""Above a snapshot of the longest answer; a line that is longer is no line of ours."""

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class RawEvent:
    """One event as it came; ``data`` is JSON text."""

    id: str
    name: str
    data: str


class EventParser:
    """Keeps what is incomplete until its rest comes (WHATWG HTML, section 9.2.6)."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._searched = 0  # characters that hold no line end: a long line is searched once
        self._id = ""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[RawEvent]:
        """Take bytes, cut anywhere, and give the events that are complete.

        Raises:
            UnexpectedAnswer: A line has no end.
        """
        self._text += self._decoder.decode(chunk)
        start = 0
        for end in _LINE_END.finditer(self._text, self._searched):
            if end[0] == "\r" and end.end() == len(self._text):
                break  # its line feed may come with the next bytes
            event = self._take(self._text[start : end.start()])
            start = end.end()
            if event is not None:
                yield event
        self._text = self._text[start:]
        self._searched = len(self._text) - self._text.endswith("\r")
        if len(self._text) > MAX_LINE_CHARACTERS:
            msg = f"a line of the stream is longer than {MAX_LINE_CHARACTERS} characters"
            raise UnexpectedAnswer(msg)

    def _take(self, line: str) -> RawEvent | None:
        if line:
            name, _, value = line.partition(":")
            self._set(name, value.removeprefix(" "))
            return None
        event = None
        if self._data:
            event = RawEvent(self._id, self._name or "message", "\n".join(self._data))
        self._name, self._data = "", []
        return event

    def _set(self, name: str, value: str) -> None:
        match name:
            case "id":
                self._id = value
            case "event":
                self._name = value
            case "data":
                self._data.append(value)
