"""Commands of many coroutines over one connection, answered in order."""

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Self

from redis.exceptions import NoScriptError, ResponseError

from libs.errors import LiveStreamUnavailable
from libs.redis.link import ANSWER_TIMEOUT_S, Link, Response

MAX_PENDING = 10_000
"""Commands without an answer. At 20,000 commands a second that is half a second of them: beyond it
Redis does not keep up, and waiting longer would only use memory."""

Argument = bytes | str | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script that the server knows by its digest."""

    source: str
    digest: str
    key_count: int

    @classmethod
    def of(cls, source: str, *, key_count: int) -> Self:
        """Name a script by the digest that the server computes as well."""
        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        return cls(source, digest, key_count)


class Pipe:
    """Sends commands as they come and hands each its answer.

    When the connection is lost, every command without an answer fails at once; whether it was
    carried out is unknown then. The pipe connects again by itself.
    """

    def __init__(self, url: str, *, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._link = Link(url, self, answer_timeout_s=answer_timeout_s)
        self._pending: deque[tuple[asyncio.Future[Response], float]] = deque()

    @property
    def connected(self) -> bool:
        """Whether commands can be sent at the moment."""
        return self._link.connected

    async def open(self) -> None:
        """Connect, or start trying; never raises."""
        await self._link.open()

    async def close(self) -> None:
        """Fail what is pending and close the connection."""
        await self._link.close()

    async def execute(self, *command: Argument) -> Response:
        """Send one command and wait for its answer, at most the answer's time-out.

        Raises:
            LiveStreamUnavailable: There is no connection, it was lost before the answer, the
                answer is late, too many commands wait, or the server refused the command.
        """
        future = self._submit(*command)
        try:
            return await future
        except ResponseError as error:
            raise _refusal(error) from error

    async def run(self, script: Script, *arguments: Argument) -> Response:
        """Run a script: by its digest, and with its source where the server has forgotten it.

        Raises:
            LiveStreamUnavailable: As ``execute``.
        """
        try:
            return await self._submit("EVALSHA", script.digest, script.key_count, *arguments)
        except NoScriptError:
            return await self.execute("EVAL", script.source, script.key_count, *arguments)
        except ResponseError as error:
            raise _refusal(error) from error

    def _submit(self, *command: Argument) -> asyncio.Future[Response]:
        if not self._link.connected:
            msg = "Redis is not connected; the connection is being opened again, try later"
            raise LiveStreamUnavailable(msg)
        if len(self._pending) >= MAX_PENDING:
            msg = f"{MAX_PENDING} commands wait for Redis already; write less, or give it more CPU"
            raise LiveStreamUnavailable(msg)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Response] = loop.create_future()
        self._pending.append((future, loop.time()))
        self._link.send(*command)
        return future

    # What the link tells.

    def on_connected(self) -> None:
        """Nothing is pending on a new connection."""

    def on_response(self, response: Response) -> None:
        """Hand the answer to the oldest command."""
        future, _ = self._pending.popleft()
        if future.done():  # its coroutine was cancelled; the answer had to be read all the same
            return
        if isinstance(response, ResponseError):
            future.set_exception(response)
        else:
            future.set_result(response)

    def on_lost(self) -> None:
        """Fail everything that still waits."""
        while self._pending:
            future, _ = self._pending.popleft()
            if not future.done():
                msg = "the connection to Redis was lost before the answer; repeat the command"
                future.set_exception(LiveStreamUnavailable(msg))

    def on_idle(self) -> None:
        """Ask for a sign of life; nobody waits for the answer."""
        if not self._pending:
            self._submit("PING").cancel()

    def waiting_since(self) -> float | None:
        """When the oldest command without an answer was sent."""
        return self._pending[0][1] if self._pending else None


def _refusal(error: ResponseError) -> LiveStreamUnavailable:
    """The server's refusal without its text, which may quote the arguments of the command."""
    code = str(error).partition(" ")[0] or type(error).__name__
    return LiveStreamUnavailable(f"Redis refused the command: {code}; see the server's log")
