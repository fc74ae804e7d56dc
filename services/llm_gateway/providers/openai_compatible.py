"""Asks any OpenAI-compatible endpoint over HTTP, streaming."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from types import TracebackType
from urllib.parse import urlsplit

import aiohttp
from pydantic import SecretStr

from services.llm_gateway.core.completions import CompletionReader, Done, Part
from services.llm_gateway.core.failures import Failure, FailureKind, of_status
from services.llm_gateway.core.sse_decoder import EventTooLarge
from services.llm_gateway.ports import ProviderFailed

CONNECT_TIMEOUT_S = 10.0
"""TCP and TLS. A provider that takes longer to accept is treated as refusing."""

KEEP_ALIVE_S = 4.0
"""Idle connections are dropped before common servers (5 s) do it in the middle of our request."""

MAX_ERROR_BYTES = 64 * 1024
"""Read of an error's body; its code stands at the front."""

MAX_WHOLE_BYTES = 8 * 1024 * 1024
"""Of an answer that came as one document although a stream was asked for."""

TAIL_TIMEOUT_S = 0.05
"""Wait for the end of the body after the end marker: with it, the connection can be used again."""

ERROR_TIMEOUT_S = 5.0
"""Wait for the body of an error; without it the status alone decides."""

_HTTP_OK = 200


def request_body(payload: bytes, *, include_usage: bool) -> bytes:
    """The payload with the transport's own fields appended; what stands in it is not touched.

    Raises:
        ValueError: The payload is not the bytes of a JSON object.
    """
    start, end = payload[:1], payload[-1:]
    if start != b"{" or end != b"}":
        msg = "a step's payload must be the bytes of one JSON object"
        raise ValueError(msg)
    comma = b"" if payload == b"{}" else b","
    usage = b',"stream_options":{"include_usage":true}' if include_usage else b""
    return b'%b%b"stream":true%b}' % (payload[:-1], comma, usage)


class OpenAiCompatible:
    """Implements ``Provider`` over one pooled session, which its owner closes."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        base_url: str,
        api_key: SecretStr | None,
        now: Callable[[], datetime],
        include_usage: bool = True,
    ) -> None:
        """``base_url`` ends before ``/chat/completions``; ``now`` is for dates in headers."""
        self._session = session
        self._url = base_url.rstrip("/") + "/chat/completions"
        parts = urlsplit(base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        self._server = None if parts.hostname is None else (parts.hostname, port)
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",  # a compressor would hold deltas back
        }
        if api_key is not None and api_key.get_secret_value():
            self._headers["Authorization"] = f"Bearer {api_key.get_secret_value()}"
        self._now = now
        self._include_usage = include_usage

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        base_url: str,
        api_key: SecretStr | None,
        now: Callable[[], datetime],
        include_usage: bool = True,
        connections: int = 64,
    ) -> "AsyncGenerator[OpenAiCompatible, None]":
        """A provider with a pool of its own: ``connections`` at most, kept while they are used."""
        connector = aiohttp.TCPConnector(limit=connections, keepalive_timeout=KEEP_ALIVE_S)
        async with aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            yield cls(
                session, base_url=base_url, api_key=api_key, now=now, include_usage=include_usage
            )

    @property
    def name(self) -> str:
        """Label of spans and metrics."""
        return "openai_compatible"

    @property
    def server(self) -> tuple[str, int] | None:
        """Host and port that requests go to."""
        return self._server

    def stream(self, payload: bytes) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Part]]]:
        """Send the payload; see ``Provider.stream``."""
        body = request_body(payload, include_usage=self._include_usage)
        request = self._session.post(
            self._url, data=body, headers=self._headers, timeout=_TIMEOUT, allow_redirects=False
        )
        return _Answer(request, self._now)


_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)


class _Answer:
    """One answer: entered when its head is there, left with its connection reusable or closed."""

    def __init__(
        self,
        request: AbstractAsyncContextManager[aiohttp.ClientResponse],
        now: Callable[[], datetime],
    ) -> None:
        self._request = request
        self._now = now
        self._response: aiohttp.ClientResponse | None = None
        self._packets: AsyncGenerator[Sequence[Part], None] | None = None
        self._is_over = False

    async def __aenter__(self) -> AsyncIterator[Sequence[Part]]:
        try:
            response = await self._request.__aenter__()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProviderFailed(_failure_of(error, before_head=True)) from error
        self._response = response
        if response.status != _HTTP_OK:
            failure = await self._refusal(response)
            response.close()
            raise ProviderFailed(failure)
        self._packets = self._parts(response)
        return self._packets

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        response = self._response
        if response is None:
            return
        if self._packets is not None:
            await self._packets.aclose()
        if kind is None and self._is_over and await _reached_end(response):
            response.release()
        else:
            response.close()

    async def _parts(
        self, response: aiohttp.ClientResponse
    ) -> AsyncGenerator[Sequence[Part], None]:
        if response.content_type == "application/json":
            yield await self._whole(response)
            return
        reader = CompletionReader()
        try:
            while raw := await response.content.readany():
                known = reader.events
                parts = reader.feed(raw)
                if reader.events == known:
                    continue  # a comment or half an event: as good as silence to who waits
                self._is_over = self._is_over or any(isinstance(part, Done) for part in parts)
                yield parts
        except EventTooLarge as error:
            raise ProviderFailed(Failure(FailureKind.MALFORMED)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProviderFailed(_failure_of(error, before_head=False)) from error
        self._is_over = True
        if rest := reader.close():
            yield rest

    async def _whole(self, response: aiohttp.ClientResponse) -> Sequence[Part]:
        raw = bytearray()
        try:
            while piece := await response.content.readany():
                raw += piece
                if len(raw) > MAX_WHOLE_BYTES:
                    raise ProviderFailed(Failure(FailureKind.MALFORMED))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProviderFailed(_failure_of(error, before_head=False)) from error
        self._is_over = True
        return CompletionReader().read_whole(bytes(raw))

    async def _refusal(self, response: aiohttp.ClientResponse) -> Failure:
        error: object = None
        try:
            async with asyncio.timeout(ERROR_TIMEOUT_S):
                body = json.loads(await _front_of(response))
            error = body.get("error", body) if isinstance(body, Mapping) else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
            error = None  # the status says enough
        headers = {name.lower(): value for name, value in response.headers.items()}
        return of_status(response.status, error=error, headers=headers, now=self._now())


async def _front_of(response: aiohttp.ClientResponse) -> bytes:
    """A body, or as much of it as is looked at; one read alone ends with the packet."""
    raw = b""
    while piece := await response.content.read(MAX_ERROR_BYTES - len(raw)):
        raw += piece
    return raw


async def _reached_end(response: aiohttp.ClientResponse) -> bool:
    """Whether the body is read to its end, which makes the connection usable again."""
    try:
        async with asyncio.timeout(TAIL_TIMEOUT_S):
            while not response.content.at_eof():
                await response.content.readany()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
    return True


def _failure_of(error: Exception, *, before_head: bool) -> Failure:
    if isinstance(error, TimeoutError):  # aiohttp's own time-outs are among them
        return Failure(FailureKind.TIMEOUT)
    if before_head and isinstance(error, aiohttp.ClientConnectorError):
        return Failure(FailureKind.REFUSED)
    return Failure(FailureKind.CUT)
