"""The gateway's hub without HTTP: many turns, one reader each, bells over a real Valkey.

``python -m tests.bench.hub_alone --streams 1000 --seconds 10`` with ``REDIS_URL`` set prints one
line of JSON. The hub runs in this process; a child writes the entries, with the script that
llm_gateway uses, and puts the moment of writing into each.
"""

import argparse
import asyncio
import hashlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from time import perf_counter, process_time
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import UUID, uuid4, uuid5

import orjson
import uvloop

from libs.garbage import collect_rarely
from libs.redis.doorbell import RedisDoorbell
from libs.redis.live_stream import MAX_ENTRIES, RedisLiveStream
from libs.redis.ports import STREAM_EXPIRE_S
from schemas.streams import generating
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.hub import Hub, Pace
from services.frontend_gateway.live_feed import Feed
from services.frontend_gateway.ports import Facts, Proof, Reads
from tests.bench.arithmetic import Delays
from tests.bench.machine import read_memory
from tests.bench.paced import deltas_of

PER_S = 10
WRITE_EVERY_S = 0.002
GRACE_S = 10.0
FRAME = re.compile(rb"id: 1-(\d+)\nevent: content_delta\n")
OWNER = UUID(int=1)  # of turns that no table knows


@dataclass(frozen=True, slots=True)
class HubResult:
    """What the readers saw.

    Attributes:
        missing: Deltas that were written and not delivered, or delivered out of order.
        cpu_share: Part of one core that the hub's process used.
        pss_mib: Of the hub's process at the end.
    """

    streams: int
    seconds: float
    delivered: int
    missing: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    cpu_share: float
    pss_mib: float


class _NoRows:
    """The rows of turns that are only in Redis: nothing is ever asked that matters."""

    async def facts(self, watched: Sequence[tuple[UUID, UUID]]) -> Sequence[Facts]:
        del watched
        return ()

    async def turn(self, tenant: UUID, turn: UUID) -> TurnView | None:
        del tenant, turn
        return None


def turn_of(run: UUID, number: int) -> TurnView:
    """One of the turns of this run, which both processes know."""
    turn_id = uuid5(run, str(number))
    return TurnView(
        id=turn_id,
        tenant_id=OWNER,
        conversation_id=turn_id,
        principal_id=OWNER,
        status="generating",
        seq=1,
    )


class _Reader:
    """Follows one turn, as a connection's handler does."""

    def __init__(self, hub: Hub, turn: TurnView, delays: Delays) -> None:
        self._hub = hub
        self._turn = turn
        self._delays = delays
        self.ready = asyncio.Event()
        self.delivered = 0
        self.disorder = 0

    async def run(self) -> None:
        """Read until cancelled."""
        proof: Proof = ("key", b"bench")
        reads = cast("Reads", _NoRows())
        async with self._hub.seat(self._turn, OWNER, proof, lambda _: None) as seat:
            feed = Feed(self._turn, None, seat=seat, hub=self._hub, reads=reads)
            self.ready.set()
            async for chunk in feed.chunks():
                now = perf_counter()
                for number, at in deltas_of(chunk):
                    self.disorder += number != self.delivered
                    self.delivered += 1
                    self._delays.note(now - at)


async def measure(streams: int, seconds: float) -> HubResult:
    """Read all streams to the last delta that the writer was told to write."""
    url = os.environ["REDIS_URL"]
    wanted = int(seconds * PER_S)
    delays = Delays()
    run = uuid4()

    async def always(proof: Proof) -> bool:
        del proof
        return True

    async with RedisLiveStream.open(url) as live, RedisDoorbell.open(url) as bell:
        hub = Hub(
            live=live,
            bell=bell,
            watched=_NoRows(),
            is_allowed=always,
            watcher="bench",
            pace=Pace(),
        )
        readers = [_Reader(hub, turn_of(run, number), delays) for number in range(streams)]
        tasks = [asyncio.create_task(reader.run()) for reader in readers]
        ticking = asyncio.create_task(hub.run())
        try:
            await asyncio.gather(*(reader.ready.wait() for reader in readers))
            cpu, began = process_time(), perf_counter()
            await _write_in_a_child(run, streams, seconds)
            await _all_delivered(readers, wanted)
            took = perf_counter() - began
            used = process_time() - cpu
        finally:
            ticking.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, ticking, return_exceptions=True)
            await hub.close()
    lost = sum(wanted - reader.delivered + reader.disorder for reader in readers)
    return HubResult(
        streams,
        seconds,
        sum(reader.delivered for reader in readers),
        lost,
        delays.p(50),
        delays.p(99),
        delays.longest,
        used / took,
        read_memory(os.getpid()).pss,
    )


async def _write_in_a_child(run: UUID, streams: int, seconds: float) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.hub_alone", "--write", str(run)),
        *("--streams", str(streams), "--seconds", str(seconds)),
    )
    try:
        async with asyncio.timeout(seconds + GRACE_S * 2):
            code = await child.wait()
    except TimeoutError:
        child.kill()
        raise
    assert code == 0, f"the writer ended with code {code}"


async def _all_delivered(readers: Sequence[_Reader], wanted: int) -> None:
    ends = perf_counter() + GRACE_S
    while perf_counter() < ends and any(reader.delivered < wanted for reader in readers):
        await asyncio.sleep(0.05)


class Writer:
    """Writes entries as fast as the pace wants, over one connection, in Redis' own protocol."""

    def __init__(self, run: UUID, streams: int) -> None:
        source = resources.files("libs.redis").joinpath("append.lua").read_bytes()
        digest = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        self.load = command(b"SCRIPT", b"LOAD", source)
        self._heads = []
        for number in range(streams):
            turn = str(turn_of(run, number).id).encode()
            fixed = (
                *(b"EVALSHA", digest, b"2", b"turn:" + turn, b"bell:" + turn),
                *(b"%d" % STREAM_EXPIRE_S, b"%d" % MAX_ENTRIES),
            )
            self._heads.append(b"*10\r\n" + b"".join(map(bulk, fixed)))

    def opening(self, stream: int) -> bytes:
        """The command that writes an attempt's first entry."""
        entry = generating(1)
        return self._heads[stream] + b"".join(
            map(bulk, (str(entry.id).encode(), entry.event.encode(), entry.data))
        )

    def delta(self, stream: int, number: int) -> bytes:
        """The command that writes a delta with this moment in it."""
        data = b'{"text":"%d@%.6f "}' % (number, perf_counter())
        return self._heads[stream] + b"".join(
            map(bulk, (b"1-%d" % (number + 2), b"content_delta", data))
        )


def bulk(value: bytes) -> bytes:
    """One argument of a command."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def command(*parts: bytes) -> bytes:
    """One command."""
    return b"*%d\r\n" % len(parts) + b"".join(map(bulk, parts))


async def write(run: UUID, streams: int, seconds: float) -> None:
    """Write ``PER_S`` deltas a second into each stream, evenly spread over the second."""
    address = urlsplit(os.environ["REDIS_URL"])
    reader, link = await asyncio.open_connection(address.hostname, address.port)
    writer = Writer(run, streams)
    user = (address.username.encode(),) if address.username else ()
    if address.password:
        link.write(command(b"AUTH", *user, address.password.encode()))
    link.write(writer.load)
    draining = asyncio.create_task(_refusals(reader))
    link.write(b"".join(writer.opening(stream) for stream in range(streams)))
    await link.drain()
    total, step = int(seconds * PER_S) * streams, 1 / (PER_S * streams)
    written, began = 0, perf_counter()
    while written < total:
        due = min(total, int((perf_counter() - began) / step))
        link.write(b"".join(writer.delta(k % streams, k // streams) for k in range(written, due)))
        written = due
        await link.drain()
        await asyncio.sleep(WRITE_EVERY_S)
    link.write_eof()
    async with asyncio.timeout(GRACE_S):
        refused = await draining
    link.close()
    assert not refused, f"Valkey refused {refused[:3]}"


async def _refusals(reader: asyncio.StreamReader) -> list[bytes]:
    refused: list[bytes] = []
    while line := await reader.readline():
        if line.startswith(b"-"):
            refused.append(line)
    return refused


async def run_hub_alone(redis_url: str, *, streams: int, seconds: float) -> HubResult:
    """Measure in a process of its own."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.hub_alone"),
        *("--streams", str(streams), "--seconds", str(seconds)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "REDIS_URL": redis_url},
    )
    try:
        async with asyncio.timeout(seconds + GRACE_S * 4):
            printed, _ = await child.communicate()
    except TimeoutError:
        child.kill()
        raise
    found: dict[str, Any] = orjson.loads(printed.splitlines()[-1])  # logs come before it
    return HubResult(**found)


def main() -> None:
    """Write, or read and print what was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hub_alone", description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--write", type=UUID, metavar="RUN", help="the child's part")
    chosen = parser.parse_args()
    if chosen.write is not None:
        uvloop.run(write(chosen.write, chosen.streams, chosen.seconds))
        return
    collect_rarely()
    found = uvloop.run(measure(chosen.streams, chosen.seconds))
    sys.stdout.write(orjson.dumps(asdict(found)).decode() + "\n")


if __name__ == "__main__":
    main()
