"""A provider that speaks at a steady pace and says when: ``python -m tests.bench.paced``.

Every delta is ``<number>@<perf_counter> ``; processes of one machine share that clock, so whoever
reads a delta knows how long it was on its way. Its last user message says how many, and how often:
``speak 600 every 100``. It prints its address.
"""

import asyncio
import random
import re
import sys
from time import perf_counter
from typing import cast

import orjson
import uvloop

from tests.rig.provider_answers import LAST_CHUNK, STREAM_HEAD, chunk, last_user_message_of

ASKED = re.compile(r"speak (\d+) every (\d+)")
DELTA = re.compile(rb"(\d+)@(\d+\.\d+) ")
ROLE = b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]'
OPENING = b'data: {"id":"paced","object":"chat.completion.chunk","created":1,"model":"scripted",'


def request_text(count: int, every_ms: int) -> str:
    """What to ask for so many deltas at that pace."""
    return f"speak {count} every {every_ms}"


def deltas_of(raw: bytes) -> list[tuple[int, float]]:
    """Number and moment of every delta in a text."""
    return [(int(number), float(at)) for number, at in DELTA.findall(raw)]


def _event(rest: bytes) -> bytes:
    return chunk(OPENING + rest + b"}\n\n")


def _delta(number: int) -> bytes:
    content = b'"choices":[{"index":0,"delta":{"content":"%d@%.6f "},"finish_reason":null}]'
    return _event(content % (number, perf_counter()))


def _ending(count: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
    stop = _event(b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]')
    last = _event(b'"choices":[],"usage":' + orjson.dumps(usage))
    return stop + last + chunk(b"data: [DONE]\n\n") + LAST_CHUNK


class _Link(asyncio.Protocol):
    """One connection; one request at a time, as clients of such servers do."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._raw += data
        head, found, body = bytes(self._raw).partition(b"\r\n\r\n")
        if not found:
            return
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if len(body) >= (int(length[1]) if length else 0):
            self._raw.clear()
            self._task = asyncio.get_running_loop().create_task(self._answer(body))

    async def _answer(self, body: bytes) -> None:
        asked = ASKED.search(last_user_message_of(body))
        count, every_s = (int(asked[1]), int(asked[2]) / 1000) if asked else (1, 0.0)
        self._write(STREAM_HEAD % b"" + _event(ROLE))
        began = perf_counter() + random.uniform(0, every_s)  # not all streams at one beat
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number * every_s - perf_counter()))
            self._write(_delta(number))
        self._write(_ending(count))

    def _write(self, raw: bytes) -> None:
        if self._transport is not None:
            self._transport.write(raw)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Link, "127.0.0.1", 0, backlog=512)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port}/v1\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve())
