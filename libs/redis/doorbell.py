"""The bells of one process, heard over one connection however many turns it follows."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from libs.redis.link import Link, Response
from libs.redis.ports import OnBell, OnLost

SUBSCRIBE_TIMEOUT_S = 2.0
"""A client waits at most so long for its channel; then it reads what is there, and again later."""

CHANNELS_PER_COMMAND = 500
"""When all are subscribed again; keeps one command below 32 KiB."""

_MESSAGE_PARTS = 3


@dataclass(slots=True, eq=False)
class _Listener:
    """One ``listen`` under way.

    Attributes:
        missed: It went on without a confirmed subscription and has to be told once there is one.
    """

    on_bell: OnBell
    on_lost: OnLost | None
    missed: bool = False


@dataclass(slots=True, eq=False)
class _Channel:
    """A channel that somebody listens to."""

    listeners: list[_Listener] = field(default_factory=list)
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)


class RedisDoorbell:
    """Implements ``Doorbell`` with one pub/sub connection, opened again whenever it is lost."""

    def __init__(self, url: str) -> None:
        self._link = Link(url, self)
        self._channels: dict[str, _Channel] = {}
        self._due: deque[_Channel | None] = deque()  # who each coming confirmation is for
        self._pinged_at: float | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["RedisDoorbell"]:
        """Connect, or go on trying in the background: a process starts without Redis as well."""
        doorbell = cls(url)
        await doorbell._link.open()
        try:
            yield doorbell
        finally:
            await doorbell._link.close()

    @property
    def connected(self) -> bool:
        """Whether bells can be heard at the moment."""
        return self._link.connected

    @contextlib.asynccontextmanager
    async def listen(
        self, channel: str, on_bell: OnBell, on_lost: OnLost | None = None
    ) -> AsyncIterator[bool]:
        """Hear a channel; see ``Doorbell.listen``."""
        listener = _Listener(on_bell, on_lost)
        entry = self._channels.get(channel)
        if entry is None:
            entry = self._channels[channel] = _Channel()
            self._subscribe([channel])
        entry.listeners.append(listener)
        try:
            yield await self._is_heard(entry, listener)
        finally:
            entry.listeners.remove(listener)
            if not entry.listeners:
                del self._channels[channel]
                self._send_counted("UNSUBSCRIBE", [channel], [None])

    async def _is_heard(self, entry: _Channel, listener: _Listener) -> bool:
        """Wait for the confirmation, unless there is no connection that could bring it."""
        if not entry.confirmed.is_set() and self._link.connected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SUBSCRIBE_TIMEOUT_S):
                    await entry.confirmed.wait()
        listener.missed = not entry.confirmed.is_set()
        return not listener.missed

    def _subscribe(self, channels: list[str]) -> None:
        self._send_counted("SUBSCRIBE", channels, [self._channels[name] for name in channels])

    def _send_counted(
        self, command: str, channels: list[str], due: "list[_Channel] | list[None]"
    ) -> None:
        if self._link.connected:
            self._due.extend(due)
            self._link.send(command, *channels)

    # What the link tells.

    def on_connected(self) -> None:
        """Subscribe to everything that is listened to."""
        names = list(self._channels)
        for start in range(0, len(names), CHANNELS_PER_COMMAND):
            self._subscribe(names[start : start + CHANNELS_PER_COMMAND])

    def on_response(self, response: Response) -> None:
        """Pass a bell on, or note a confirmation."""
        if isinstance(response, ResponseError):
            msg = "Redis refused to subscribe; allow this user the channels bell:* and reply:*"
            raise RedisConnectionError(msg)
        self._pinged_at = None  # whatever it is, the server lives
        if not isinstance(response, list) or len(response) != _MESSAGE_PARTS:
            return  # the answer to a PING
        kind, channel, body = response
        if kind == b"message":
            self._ring(channel.decode(), body)
        elif kind in (b"subscribe", b"unsubscribe"):
            self._confirm(self._due.popleft())

    def on_lost(self) -> None:
        """Everybody has to be told once the channels are heard again."""
        self._due.clear()
        self._pinged_at = None
        for channel in self._channels.values():
            channel.confirmed.clear()
            for listener in channel.listeners:
                listener.missed = True

    def on_idle(self) -> None:
        """Ask for a sign of life."""
        if self._pinged_at is None:
            self._pinged_at = asyncio.get_running_loop().time()
            self._link.send("PING")

    def waiting_since(self) -> float | None:
        """When the sign of life was asked for."""
        return self._pinged_at

    def _ring(self, channel: str, body: bytes) -> None:
        entry = self._channels.get(channel)
        if entry is not None:
            for listener in tuple(entry.listeners):
                listener.on_bell(channel, body)

    def _confirm(self, entry: _Channel | None) -> None:
        if entry is None:
            return
        entry.confirmed.set()
        for listener in tuple(entry.listeners):
            if listener.missed:
                listener.missed = False
                if listener.on_lost is not None:
                    listener.on_lost()
