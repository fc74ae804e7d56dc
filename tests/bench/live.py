"""Live streams end to end: how late each piece of text is, and whether one is missing."""

import asyncio
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit
from uuid import UUID

import orjson

from tests.bench.arithmetic import Delays
from tests.bench.bench_house import SERVICES, STORES, BenchHouse, ProviderProcess
from tests.bench.driver import TurnwireClient
from tests.bench.machine import Memory, read_cpu, read_memory
from tests.bench.paced import deltas_of, request_text
from tests.bench.wire import BadAnswer

EVERY_MS = 100
CALLS_AT_ONCE = 1_024
"""Of the one llm_gateway process: the default of 64 would let the other streams wait."""

OPENED_PER_S = 60
"""Streams begin one after the other; a burst would measure the acceptance of turns."""

DIRECT_OPENED_PER_S = 300
DIRECT_S = 4.0
LOOK_EVERY_S = 2.0
GRACE_S = 60.0
"""Beyond the planned time until every stream must have ended."""

FRAME = re.compile(rb"id: (\d+)-(\d+)\nevent: ([a-z_]+)\ndata: ([^\n]*)\n\n")
PROVIDER_FRAME = re.compile(rb"data: (\{[^\n]*\})\n\n")
ACCEPTED = b"HTTP/1.1 200"
WATCHED = ("frontend_gateway", "llm_gateway")


@dataclass(slots=True)
class Heard:
    """What all streams of one kind brought.

    Attributes:
        missing: Deltas the provider sent that no client got, or got in the wrong order.
        gaps: Entry ids that did not follow the one before.
        broken: Streams that did not end with one ``done`` of a completed turn.
    """

    delays: Delays = field(default_factory=Delays)
    streams: int = 0
    missing: int = 0
    gaps: int = 0
    broken: int = 0


@dataclass(frozen=True, slots=True)
class LiveResult:
    """Streams through Turnwire, and the same number straight from the provider.

    Attributes:
        cpu_share: Part of one core, by process, while all streams ran.
        memory_before: Before the first stream, of the watched processes.
        memory_most: The most that was seen.
    """

    streams: int
    seconds: float
    turnwire: Heard
    direct: Heard
    cpu_share: dict[str, float]
    memory_before: dict[str, Memory]
    memory_most: dict[str, Memory]


class Stream(asyncio.Protocol):
    """One connection that reads one stream and stamps every event when it arrives.

    Args:
        take: Reads the events that have arrived, and says how many bytes they took and whether
            the stream is over.

    Attributes:
        done: Whether the stream was read to its end.
    """

    def __init__(self, request: bytes, take: "Take") -> None:
        self._request = request
        self._take = take
        self._raw = bytearray()
        self._is_accepted = False
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self.done.done():
            self.done.set_result(False)

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        self._raw += data
        if not self._is_accepted:
            self._is_accepted = self._raw.startswith(ACCEPTED)
        used, is_over = self._take(self._raw, now) if self._is_accepted else (0, True)
        del self._raw[:used]
        if is_over and not self.done.done():
            self.done.set_result(self._is_accepted)


Take = Callable[[bytearray, float], tuple[int, bool]]


class Counting:
    """Checks the order of one stream's deltas and notes their delays."""

    def __init__(self, heard: Heard, count: int) -> None:
        self._heard = heard
        self._count = count
        self._next = 0
        self._last: tuple[int, int] | None = None

    def turnwire(self, raw: bytearray, now: float) -> tuple[int, bool]:
        """Read SSE frames of Turnwire."""
        used, is_over = 0, False
        for frame in FRAME.finditer(raw):
            used = frame.end()
            attempt, n = int(frame[1]), int(frame[2])
            if self._last is not None and attempt == self._last[0] and n != self._last[1] + 1:
                self._heard.gaps += 1
            self._last = (attempt, n)
            if frame[3] == b"content_delta":
                self._note(frame[4], now)
            elif frame[3] == b"snapshot":  # made from rows, so it says nothing about delays
                self._next = len(deltas_of(frame[4]))
            elif frame[3] == b"done":
                is_over = True
                self._heard.broken += orjson.loads(frame[4])["status"] != "completed"
        if is_over:
            self._close()
        return used, is_over

    def provider(self, raw: bytearray, now: float) -> tuple[int, bool]:
        """Read the provider's own events."""
        used, is_over = 0, b"data: [DONE]" in raw
        for event in PROVIDER_FRAME.finditer(raw):
            used = event.end()
            self._note(event[1], now)
        if is_over:
            self._close()
        return used, is_over

    def _note(self, data: bytes, now: float) -> None:
        for number, at in deltas_of(data):
            self._heard.missing += number != self._next
            self._next = number + 1
            self._heard.delays.note(now - at)

    def _close(self) -> None:
        self._heard.streams += 1
        self._heard.missing += self._next != self._count


async def measure_live(
    house: BenchHouse, clients: Sequence[TurnwireClient], *, streams: int, seconds: float
) -> LiveResult:
    """So many streams of ten events a second each, for so long, after the direct ones."""
    async with ProviderProcess("tests.bench.paced") as paced:
        await house.restart_llm(paced.base_url, calls_at_once=CALLS_AT_ONCE)
        try:
            direct = await _direct(paced, streams)
            return await _live(house, clients, direct, streams=streams, seconds=seconds)
        finally:
            await house.restart_llm()


async def _direct(paced: ProviderProcess, streams: int) -> Heard:
    address = urlsplit(paced.base_url)
    count = int(DIRECT_S * 1000 / EVERY_MS)
    body = orjson.dumps(
        {
            "model": "scripted",
            "messages": [{"role": "user", "content": request_text(count, EVERY_MS)}],
            "stream": True,
        }
    )
    head = (
        f"POST {address.path}/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    heard = Heard()
    takes = [Counting(heard, count).provider for _ in range(streams)]
    requests = [head.encode() + body] * streams
    await _read_all(
        paced.base_url,
        requests,
        takes,
        opened_per_s=DIRECT_OPENED_PER_S,
        bound_s=DIRECT_S + GRACE_S,
    )
    heard.broken = streams - heard.streams
    return heard


async def _live(
    house: BenchHouse,
    clients: Sequence[TurnwireClient],
    direct: Heard,
    *,
    streams: int,
    seconds: float,
) -> LiveResult:
    count = int(seconds * 1000 / EVERY_MS)
    made = await _conversations(clients, streams)
    requests = [_request(house, clients[0], one, count) for one in made]
    heard = Heard()
    takes = [Counting(heard, count).turnwire for _ in requests]
    pids = house.pids()
    before = {name: read_memory(pids[name]) for name in WATCHED}
    most = dict(before)
    looking = asyncio.create_task(_look(pids, most))
    cpu, began = read_cpu(pids), perf_counter()
    try:
        await _read_all(
            house.gateway_url(),
            requests,
            takes,
            opened_per_s=OPENED_PER_S,
            bound_s=seconds + GRACE_S,
        )
    finally:
        looking.cancel()
    took = perf_counter() - began
    used = read_cpu(pids).since(cpu)
    heard.broken += streams - heard.streams
    return LiveResult(
        streams,
        seconds,
        heard,
        direct,
        {name: used[name] / took for name in (*SERVICES, *STORES, "driver")},
        before,
        most,
    )


async def _conversations(clients: Sequence[TurnwireClient], wanted: int) -> list[UUID]:
    async def some(client: TurnwireClient, count: int) -> list[UUID]:
        return [await client.conversation() for _ in range(count)]

    few = clients[:16]
    each = -(-wanted // len(few))
    made = await asyncio.gather(*(some(client, each) for client in few))
    return [one for part in made for one in part][:wanted]


def _request(house: BenchHouse, client: TurnwireClient, conversation: UUID, count: int) -> bytes:
    body = orjson.dumps({"content": request_text(count, EVERY_MS)})
    return (
        f"POST /v1/conversations/{conversation}/messages HTTP/1.1\r\n"
        f"Host: {urlsplit(house.gateway_url()).netloc}\r\nAuthorization: {client.authorization}\r\n"
        f"Idempotency-Key: {uuid.uuid4().hex}\r\nAccept: text/event-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def _read_all(
    base_url: str,
    requests: Sequence[bytes],
    takes: Sequence[Take],
    *,
    opened_per_s: float,
    bound_s: float,
) -> None:
    address = urlsplit(base_url)
    assert address.hostname is not None
    assert address.port is not None
    loop = asyncio.get_running_loop()
    opened: list[tuple[asyncio.Transport, Stream]] = []
    try:
        for request, take in zip(requests, takes, strict=True):
            opened.append(
                await loop.create_connection(
                    lambda request=request, take=take: Stream(request, take),  # type: ignore[misc]
                    address.hostname,
                    address.port,
                )
            )
            await asyncio.sleep(1 / opened_per_s)
        async with asyncio.timeout(bound_s):
            await asyncio.gather(*(stream.done for _, stream in opened))
    except TimeoutError:
        msg = f"streams were still open {bound_s:.0f} s after the last one was opened"
        raise BadAnswer(msg) from None
    finally:
        for transport, _ in opened:
            transport.abort()


async def _look(pids: dict[str, int], most: dict[str, Memory]) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        for name in WATCHED:
            seen = read_memory(pids[name])
            if seen.pss > most[name].pss:
                most[name] = seen
