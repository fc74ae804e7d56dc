"""``python -m tests.bench.soak --minutes 10``: what grows while the same load goes on and on.

Turns come at random moments at a steady rate. Every few seconds it reads the memory of every
process, the size of every table, the records that consumers lag behind and what Valkey holds. What
is kept for every turn may grow with the turns; memory and lag may not.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import psycopg
import uvloop
from redis.asyncio import Redis

from tests.bench.arithmetic import random_starts, settled, slope
from tests.bench.bench_house import SERVICES, STORES, BenchHouse
from tests.bench.driver import TurnwireClient, closed_loop
from tests.bench.machine import Fsync, measure_fsync, measure_speed, read_memory
from tests.bench.open_loop import OpenSamples, open_loop
from tests.bench.page import machine_line
from tests.bench.page_file import GOAL_HEAD, goal, milliseconds, table, write_part
from tests.rig.scrape import counted

CLIENTS = 48
WARM_UP_S = 12.0
LOOK_EVERY_S = 5.0
SEED = 17
SPARE_S = 120.0
"""Beyond the minutes asked for: start, warming up, the comparison at the end."""

MAX_MEMORY_MIB_AN_HOUR = 30.0
"""For one process. Heaps that have settled drift by a few; 300 bytes kept for each turn would be 31
at 30 turns/s."""

MAX_LAG_AN_HOUR = 600.0
"""Records. Lag jumps by dozens within seconds; consumers that cannot keep up lose thousands."""

MIB = 1024 * 1024
WORKERS = ("ingestion", "context_assembly", "llm_gateway")

SIZES = """
select n.nspname || '.' || c.relname as name, pg_total_relation_size(c.oid)::float8 as bytes
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relkind = 'r'
   and n.nspname in ('ingestion', 'context_assembly', 'llm_gateway', 'frontend_gateway')
"""
WAITING = """
select ((select count(*) from ingestion.outbox) + (select count(*) from context_assembly.outbox)
        + (select count(*) from llm_gateway.outbox))::float8
"""

Series = list[tuple[float, float]]


@dataclass(slots=True)
class Soak:
    """Everything one run saw; every series is (seconds, value).

    Attributes:
        memory: MiB that a process shares with nobody, by process.
        tables: Bytes with indexes, by table.
        others: Records of lag, outbox rows, Valkey's MiB and keys.
    """

    fsync: Fsync
    speed_ms: float
    per_s: float
    seconds: float
    samples: OpenSamples | None = None
    memory: dict[str, Series] = field(default_factory=dict)
    tables: dict[str, Series] = field(default_factory=dict)
    others: dict[str, Series] = field(default_factory=dict)
    turns: int = 0

    def note(self, group: dict[str, Series], values: Mapping[str, float], at: float) -> None:
        """Add one look to the series of a group."""
        for name, value in values.items():
            group.setdefault(name, []).append((at, value))

    def an_hour(self, series: Series) -> float:
        """Growth an hour in the later half."""
        return slope(settled(series)) * 3600


class _Looking:
    """Reads what might grow."""

    def __init__(self, house: BenchHouse, soak: Soak) -> None:
        self._house = house
        self._soak = soak

    async def run(self) -> None:
        """Look until cancelled."""
        house, soak = self._house, self._soak
        began = perf_counter()
        async with (
            await psycopg.AsyncConnection.connect(
                house.stack.database_url, autocommit=True
            ) as connection,
            Redis.from_url(house.stack.redis_url) as redis,
        ):
            while True:
                at = perf_counter() - began
                pids = house.pids()
                named = (*SERVICES, *STORES)
                soak.note(soak.memory, {n: read_memory(pids[n]).own for n in named}, at)
                sizes = await (await connection.execute(SIZES)).fetchall()
                soak.note(soak.tables, dict(sizes), at)
                soak.note(soak.others, await self._others(connection, redis), at)
                await asyncio.sleep(LOOK_EVERY_S)

    async def _others(
        self, connection: psycopg.AsyncConnection[tuple[float]], redis: Redis
    ) -> dict[str, float]:
        urls = [self._house.process(name).url for name in WORKERS]
        lag = await asyncio.gather(*(counted(url, "consumer_lag_records") for url in urls))
        row = await (await connection.execute(WAITING)).fetchone()
        assert row is not None
        memory = await redis.info("memory")
        return {
            "records that consumers lag behind": sum(lag),
            "rows in the outboxes": row[0],
            "Valkey's memory, MiB": memory["used_memory"] / MIB,
            "keys in Valkey": float(await redis.dbsize()),
        }


async def soak(*, minutes: float, per_s: float) -> Soak:
    """Load a house for so long and look at it."""
    with tempfile.TemporaryDirectory(prefix="turnwire-soak-") as folder:
        async with (
            asyncio.timeout(minutes * 60 + SPARE_S),
            BenchHouse(Path(folder)) as house,
        ):
            return await _soak(house, minutes * 60, per_s)


async def _soak(house: BenchHouse, seconds: float, per_s: float) -> Soak:
    key, ledger = await house.ledger()
    found = Soak(measure_fsync(house.stack.data_dir), measure_speed(), per_s, seconds)
    clients = [
        TurnwireClient(house.gateway_url(), key, ledger, f"client {n}") for n in range(CLIENTS)
    ]
    turns = [client.next_turn for client in clients]
    try:
        await closed_loop(turns[:16], seconds=WARM_UP_S)
        looking = asyncio.create_task(_Looking(house, found).run())
        try:
            starts = random_starts(per_s, seconds, random.Random(SEED))
            found.samples = await open_loop(turns, starts)
            found.turns = found.samples.turns
            if looking.done():
                looking.result()
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
    finally:
        for client in clients:
            client.close()
    (await house.verdict()).require(one_terminal_per_turn=1, stream_equals_store=3)
    return found


NOTE = """\
Written by `make soak`. Turns at random moments at a steady rate, one process of each service.
Every {look:.0f} s the memory of every process (pages it shares with nobody), the size of every
table with its indexes, the records that consumers lag behind, the outboxes and Valkey were read.
Growth is the slope of the later half by least squares. Tables keep every turn, so they grow with
the turns, and Postgres' buffers with them; Valkey keeps the stream of an ended turn for ten
minutes, so it grows for ten. Outboxes, lag and the memory of services must not."""


def render(found: Soak) -> str:
    """The part of the page that ``make soak`` owns."""
    samples = found.samples
    assert samples is not None
    return "\n\n".join(
        [
            "## Soak",
            NOTE.format(look=LOOK_EVERY_S),
            machine_line(found.fsync, found.speed_ms),
            f"{found.seconds / 60:.0f} minutes at {found.per_s:.0f} turns/s: {samples.turns:,} "
            f"turns, all verified. First token {milliseconds(samples.first.p(50))} (p50), "
            f"{milliseconds(samples.first.p(99))} (p99), longest "
            f"{milliseconds(samples.first.longest)}, from the intended start.",
            table(GOAL_HEAD, list(_goals(found))),
            table(
                ("", "first", "last", "most", "growth an hour"),
                [*_rows(found, found.memory, "MiB of "), *_rows(found, found.others, "")],
            ),
            table(("table", "first", "last", "bytes a turn"), list(_tables(found))),
        ]
    )


def _goals(found: Soak) -> Iterator[Sequence[str]]:
    name, grows = max(
        (
            (name, found.an_hour(series))
            for name, series in found.memory.items()
            if name in SERVICES
        ),
        key=lambda pair: pair[1],
    )
    yield goal(
        f"growth of a service's memory, at most ({name})",
        f"<= {MAX_MEMORY_MIB_AN_HOUR:.0f} MiB an hour",
        f"{grows:.1f} MiB",
        is_met=grows <= MAX_MEMORY_MIB_AN_HOUR,
    )
    lag = found.an_hour(found.others["records that consumers lag behind"])
    yield goal(
        "growth of the consumers' lag",
        f"<= {MAX_LAG_AN_HOUR:.0f} records an hour",
        f"{lag:.0f}",
        is_met=lag <= MAX_LAG_AN_HOUR,
    )


def _rows(found: Soak, group: Mapping[str, Series], prefix: str) -> Iterator[Sequence[str]]:
    for name, series in group.items():
        values = [value for _, value in series]
        yield (
            prefix + name,
            f"{values[0]:,.1f}",
            f"{values[-1]:,.1f}",
            f"{max(values):,.1f}",
            f"{found.an_hour(series):+,.1f}",
        )


def _tables(found: Soak) -> Iterator[Sequence[str]]:
    per_s = found.turns / found.seconds
    by_growth = sorted(found.tables.items(), key=lambda item: -slope(settled(item[1])))
    for name, series in by_growth:
        first, last = series[0][1] / MIB, series[-1][1] / MIB
        a_turn = slope(settled(series)) / per_s
        if last >= 0.1:
            yield name, f"{first:.1f} MiB", f"{last:.1f} MiB", f"{a_turn:,.0f}"


def main() -> None:
    """Read the options, load, print; the page is written by runs of five minutes and more."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=30.0, help="turns a second")
    chosen = parser.parse_args()
    found = uvloop.run(soak(minutes=chosen.minutes, per_s=chosen.rate))
    text = render(found)
    sys.stdout.write(text + "\n")
    if chosen.minutes >= 5:
        write_part("soak", text)


if __name__ == "__main__":
    main()
