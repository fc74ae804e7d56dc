"""The driver's own HTTP: one kept connection a client, and no more parsing than verifying needs."""

import asyncio
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

import orjson

END_OF_CHUNKS = b"0\r\n\r\n"
ANSWER_BOUND_S = 60.0  # far above any answer; a lost one must not hang the benchmark


class BadAnswer(Exception):
    """An answer that is not what was asked for."""


@dataclass(slots=True)
class Answer:
    """One response, with the moments (``perf_counter``) that matter.

    Attributes:
        first_at: When the wanted mark was first seen.
    """

    sent_at: float
    status: int = 0
    body: bytes = b""
    first_at: float = 0.0
    ended_at: float = 0.0

    @property
    def json(self) -> dict[str, Any]:
        """The decoded body."""
        decoded: dict[str, Any] = orjson.loads(self.body)
        return decoded


@dataclass(slots=True)
class _Waiting:
    answer: Answer
    mark: bytes
    done: asyncio.Future[Answer]
    raw: bytearray = field(default_factory=bytearray)
    body_at: int = -1
    length: int = -1  # -1 = chunked


class Link(asyncio.Protocol):
    """One connection; requests one after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: _Waiting | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done.done():
            self._waiting.done.set_exception(BadAnswer(f"the connection was lost: {exc}"))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def ask(self, request: bytes, *, mark: bytes) -> Answer:
        """Send a request and read its whole answer.

        Args:
            mark: Bytes that show the first token.
        """
        assert self._transport is not None
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting = _Waiting(Answer(perf_counter()), mark, done)
        self._transport.write(request)
        async with asyncio.timeout(ANSWER_BOUND_S):
            return await done

    def data_received(self, data: bytes) -> None:
        waiting = self._waiting
        if waiting is None:
            return
        raw = waiting.raw
        raw += data
        if waiting.body_at < 0 and not self._read_head(waiting):
            return
        answer = waiting.answer
        if not answer.first_at and waiting.mark in raw:
            answer.first_at = perf_counter()
        if waiting.length < 0:
            is_over = raw.endswith(END_OF_CHUNKS)
        else:
            is_over = len(raw) >= waiting.body_at + waiting.length
        if is_over:
            answer.ended_at = perf_counter()
            body = bytes(raw[waiting.body_at :])
            answer.body = body if waiting.length >= 0 else _unchunked(body)
            self._waiting = None
            waiting.done.set_result(answer)

    def _read_head(self, waiting: _Waiting) -> bool:
        end = waiting.raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(waiting.raw[:end]).lower()
        waiting.body_at = end + 4
        waiting.answer.status = int(head[9:12])
        _, found, rest = head.partition(b"content-length:")
        if found:
            waiting.length = int(rest.split(b"\r\n", 1)[0])
        return True


def _unchunked(raw: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = raw.index(b"\r\n", at)
        size = int(raw[at:end], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(raw[end + 2 : end + 2 + size])
        at = end + 4 + size


class Caller:
    """Sends requests to one server over one connection, opened again when it was closed idle."""

    def __init__(self, host: str, port: int, headers: dict[str, str]) -> None:
        self._host, self._port = host, port
        fixed = {"Host": f"{host}:{port}", "Content-Type": "application/json", **headers}
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._link = Link()

    async def post(
        self, path: str, body: object, *, headers: str = "", mark: bytes = b"\r\n\r\n"
    ) -> Answer:
        """POST a JSON body and read the whole answer."""
        raw = orjson.dumps(body)
        head = f"POST {path} HTTP/1.1\r\n{self._fixed}{headers}Content-Length: {len(raw)}\r\n\r\n"
        if not self._link.is_open:
            loop = asyncio.get_running_loop()
            _, self._link = await loop.create_connection(Link, self._host, self._port)
        return await self._link.ask(head.encode() + raw, mark=mark)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()
