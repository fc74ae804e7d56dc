"""A line between a client and a server that breaks where a test wants it."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_EVENT = re.compile(rb"(?m)^event: ")
READ_BYTES = 65_536
END_S = 5.0
"""A connection ends by an abort: seconds are far more than it takes."""


@dataclass
class FaultyLine:
    """Passes bytes both ways.

    Attributes:
        events_each: Events of a stream that a connection brings before it breaks in the middle of
            the next one; 0: it never breaks.
        replies_to_lose: Answers, as they come, that never reach the client.
        connections: Opened so far.
    """

    to: str
    url: str = ""
    events_each: int = 0
    replies_to_lose: int = 0
    connections: int = 0
    _served: set[asyncio.Task[None]] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection in a task that the line holds until it has ended."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    @property
    def open_now(self) -> int:
        """Connections being served."""
        return len(self._served)

    async def end(self) -> None:
        """Break what is still open and wait for it, so that no task outlives its test."""
        served = list(self._served)
        for task in served:
            task.cancel()
        if served:
            await asyncio.wait(served, timeout=END_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        target = urlsplit(self.to)
        ends = [writer]
        try:
            back, forth = await asyncio.open_connection(target.hostname, target.port)
            ends.append(forth)
            async with asyncio.TaskGroup() as both_ways:
                onward = both_ways.create_task(_pass_on(reader, forth))
                await self._answer(back, writer)
                onward.cancel()
        finally:
            for end in ends:
                end.transport.abort()

    async def _answer(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = b""
        while raw := await back.read(READ_BYTES):
            if self.replies_to_lose > 0:
                self.replies_to_lose -= 1
                return
            begins = [m.start() for m in _EVENT.finditer(seen + raw)]
            if self.events_each and len(begins) > self.events_each:
                writer.write((seen + raw)[len(seen) : begins[self.events_each]])
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
                await _flushed(writer)
                return
            seen += raw
            writer.write(raw)
            with contextlib.suppress(ConnectionError):
                await writer.drain()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while raw := await reader.read(READ_BYTES):
            writer.write(raw)
            await writer.drain()


async def _flushed(writer: asyncio.StreamWriter) -> None:
    """Wait until the kernel has all: an abort would throw away what is left."""
    async with asyncio.timeout(5):
        while writer.transport.get_write_buffer_size():
            await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def faulty_line(to: str) -> AsyncIterator[FaultyLine]:
    """A line to the server at ``to``."""
    line = FaultyLine(to)
    server = await asyncio.start_server(line.accept, "127.0.0.1", 0)
    line.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        server.close()
        await line.end()
