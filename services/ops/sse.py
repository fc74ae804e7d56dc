"""Takes a stream of server-sent events apart: bytes in, events out."""

from collections.abc import Iterator
from dataclasses import dataclass

MAX_LINE_BYTES = 4_194_304  # a snapshot of the longest answer stays below it


class StreamTooLong(ValueError):
    """One line of a stream is longer than anything we send."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event; ``data`` is JSON text."""

    id: str
    event: str
    data: str


class EventParser:
    """Keeps what is incomplete until its rest comes."""

    def __init__(self) -> None:
        self._rest = b""
        self._id = ""
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[StreamEvent]:
        """Take bytes, cut anywhere, and give the events that are complete.

        Raises:
            StreamTooLong: A line has no end.
        """
        # Only these bytes end a line; str.splitlines would also cut at U+2028, which JSON may hold.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            msg = f"a line of the stream is longer than {MAX_LINE_BYTES} bytes"
            raise StreamTooLong(msg)
        for line in lines:
            event = self._take(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                yield event

    def _take(self, line: str) -> StreamEvent | None:
        if line:
            name, _, value = line.partition(":")
            self._set(name, value.removeprefix(" "))
            return None
        event = StreamEvent(self._id, self._event, "\n".join(self._data)) if self._data else None
        self._event, self._data = "", []
        return event

    def _set(self, name: str, value: str) -> None:
        match name:
            case "id":
                self._id = value
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
