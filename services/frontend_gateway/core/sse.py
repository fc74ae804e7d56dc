"""Frames of a server-sent event stream (WHATWG HTML section 9.2), as bytes."""

import re

from schemas.streams import Entry

RETRY_MS = 2_000  # how soon a client that lost its connection comes back
PREAMBLE = b"retry: %d\n\n" % RETRY_MS
PING = b": ping\n\n"

_EVENT_NAME = re.compile(r"[a-z][a-z_]*\Z")
_LINE_END = re.compile(rb"\r\n|\r|\n")


def frame(entry: Entry) -> bytes:
    """One entry as one event; a line end inside the data starts another data line.

    JSON holds no raw line end inside a string, so splitting never changes what is decoded.

    Raises:
        ValueError: The event's name could be read as something else than a name.
    """
    if not _EVENT_NAME.match(entry.event):
        msg = "an event name is made of lower-case letters and underscores"
        raise ValueError(msg)
    data = entry.data
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(_LINE_END.split(data))
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (str(entry.id).encode(), entry.event.encode(), data)
