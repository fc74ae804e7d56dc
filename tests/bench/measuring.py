"""The measurements of one run, one after the other, on a house that has been warmed up."""

import asyncio
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from tests.bench.arithmetic import random_starts
from tests.bench.backlog import BacklogResult, measure_backlog
from tests.bench.bench_house import BenchHouse
from tests.bench.driver import (
    TURNS_PER_CONVERSATION,
    ProviderClient,
    Samples,
    TurnwireClient,
    closed_loop,
)
from tests.bench.hops import Hop, measure_hops
from tests.bench.hub_alone import HubResult, run_hub_alone
from tests.bench.lengths import LengthResult, measure_lengths
from tests.bench.live import LiveResult, measure_live
from tests.bench.machine import (
    CpuReading,
    Fsync,
    Memory,
    measure_fsync,
    measure_speed,
    percentile,
    read_cpu,
    read_memory,
)
from tests.bench.open_loop import OpenSamples, open_loop
from tests.bench.recovery import KILLED, Recovery, measure_recovery
from tests.rig.ledger import Ledger

WARM_UP_S = 12.0
"""The broker's first compiler and every pool, plan and cache have settled by then."""

WARM_UP_CLIENTS = 16

LONGER_ALONE = 3
"""One client asks a few hundred times in a window, while the machine's speed moves by a fifth from
one ten seconds to the next; so its window is longer."""
DIRECT_S = 3.0
MOST_PER_S = 400.0
MOST_PER_CLIENT_S = 60.0
"""Rates that no window is expected to pass: so many turns find a conversation that is ready."""

OPEN_CLIENTS = 96
"""Connections of the open loop: several times what half of the maximum keeps busy."""

OPEN_SHARE = 0.5
PROBE_CLIENTS = 32
PROBE_S = 5.0
SEED = 11

ALL = ("rates", "open", "history", "hops", "live", "hub", "outbox", "recovery")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured beside the rates.

    Attributes:
        hub: Number of turns at the hub alone, and seconds.
        live: Number of streams end to end, and seconds.
    """

    open_s: float = 20.0
    lengths: Sequence[int] = (10, 100, 400, 2_000)
    length_samples: int = 60
    live: tuple[int, float] = (300, 60.0)
    hub: tuple[int, float] = (1_000, 10.0)
    backlog_rows: int = 100_000
    killed: Sequence[str] = KILLED


QUICK = Sizes(
    open_s=6.0,
    lengths=(10, 400),
    length_samples=24,
    live=(300, 8.0),
    hub=(1_000, 4.0),
    backlog_rows=10_000,
    killed=("llm_gateway", "postgres"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure.

    Attributes:
        seconds: Of one window at one number of clients.
        clients: The numbers of clients, one window each.
        only: Some of ``ALL``.
    """

    seconds: float = 12.0
    clients: Sequence[int] = (1, 8, 32, 128)
    only: Sequence[str] = ALL
    sizes: Sizes = field(default_factory=Sizes)


@dataclass(frozen=True, slots=True)
class Level:
    """One number of clients.

    Attributes:
        cpu_ms: Milliseconds of CPU per turn, by process.
        foreign_share: Part of the machine's CPU that went to processes of somebody else.
    """

    clients: int
    direct: Samples
    turnwire: Samples
    cpu_ms: Mapping[str, float]
    foreign_share: float

    def over(self, percent: float) -> float:
        """First token over the provider's own in the same run, in milliseconds."""
        mine = percentile(self.turnwire.first_ms, percent)
        return mine - percentile(self.direct.first_ms, percent)


@dataclass(frozen=True, slots=True)
class OpenLevel:
    """A rate that does not wait for answers.

    Attributes:
        wanted_per_s: Starts a second, on average.
        most_per_s: What a closed loop reached in the same run.
    """

    wanted_per_s: float
    most_per_s: float
    samples: OpenSamples
    direct: Samples
    cpu_ms: Mapping[str, float]


@dataclass(slots=True)
class Report:
    """Everything one run found."""

    fsync: Fsync
    speed_ms: float
    levels: list[Level] = field(default_factory=list)
    open_level: OpenLevel | None = None
    lengths: LengthResult | None = None
    hops: list[Hop] = field(default_factory=list)
    live: LiveResult | None = None
    hub: HubResult | None = None
    backlog: BacklogResult | None = None
    recoveries: list[Recovery] = field(default_factory=list)
    memory_at_rest: dict[str, Memory] = field(default_factory=dict)
    memory_at_load: dict[str, Memory] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)
    stage_s: dict[str, float] = field(default_factory=dict)


class Measuring:
    """Runs the measurements on one house."""

    def __init__(self, house: BenchHouse, options: Options) -> None:
        self._house = house
        self._options = options
        self._clients: list[TurnwireClient] = []

    async def run(self) -> Report:
        """Warm up, measure, compare ledger and rows."""
        house = self._house
        key, ledger = await house.ledger()
        report = Report(measure_fsync(house.stack.data_dir), measure_speed())
        report.memory_at_rest = _memory(house)
        wanted = max(*self._options.clients, OPEN_CLIENTS)
        self._clients = [
            TurnwireClient(house.gateway_url(), key, ledger, f"client {n}") for n in range(wanted)
        ]
        try:
            warm = [client.next_turn for client in self._clients[:WARM_UP_CLIENTS]]
            await closed_loop(warm, seconds=WARM_UP_S)
            for name in ALL:
                if name in self._options.only:
                    began = perf_counter()
                    await self._stage(name, report)
                    report.stage_s[name] = perf_counter() - began
        finally:
            for client in self._clients:
                client.close()
        verdict = await house.verdict()
        verdict.require(one_terminal_per_turn=1, stream_equals_store=3)
        report.checked = dict(verdict.checked)
        return report

    async def _stage(self, name: str, report: Report) -> None:
        house, sizes = self._house, self._options.sizes
        match name:
            case "rates":
                for clients in self._options.clients:
                    report.levels.append(await self._level(clients))
                    _keep_most(report.memory_at_load, _memory(house))
            case "open":
                report.open_level = await self._open(report)
                _keep_most(report.memory_at_load, _memory(house))
            case "history":
                report.lengths = await self._lengths()
            case "hops":
                report.hops = await measure_hops(house, self._clients[0])
            case "live":
                streams, seconds = sizes.live
                report.live = await measure_live(
                    house, self._clients, streams=streams, seconds=seconds
                )
            case "hub":
                streams, seconds = sizes.hub
                report.hub = await run_hub_alone(
                    house.stack.redis_url, streams=streams, seconds=seconds
                )
            case "outbox":
                report.backlog = await measure_backlog(house, sizes.backlog_rows)
            case "recovery":
                report.recoveries = await measure_recovery(house, sizes.killed)

    async def _level(self, clients: int) -> Level:
        asked = await self._direct(clients)
        ours = self._clients[:clients]
        seconds = self._options.seconds * (LONGER_ALONE if clients == 1 else 1)
        await prepare(ours, seconds)
        pids = self._house.pids()
        before = read_cpu(pids)
        samples = await closed_loop([client.next_turn for client in ours], seconds=seconds)
        after = read_cpu(pids)
        whole = seconds * (os.cpu_count() or 1)
        return Level(
            clients,
            asked,
            samples,
            _cpu_ms(before, after, samples.turns),
            after.foreign_since(before) / whole,
        )

    async def _direct(self, clients: int) -> Samples:
        direct = [ProviderClient(self._house.provider.base_url) for _ in range(clients)]
        asked = await closed_loop([one.next_turn for one in direct], seconds=DIRECT_S)
        for one in direct:
            one.close()
        return asked

    async def _open(self, report: Report) -> OpenLevel:
        """Half of the most that the closed loop reached; users come at random moments."""
        most = max((level.turnwire.per_s for level in report.levels), default=0.0)
        if not most:
            probe = [client.next_turn for client in self._clients[:PROBE_CLIENTS]]
            most = (await closed_loop(probe, seconds=PROBE_S)).per_s
        per_s, seconds = most * OPEN_SHARE, self._options.sizes.open_s
        direct = await self._direct(1)
        ours = self._clients[:OPEN_CLIENTS]
        await prepare(ours, seconds)
        pids = self._house.pids()
        before = read_cpu(pids)
        starts = random_starts(per_s, seconds, random.Random(SEED))
        samples = await open_loop([client.next_turn for client in ours], starts)
        used = _cpu_ms(before, read_cpu(pids), samples.turns)
        return OpenLevel(per_s, most, samples, direct, used)

    async def _lengths(self) -> LengthResult:
        """With a tenant of its own: most of its rows are copies that no client's ledger knows."""
        key = await self._house.make_key("lengths")
        client = TurnwireClient(
            self._house.gateway_url(), key.key, Ledger(key.tenant_id), "a long conversation"
        )
        sizes = self._options.sizes
        try:
            return await measure_lengths(
                self._house, client, lengths=sizes.lengths, samples=sizes.length_samples
            )
        finally:
            client.close()


async def prepare(clients: Sequence[TurnwireClient], seconds: float) -> None:
    """Make the conversations of a window before its clock runs."""
    turns = min(MOST_PER_S, MOST_PER_CLIENT_S * len(clients)) * seconds / len(clients)
    wanted = 1 + math.ceil(turns / TURNS_PER_CONVERSATION)
    await asyncio.gather(*(client.prepare(wanted) for client in clients))


def _cpu_ms(before: CpuReading, after: CpuReading, turns: int) -> Mapping[str, float]:
    return {name: s * 1000 / max(1, turns) for name, s in after.since(before).items()}


def _memory(house: BenchHouse) -> dict[str, Memory]:
    return {name: read_memory(pid) for name, pid in house.pids().items()}


def _keep_most(most: dict[str, Memory], seen: Mapping[str, Memory]) -> None:
    for name, memory in seen.items():
        if name not in most or memory.pss > most[name].pss:
            most[name] = memory
