"""A TCP proxy between two parts of the house, whose faults are switched at run time."""

import asyncio
import random
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import cast

from deploy.local.ports import pick_port

MAX_HELD_BYTES = 256 * 1024
"""Of one direction of one connection; above it the sender is not read any more."""

CONNECT_TIMEOUT_S = 5.0
"""Longest wait for the part behind the proxy; it is on this machine."""

STOP_TIMEOUT_S = 5.0

COMMIT_REPLY = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""CommandComplete of a COMMIT on the wire: type, length of 11 with itself, tag, end of text."""

_TAIL = len(COMMIT_REPLY) - 1
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: the close is a TCP reset


@dataclass(slots=True)
class Counters:
    """What a proxy has seen and done since it was made.

    Attributes:
        connections: Accepted.
        bytes: Passed on, both ways together.
        cuts: Connections reset on purpose, those of dropped replies included.
        dropped_replies: Replies that were swallowed.
    """

    connections: int = 0
    bytes: int = 0
    cuts: int = 0
    dropped_replies: int = 0


class Proxy:
    """Passes bytes between its port and one upstream, in order, until told to misbehave.

    Attributes:
        upstream: Host and port behind it; a change concerns new connections.
    """

    def __init__(self, upstream_host: str, upstream_port: int, *, port: int | None = None) -> None:
        self.upstream = (upstream_host, upstream_port)
        self.counters = Counters()
        self._port = port or 0
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self.refuses = False
        self.is_hole = False
        self.delay_s = 0.0
        self.jitter_s = 0.0
        self._commits_to_drop = 0
        self._replies_to_drop = 0

    @property
    def port(self) -> int:
        """The port it listens on, known once started; it stays the same when refusing ends."""
        return self._port

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._links)

    async def start(self) -> int:
        """Listen on 127.0.0.1; returns the port."""
        # Outside the kernel's range for outgoing connections, so that nobody takes the port while
        # it refuses.
        self._port = self._port or pick_port()
        await self._listen()
        return self._port

    async def stop(self) -> None:
        """Cut everything and give the port back."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self._reset_all()
        if listener is not None:
            await asyncio.wait_for(listener.wait_closed(), STOP_TIMEOUT_S)

    def delay(self, ms: float, jitter_ms: float = 0.0) -> None:
        """Hand every piece over ``ms`` to ``ms + jitter_ms`` later, each way; order is kept."""
        self.delay_s, self.jitter_s = ms / 1000, jitter_ms / 1000

    def cut(self) -> int:
        """Reset all connections of this moment, both ends; returns how many those were."""
        count = self._reset_all()
        self.counters.cuts += count
        return count

    def blackhole(self) -> None:
        """Accept connections and bytes and pass nothing on, either way.

        As in a network that is parted, what was sent into it arrives late if the hole is closed
        before the sender gives up: ``cut`` before ``restore`` loses it instead.
        """
        self.is_hole = True
        self._regulate()

    def refuse(self) -> None:
        """Refuse new connections and reset the present ones, as a part that is not there."""
        self.refuses = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.cut()

    async def restore(self) -> None:
        """End every fault of this proxy."""
        self.delay(0)
        self._commits_to_drop = self._replies_to_drop = 0
        self.is_hole = False
        self._regulate()
        if self.refuses:
            self.refuses = False
            await self._listen()

    def drop_next_commit_reply(self, n: int = 1) -> None:
        """Let the next ``n`` COMMITs take effect, swallow the reply and cut the connection.

        Postgres replies to a COMMIT when it is durable, so seeing the reply proves the effect.
        """
        self._commits_to_drop += n

    def drop_next_reply(self, n: int = 1) -> None:
        """Swallow the next ``n`` pieces that come from upstream, and cut their connections."""
        self._replies_to_drop += n

    # For the connections

    def add(self, link: "_Link") -> None:
        """A client came."""
        self._links.add(link)
        self.counters.connections += 1

    def remove(self, link: "_Link") -> None:
        """Both ends of a connection are gone."""
        self._links.discard(link)

    def lag_s(self) -> float:
        """How long the piece that came now is held."""
        return self.delay_s + (random.uniform(0, self.jitter_s) if self.jitter_s else 0.0)

    def is_to_drop(self, tail: bytes, piece: bytes) -> bool:
        """Whether this piece from upstream, after ``tail``, is a reply that shall be lost."""
        if self._replies_to_drop:
            self._replies_to_drop -= 1
        elif self._commits_to_drop and COMMIT_REPLY in tail + piece:
            self._commits_to_drop -= 1
        else:
            return False
        self.counters.dropped_replies += 1
        self.counters.cuts += 1
        return True

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: _Link(self).client, "127.0.0.1", self._port, reuse_address=True
        )

    def _reset_all(self) -> int:
        links = list(self._links)
        for link in links:
            link.reset()
        return len(links)

    def _regulate(self) -> None:
        for link in list(self._links):
            link.regulate()


class _Link:
    """One connection through the proxy: two ends, and a direction from each to the other."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.client = _End(self, is_upstream=False)
        self.upstream = _End(self, is_upstream=True)
        self.client.peer, self.upstream.peer = self.upstream, self.client
        self._connecting: asyncio.Task[None] | None = None

    def opened(self) -> None:
        """The client is there: reach for the other side, unless nothing passes now."""
        self.proxy.add(self)
        if self.proxy.refuses:  # it was accepted a moment before
            self.reset()
        else:
            self.regulate()

    def regulate(self) -> None:
        """Read where bytes may pass, and connect upstream as soon as they may."""
        if self._connecting is None and not self.proxy.is_hole:
            self._connecting = asyncio.create_task(self._connect())
        self.client.regulate()
        self.upstream.regulate()

    def reset(self) -> None:
        """Reset both ends."""
        if self._connecting is not None:
            self._connecting.cancel()
        self.client.reset()
        self.upstream.reset()
        self.proxy.remove(self)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = self.proxy.upstream
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: self.upstream, host, port)
        except OSError:
            self.reset()  # TimeoutError is one
            return
        if self.client.is_gone:
            self.upstream.reset()
        self.client.regulate()


class _End(asyncio.Protocol):
    """One end of a connection: reads from its socket, holds what it read, writes to its peer."""

    def __init__(self, link: _Link, *, is_upstream: bool) -> None:
        self._link = link
        self._is_upstream = is_upstream
        self.peer: _End = self
        self.transport: asyncio.Transport | None = None
        self.is_gone = False
        self.is_writable = True
        self._held: deque[tuple[float, bytes]] = deque()  # an empty piece is the end of the stream
        self._held_bytes = 0
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._tail = b""
        self._has_ended = False  # and the peer has been told

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self._is_upstream:
            self.regulate()
        else:
            self._link.opened()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = True
        self.transport = None
        if exc is not None:
            self._link.reset()
        if self.peer.is_gone:
            self._link.proxy.remove(self._link)

    def data_received(self, data: bytes) -> None:
        proxy = self._link.proxy
        if self._is_upstream:
            if proxy.is_to_drop(self._tail, data):
                self._link.reset()
                return
            self._tail = (data if len(data) >= _TAIL else self._tail + data)[-_TAIL:]
        # uvloop may deliver a piece although reading was paused when the connection was made.
        is_open = self.peer.transport is not None and not proxy.is_hole
        if is_open and not self._held and not proxy.delay_s and not proxy.jitter_s:
            self._pass_on(data)
        else:
            self._hold(data)

    def eof_received(self) -> bool:
        self._hold(b"")
        return True  # the other direction may still have something to say

    def pause_writing(self) -> None:
        self.is_writable = False
        self.peer.regulate()

    def resume_writing(self) -> None:
        self.is_writable = True
        self.peer.regulate()

    def regulate(self) -> None:
        """Read only what can be held or passed on."""
        if self.transport is None:
            return
        reads = (
            not self._link.proxy.is_hole
            and self.peer.transport is not None
            and self.peer.is_writable
            and self._held_bytes < MAX_HELD_BYTES
        )
        if reads:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()
        if self._held and self._timer is None:
            self._release()

    def reset(self) -> None:
        """Close with a TCP reset, whatever is still held."""
        self._held.clear()
        self.is_gone = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.transport is not None:
            own = self.transport.get_extra_info("socket")
            if own is not None:  # else it is closed already
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()
            self.transport = None

    def _hold(self, piece: bytes) -> None:
        loop = asyncio.get_running_loop()
        # Never before the piece in front of it.
        self._due_s = max(self._due_s, loop.time() + self._link.proxy.lag_s())
        self._held.append((self._due_s, piece))
        self._held_bytes += len(piece)
        self.regulate()

    def _release(self) -> None:
        """Pass on what is due, and come back for the rest."""
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._held:
            if self._link.proxy.is_hole or self.peer.transport is None:
                return  # both call regulate when that changes
            due_s, piece = self._held[0]
            if due_s > loop.time():
                self._timer = loop.call_at(due_s, self._release)
                break
            self._held.popleft()
            self._held_bytes -= len(piece)
            self._pass_on(piece)
        if self._held_bytes < MAX_HELD_BYTES:
            self._read_again()

    def _read_again(self) -> None:
        if self.transport is not None and self.peer.is_writable and not self._link.proxy.is_hole:
            self.transport.resume_reading()

    def _pass_on(self, piece: bytes) -> None:
        other = self.peer.transport
        if other is None:
            return
        if piece:
            self._link.proxy.counters.bytes += len(piece)
            other.write(piece)
            return
        self._has_ended = True
        if self.peer._has_ended:
            other.close()
            if self.transport is not None:
                self.transport.close()
        elif other.can_write_eof():
            other.write_eof()
