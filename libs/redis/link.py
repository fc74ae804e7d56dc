"""One connection to Redis that is opened again whenever it is lost.

Built on redis-py's own connection, which parses the URL and does TLS, authentication and the
handshake. Commands of many coroutines are written together, and answers are read in order.
"""

import asyncio
import contextlib
import math
import random
from typing import Protocol, cast

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from libs.retry import Backoff
from libs.telemetry.logging import get_logger

_log = get_logger()

CONNECT_TIMEOUT_S = 3.0
"""Address lookup, TCP, TLS and handshake together; a healthy server needs a few milliseconds."""

ANSWER_TIMEOUT_S = 5.0
"""A server that has not answered a command for so long is taken for dead."""

WRITE_TIMEOUT_S = 5.0
"""A socket that takes no more bytes for so long belongs to a dead server."""

CHECK_EVERY_S = 0.5
"""How often a late answer is looked for, so it is noticed at most half a second after its time."""

PING_EVERY_S = 5.0
"""On a silent connection a dead server would otherwise go unnoticed until it is needed."""

BACKOFF = Backoff(base_s=0.05, cap_s=1.0)
"""Between attempts to connect: a restarted server is back within 0.1 s, live streams can be missed
for a second, and a server bears one try a second from each process."""

SETTLED_S = 5.0
"""A connection that lived so long was a good one: the next delay starts from the first again."""

CLOSE_TIMEOUT_S = 2.0
"""For saying good-bye; the socket is dropped after it."""

Response = object
"""What the server answered: bytes, int, None, a list of these, or a ``ResponseError``."""


class Speaker(Protocol):
    """Whoever talks over a link. All methods are called on the event loop and must not block."""

    def on_connected(self) -> None:
        """A connection is ready; what is sent from here on goes over it."""
        ...

    def on_response(self, response: Response) -> None:
        """The server sent something; in the order of the commands."""
        ...

    def on_lost(self) -> None:
        """The connection is gone, and with it every answer that was still due."""
        ...

    def on_idle(self) -> None:
        """Time to send a PING, so that a dead server is noticed."""
        ...

    def waiting_since(self) -> float | None:
        """Event loop time of the oldest command without an answer; None if nothing is due."""
        ...


class Link:
    """Keeps one connection open for a speaker."""

    def __init__(
        self, url: str, speaker: Speaker, *, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        # Version 2 of the protocol: no push messages between the answers. Time-outs are watched
        # here, because redis-py's own would cost a timer for every answer.
        self._pool: ConnectionPool = ConnectionPool.from_url(
            url, protocol=2, socket_timeout=None, socket_connect_timeout=CONNECT_TIMEOUT_S
        )
        self._speaker = speaker
        self._answer_timeout_s = answer_timeout_s
        self._outgoing: list[bytes] = []
        self._something_to_write = asyncio.Event()
        self._tried = asyncio.Event()
        self._connection: AbstractConnection | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether commands can be sent."""
        return self._connection is not None

    async def open(self) -> None:
        """Start connecting; returns once connected or after the first failure, never raises."""
        self._spawn()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._tried.wait()

    async def close(self) -> None:
        """End the connection for good."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=CLOSE_TIMEOUT_S)

    def send(self, *command: bytes | str | float) -> None:
        """Queue a command for the next write; nothing happens if there is no connection."""
        if self._connection is not None:
            self._outgoing.extend(self._connection.pack_command(*command))
            self._something_to_write.set()

    def _spawn(self) -> None:
        self._task = asyncio.create_task(self._run(), name="redis-link")
        self._task.add_done_callback(self._restart)

    def _restart(self, task: asyncio.Task[None]) -> None:
        """A bug in a speaker must be heard of, but must not leave the process deaf for ever."""
        if task.cancelled() or task is not self._task:
            return
        loop = asyncio.get_running_loop()
        loop.call_exception_handler(
            {"message": "redis link failed and is opened again", "exception": task.exception()}
        )
        loop.call_later(BACKOFF.cap_s, self._spawn_if_open, task)

    def _spawn_if_open(self, failed: asyncio.Task[None]) -> None:
        if self._task is failed:
            self._spawn()

    async def _run(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._session()
            except* (RedisError, OSError) as group:
                if failures == 0 or loop.time() - began > SETTLED_S:  # once, not at every try
                    _log.warning("redis.lost", errors=[_named(error) for error in group.exceptions])
                failures = 1 if loop.time() - began > SETTLED_S else failures + 1
            self._tried.set()
            await asyncio.sleep(BACKOFF.delay_s(failures, jitter=random.random()))

    async def _session(self) -> None:
        connection = cast("AbstractConnection", self._pool.make_connection())  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await connection.connect()  # type: ignore[no-untyped-call]
            self._outgoing.clear()
            self._connection = connection
            self._speaker.on_connected()
            self._tried.set()
            _log.info("redis.connected")
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(connection))
                group.create_task(self._write(connection))
                group.create_task(self._check())
        finally:
            was_connected, self._connection = self._connection, None
            if was_connected is not None:
                self._speaker.on_lost()
            with contextlib.suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            try:
                response = await connection.read_response(
                    timeout=math.inf, disconnect_on_error=False
                )
            except ResponseError as error:
                response = error
            self._speaker.on_response(response)

    async def _write(self, connection: AbstractConnection) -> None:
        while True:
            await self._something_to_write.wait()
            self._something_to_write.clear()
            chunks, self._outgoing = self._outgoing, []
            if not connection.is_connected:  # else redis-py would quietly open a second socket
                msg = "the server closed the connection"
                raise RedisConnectionError(msg)
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await connection.send_packed_command(chunks, check_health=False)

    async def _check(self) -> None:
        loop = asyncio.get_running_loop()
        ping_at = loop.time() + PING_EVERY_S
        while True:
            expected = loop.time() + CHECK_EVERY_S
            await asyncio.sleep(CHECK_EVERY_S)
            now = loop.time()
            if now - expected > CHECK_EVERY_S:
                continue  # it was us who slept; the answer may lie in the socket
            since = self._speaker.waiting_since()
            if since is not None and now - since > self._answer_timeout_s:
                msg = f"Redis has not answered for {self._answer_timeout_s} s"
                raise TimeoutError(msg)
            if now >= ping_at:
                ping_at = now + PING_EVERY_S
                self._speaker.on_idle()


def _named(error: BaseException) -> str:
    """Errors of the connection name the server at most; they never hold what was sent."""
    return f"{type(error).__name__}: {error}"
