"""A client's view of an event stream: a parser by the standard's rules, a reader that can stop."""

import codecs
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Heard:
    """One event as a client gets it."""

    id: str
    event: str
    data: Any


@dataclass
class Parser:
    """Bytes in, events out (WHATWG HTML section 9.2.6); cuts may be anywhere."""

    last_id: str = ""
    comments: int = 0
    retry_ms: int | None = None
    _decoder: Any = field(default_factory=codecs.getincrementaldecoder("utf-8"))
    _text: str = ""
    _event: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, chunk: bytes) -> list[Heard]:
        self._text += self._decoder.decode(chunk)
        heard: list[Heard] = []
        while (line := self._line()) is not None:
            if event := self._take(line):
                heard.append(event)
        return heard

    def _line(self) -> str | None:
        end = _LINE_END.search(self._text)
        if end is None or (end[0] == "\r" and end.end() == len(self._text)):
            return None  # after a carriage return the next packet may begin with its line feed
        line, self._text = self._text[: end.start()], self._text[end.end() :]
        return line

    def _take(self, line: str) -> Heard | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not name:
            self.comments += 1
        elif name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id":
            self.last_id = value
        elif name == "retry":
            self.retry_ms = int(value)
        return None

    def _dispatch(self) -> Heard | None:
        if not self._data:
            self._event = ""
            return None
        heard = Heard(self.last_id, self._event or "message", orjson.loads("\n".join(self._data)))
        self._event, self._data = "", []
        return heard


@dataclass
class Copy:
    """What a client makes of the events: the text, and the one end."""

    text: str = ""
    last_id: str | None = None
    heard: list[Heard] = field(default_factory=list)
    done: dict[str, Any] | None = None

    def take(self, event: Heard) -> None:
        assert self.done is None, "an event after done"
        self.heard.append(event)
        self.last_id = event.id
        if event.event == "content_delta":
            self.text += event.data["text"]
        elif event.event == "snapshot":
            self.text = event.data["text"]
        elif event.event == "done":
            self.done = event.data

    @property
    def names(self) -> list[str]:
        return [event.event for event in self.heard]


async def events(
    client: httpx.AsyncClient, path: str, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Heard]:
    """The events of a stream, until it ends or the caller stops."""
    parser = Parser()
    async with client.stream("GET", path, headers=dict(headers or {})) as response:
        assert response.status_code == 200, (response.status_code, await response.aread())
        async for chunk in response.aiter_raw():
            for event in parser.feed(chunk):
                yield event


async def follow(client: httpx.AsyncClient, turn_id: object, copy: Copy | None = None) -> Copy:
    """Read a turn's stream to its end."""
    copy = copy or Copy()
    headers = {"Last-Event-ID": copy.last_id} if copy.last_id else {}
    async for event in events(client, f"/v1/turns/{turn_id}/events", headers):
        copy.take(event)
    return copy
