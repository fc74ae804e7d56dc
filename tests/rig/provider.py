"""A scripted OpenAI-compatible model server, with a record of every request it got.

Run alone with ``python -m tests.rig.provider --port 0`` (it prints its address), or in process::

    async with ScriptedProvider() as provider:
        provider.script(Rule(match="ferry", deltas=("It ", "is ", "late."), delay_ms=20))
        ...  # LLM_BASE_URL = provider.base_url
        assert provider.requests[0].closed_by_client is False

A request is answered by the first rule whose ``match`` is part of its last user message (or whose
``match`` is None) and that has ``times`` left; without one, by the default rule: 32 deltas at once.
So "429 once, then an answer" is two rules with one ``match``, the first with ``times=1``.

Control over HTTP: ``POST /script`` (one rule, or ``{"rules": [...]}``; ``{"default": {...}}``
replaces the default), ``GET /requests?match=&after=``, ``GET /stats``, ``POST /release`` (ends all
hangs: the script goes on), ``POST /reset`` (forgets rules and requests, cuts running answers).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import uvloop

from tests.rig.provider_answers import (
    FAST_TOKENS,
    LAST_CHUNK,
    STREAM_HEAD,
    Events,
    RecordedRequest,
    Rule,
    chunk,
    deltas_of,
    dumps,
    encode_answer,
    fast_text,
    is_plain,
    last_user_message_of,
    rule_from_json,
    usage_of,
)

__all__ = ["RecordedRequest", "Rule", "ScriptedProvider", "fast_text", "running_provider"]

MAX_RECORDED = 20_000  # requests kept; the oldest are forgotten, so that a bench cannot fill memory
MAX_HEAD_BYTES = 65_536
SECRET_HEADERS = frozenset({"authorization", "x-api-key", "api-key"})
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many"}


class _Cut(Exception):
    """The script asks for a reset of the connection."""


class _Answer:
    """Writes one scripted answer to one connection."""

    def __init__(self, server: ScriptedProvider, link: _Link, rule: Rule) -> None:
        self._server = server
        self._link = link
        self._rule = rule
        self._offset = 0
        self._cuts = sorted(rule.cuts)

    async def run(self, record: RecordedRequest) -> None:
        rule = self._rule
        await _pause(rule.first_delay_ms)
        if rule.hang_before_head:
            await self._server.hang()
        if rule.status != 200:
            record.status = rule.status
            error = rule.error or {"message": "scripted", "type": "scripted", "code": None}
            self._link.reply(rule.status, dumps({"error": error}).encode(), rule.headers)
            record.completed = True
            return
        record.status = 200
        extra = "".join(f"{name}: {value}\r\n" for name, value in rule.headers.items())
        self._link.write(STREAM_HEAD % extra.encode())
        try:
            if rule.raw_body_b64 is not None:
                await self._send(base64.b64decode(rule.raw_body_b64))
                finished = True
            else:
                finished = await self._stream(record)
        except _Cut:
            self._link.reset()
            return
        self._link.write(LAST_CHUNK)
        record.completed = finished

    async def _stream(self, record: RecordedRequest) -> bool:
        rule, events = self._rule, Events(self._rule.line_end)
        deltas = deltas_of(rule, record.last_user_message)
        await self._send(events.choice({"role": "assistant", "content": ""}))
        for i, text in enumerate(_forever(deltas) if rule.never_ends else iter(deltas)):
            if await self._fault(i, events):
                return False
            await _pause(rule.delays_ms[i] if i < len(rule.delays_ms) else rule.delay_ms)
            await self._send(events.choice({"content": text}))
            _note(record, text)
        if await self._fault(len(deltas), events):
            return False
        if rule.finish_reason is not None:
            await self._send(events.choice({}, rule.finish_reason))
        usage = usage_of(rule, record.body, len(deltas))
        if usage is not None:
            await self._send(events.usage(usage))
        if rule.done:
            await self._send(events.data("[DONE]"))
        return True

    async def _fault(self, sent: int, events: Events) -> bool:
        """Play the fault due after ``sent`` deltas; True ends the body."""
        rule = self._rule
        if rule.hang_after == sent:
            await self._server.hang()
        if rule.error_after == sent:
            error = rule.error or {"message": "scripted", "type": "server_error", "code": "500"}
            await self._send(events.error(error))
        if rule.cut_after == sent:
            raise _Cut
        return rule.end_after == sent

    async def _send(self, raw: bytes) -> None:
        """Send event bytes as HTTP chunks, split where the rule says."""
        limit = self._rule.reset_at_byte
        resets = limit is not None and self._offset + len(raw) >= limit
        if limit is not None and resets:
            raw = raw[: limit - self._offset]
        pieces = list(self._pieces(raw))
        for i, piece in enumerate(pieces):
            if piece:
                self._link.write(chunk(piece))
            if i + 1 < len(pieces):
                await _pause(self._rule.cut_pause_ms)
        self._offset += len(raw)
        if resets:
            await _pause(max(1.0, self._rule.cut_pause_ms))
            raise _Cut
        await self._link.drained()

    def _pieces(self, raw: bytes) -> Iterator[bytes]:
        if self._rule.byte_by_byte:
            yield from (raw[i : i + 1] for i in range(len(raw)))
            return
        start = 0
        for cut in self._cuts:
            at = cut - self._offset
            if start < at < len(raw):
                yield raw[start:at]
                start = at
        yield raw[start:]


def _forever(deltas: Sequence[str]) -> Iterator[str]:
    while True:
        yield from deltas


def _note(record: RecordedRequest, text: str) -> None:
    record.deltas_sent += 1
    record.text_sent += text
    if record.first_delta_at is None:
        record.first_delta_at = time.time()


async def _pause(delay_ms: float) -> None:
    await asyncio.sleep(delay_ms / 1000) if delay_ms > 0 else None


class _Link(asyncio.Protocol):
    """One connection: reads requests one after the other, writes answers in order."""

    def __init__(self, server: ScriptedProvider) -> None:
        self._server = server
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._record: RecordedRequest | None = None
        self.rule: Rule | None = None  # of the answer that is running
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is not a subclass
        self._server.links.add(self)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._server.links.discard(self)
        self._writable.set()
        if self._record is not None and self._record.ended_at is None:
            self._record.closed_by_client = True
            self._record.ended_at = time.time()
        if self._task is not None:
            self._task.cancel()
        self._transport = None

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def write(self, raw: bytes) -> None:
        if self._transport is not None:
            self._transport.write(raw)

    async def drained(self) -> None:
        if not self._writable.is_set():
            await self._writable.wait()

    def reset(self) -> None:
        """Cut the connection with a TCP reset, after what was already handed to the kernel."""
        if self._record is not None:
            self._record.ended_at = time.time()
        if self._transport is not None:
            self._transport.abort()

    def reply(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Scripted')}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
        )
        self.write(head.encode() + body)

    def _next(self) -> None:
        while self._task is None and self._transport is not None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    self.reset()
                return
            lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines[1:])
            }
            length = int(headers.get("content-length", "0"))
            if headers.get("expect", "").lower() == "100-continue":
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            method, target, _ = lines[0].split(" ", 2)
            self._dispatch(method, target, headers, body)

    def _dispatch(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        if method != "POST" or not target.endswith("/chat/completions"):
            status, answer = self._server.control(method, target, body)
            self.reply(status, answer)
            return
        record, rule = self._server.accept(target, headers, body)
        if is_plain(rule):
            self.write(self._server.encoded(rule, record))
            record.status, record.completed, record.ended_at = 200, True, time.time()
            return
        self._record, self.rule = record, rule
        self._task = asyncio.get_running_loop().create_task(self._answer(record, rule))

    async def _answer(self, record: RecordedRequest, rule: Rule) -> None:
        try:
            await _Answer(self._server, self, rule).run(record)
            if record.ended_at is None:
                record.ended_at = time.time()
        finally:
            self._task = self.rule = None
            if record.ended_at is not None:
                self._record = None
        self._next()


class ScriptedProvider:
    """The server; also the control surface of tests in the same process."""

    def __init__(self, *, port: int = 0, record: int = MAX_RECORDED) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._rules: list[Rule] = []
        self._left: dict[int, int] = {}
        self._used: Counter[int] = Counter()
        self._default = Rule()
        self._released = asyncio.Event()
        self._count = 0
        self._encoded: tuple[Rule, bytes, str, int] | None = None
        self.links: set[_Link] = set()
        self.recorded: deque[RecordedRequest] = deque(maxlen=record)

    async def __aenter__(self) -> ScriptedProvider:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Link(self), "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for link in list(self.links):
            link.reset()
        await asyncio.wait_for(self._server.wait_closed(), 5)

    @property
    def port(self) -> int:
        """The port it listens on, known once started."""
        return self._port

    @property
    def base_url(self) -> str:
        """For ``LLM_BASE_URL``."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def requests(self) -> list[RecordedRequest]:
        """Every model request so far, oldest first."""
        return list(self.recorded)

    def script(self, *rules: Rule) -> None:
        """Append rules; earlier ones win."""
        for rule in rules:
            if rule.times is not None:
                self._left[len(self._rules)] = rule.times
            self._rules.append(rule)

    def withdraw(self, rule: Rule, *, cut: bool = False) -> int:
        """Choose a scripted rule no more; returns how many answers of it are running.

        Args:
            cut: Reset those; an answer that never ends has no other end.
        """
        for place, one in enumerate(self._rules):
            if one is rule:
                self._left[place] = 0
        running = [link for link in self.links if link.rule is rule]
        if cut:
            for link in running:
                link.reset()
        return len(running)

    def times_used(self, rule: Rule) -> int:
        """How many requests a scripted rule was chosen for."""
        return sum(self._used[place] for place, one in enumerate(self._rules) if one is rule)

    def default(self, rule: Rule) -> None:
        """Answer with this rule whatever no other matches."""
        self._default = rule

    def release(self) -> None:
        """End every hang of this moment, also of a request that was recorded just now."""
        asyncio.get_running_loop().call_soon(self._release)  # its answer begins before that

    def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    def reset(self) -> None:
        """Forget rules and requests and cut the answers that are running."""
        self._rules.clear()
        self._left.clear()
        self._used.clear()
        self._default = Rule()
        self.recorded.clear()
        self._count = 0
        for link in list(self.links):
            if link._task is not None:
                link.reset()

    async def hang(self) -> None:
        """Wait until released (or until the connection ends)."""
        await self._released.wait()

    def accept(
        self, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[RecordedRequest, Rule]:
        """Record a model request and choose its rule."""
        rule = self._choose(last_user_message_of(body)) if self._rules else self._default
        record = RecordedRequest(
            n=self._count,
            path=path,
            headers={k: v for k, v in headers.items() if k not in SECRET_HEADERS},
            authorized=not SECRET_HEADERS.isdisjoint(headers),
            body=body,
            received_at=time.time(),
            rule=rule.match,
        )
        self._count += 1
        self.recorded.append(record)
        return record, rule

    def encoded(self, rule: Rule, record: RecordedRequest) -> bytes:
        """The whole answer of a rule without waits or faults, every event a chunk of its own."""
        if self._encoded is not None and self._encoded[0] is rule and not rule.echo:
            _, raw, text, count = self._encoded
        else:
            deltas = deltas_of(rule, record.last_user_message)
            raw, text, count = (
                encode_answer(rule, record.body, deltas),
                "".join(deltas),
                len(deltas),
            )
            if not rule.echo:
                self._encoded = (rule, raw, text, count)
        record.deltas_sent, record.text_sent, record.first_delta_at = count, text, time.time()
        return raw

    def control(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        """Answer a control request."""
        url = urlsplit(target)
        try:
            answer = self._control(method, url.path, parse_qs(url.query), body)
        except (ValueError, TypeError) as error:
            return 400, dumps({"error": str(error)}).encode()
        if answer is None:
            return 404, b'{"error":"no such control; see tests/rig/provider.py"}'
        return 200, dumps(answer).encode()

    def _control(
        self, method: str, path: str, query: Mapping[str, list[str]], body: bytes
    ) -> Any | None:
        match (method, path):
            case ("POST", "/script"):
                return self._script_json(json.loads(body))
            case ("GET", "/requests"):
                match_ = query.get("match", [""])[0]
                after = int(query.get("after", ["-1"])[0])
                return {
                    "requests": [
                        one.to_json()
                        for one in self.recorded
                        if one.n > after and (not match_ or match_ in one.last_user_message)
                    ]
                }
            case ("GET", "/stats" | "/healthz"):
                return {"requests": self._count, "running": sum(1 for x in self.links if x._task)}
            case ("POST", "/release"):
                self.release()
            case ("POST", "/reset"):
                self.reset()
            case ("GET", "/v1/models"):
                return {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
            case _:
                return None
        return {"ok": True}

    def _script_json(self, value: Mapping[str, Any]) -> dict[str, Any]:
        if "default" in value:
            self.default(rule_from_json(value["default"]))
        rules = value.get("rules", () if "default" in value else (value,))
        self.script(*(rule_from_json(one) for one in rules))
        return {"rules": len(self._rules)}

    def _choose(self, last_user: str) -> Rule:
        for i, rule in enumerate(self._rules):
            if rule.match is not None and rule.match not in last_user:
                continue
            if i in self._left:
                if self._left[i] == 0:
                    continue
                self._left[i] -= 1
            self._used[i] += 1
            return rule
        return self._default


@contextlib.asynccontextmanager
async def running_provider(*rules: Rule) -> AsyncIterator[ScriptedProvider]:
    """A started provider with these rules."""
    async with ScriptedProvider() as provider:
        provider.script(*rules)
        yield provider


async def _serve(port: int, record: int, default: Rule) -> None:
    async with ScriptedProvider(port=port, record=record) as provider:
        provider.default(default)
        sys.stdout.write(f"{provider.base_url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until ended by a signal."""
    parser = argparse.ArgumentParser(description="a scripted OpenAI-compatible model server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--record", type=int, default=MAX_RECORDED, help="requests kept; 0 = none")
    parser.add_argument(
        "--tokens", type=int, default=FAST_TOKENS, help="deltas of the default answer"
    )
    parser.add_argument("--delay-ms", type=float, default=0.0)
    chosen = parser.parse_args(arguments)
    default = replace(Rule(), tokens=chosen.tokens, delay_ms=chosen.delay_ms)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_serve(chosen.port, chosen.record, default))


if __name__ == "__main__":
    main()
