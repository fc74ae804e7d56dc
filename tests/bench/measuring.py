"""The measurements of one run, one after the other, on a house that has been warmed up."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libs import tokens
from tests.bench.bench_house import BenchHouse
from tests.bench.driver import ProviderClient, Samples, TurnwireClient, closed_loop
from tests.bench.hops import Hop, measure_hops
from tests.bench.machine import (
    Fsync,
    Memory,
    measure_fsync,
    measure_speed,
    percentile,
    read_cpu,
    read_memory,
)

WARM_UP_S = 12.0
"""The broker's first compiler and every pool, plan and cache have settled by then."""

WARM_UP_CLIENTS = 16
DIRECT_S = 3.0
PREPARED_PER_S = 12
"""Conversations made before a window, for each of its seconds; more are made inside it if used."""

SHORT_HISTORY = 10
LONG_HISTORY = 400
HISTORY_TOKENS = 40
LONG_CONVERSATIONS = 4
SHORT_CONVERSATIONS = 12
HISTORY_SAMPLES = 60
"""Asked of each length; each adds two messages, so the lengths grow by 10 and by 30 at most."""

ALL = ("rates", "history", "hops")


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure.

    Attributes:
        seconds: Of one window at one number of clients.
        clients: The numbers of clients, one window each.
        only: Some of ``ALL``.
    """

    seconds: float = 12.0
    clients: Sequence[int] = (1, 8, 32)
    only: Sequence[str] = ALL


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


@dataclass(slots=True)
class Report:
    """Everything one run found."""

    fsync: Fsync
    speed_ms: float
    levels: list[Level] = field(default_factory=list)
    history_ms: dict[int, float] = field(default_factory=dict)
    hops: list[Hop] = field(default_factory=list)
    memory: dict[str, Memory] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)


class Measuring:
    """Runs the measurements on one house."""

    def __init__(self, house: BenchHouse, options: Options) -> None:
        self._house = house
        self._options = options
        self._clients: list[TurnwireClient] = []

    async def run(self) -> Report:
        """Warm up, measure, compare ledger and rows."""
        house, options = self._house, self._options
        key, ledger = await house.ledger()
        wanted = max(*options.clients, WARM_UP_CLIENTS)
        self._clients = [
            TurnwireClient(house.gateway_url(), key, ledger, f"client {n}") for n in range(wanted)
        ]
        try:
            report = Report(measure_fsync(house.stack.data_dir), measure_speed())
            warm = [client.next_turn for client in self._clients[:WARM_UP_CLIENTS]]
            await closed_loop(warm, seconds=WARM_UP_S)
            if "rates" in options.only:
                for clients in options.clients:
                    report.levels.append(await self._level(clients))
            if "history" in options.only:
                report.history_ms = await self._history()
            if "hops" in options.only:
                report.hops = await measure_hops(house, self._clients[0])
            report.memory = {name: read_memory(pid) for name, pid in house.pids().items()}
        finally:
            for client in self._clients:
                client.close()
        verdict = await house.verdict()
        verdict.require(one_terminal_per_turn=1, stream_equals_store=3)
        report.checked = dict(verdict.checked)
        return report

    async def _level(self, clients: int) -> Level:
        direct = [ProviderClient(self._house.provider.base_url) for _ in range(clients)]
        asked = await closed_loop([one.next_turn for one in direct], seconds=DIRECT_S)
        for one in direct:
            one.close()
        ours = self._clients[:clients]
        seconds = self._options.seconds
        each = max(1, int(PREPARED_PER_S * seconds / (5 * clients)) + 1)
        await asyncio.gather(*(client.prepare(each) for client in ours))
        pids = self._house.pids()
        before = read_cpu(pids)
        samples = await closed_loop([client.next_turn for client in ours], seconds=seconds)
        after = read_cpu(pids)
        turns = max(1, samples.turns)
        used = {name: s * 1000 / turns for name, s in after.since(before).items()}
        whole = seconds * (os.cpu_count() or 1)
        return Level(clients, asked, samples, used, after.foreign_since(before) / whole)

    async def _history(self) -> dict[int, float]:
        """First token at two lengths of history, asked in turns so that both see one machine."""
        text = _text_of(HISTORY_TOKENS)
        await self._house.provider.control("POST", "/script", {"default": {"deltas": [text]}})
        try:
            short = await self._filled(SHORT_CONVERSATIONS, SHORT_HISTORY, text)
            long = await self._filled(LONG_CONVERSATIONS, LONG_HISTORY, text)
            found: dict[int, list[float]] = {SHORT_HISTORY: [], LONG_HISTORY: []}
            for n in range(HISTORY_SAMPLES):
                for length, conversations in ((SHORT_HISTORY, short), (LONG_HISTORY, long)):
                    conversation = conversations[n % len(conversations)]
                    answer = await self._clients[0].turn(conversation, text, expected=text)
                    found[length].append((answer.first_at - answer.sent_at) * 1000)
        finally:
            await self._house.provider.control("POST", "/script", {"default": {}})
        return {length: percentile(times, 50) for length, times in found.items()}

    async def _filled(self, count: int, messages: int, text: str) -> list[object]:
        async def fill(client: TurnwireClient) -> object:
            conversation = await client.conversation()
            for _ in range(messages // 2):
                await client.turn(conversation, text, expected=text)
            return conversation

        return list(await asyncio.gather(*(fill(client) for client in self._clients[:count])))


def _text_of(wanted: int) -> str:
    """A text of so many tokens in the scripted model's encoding."""
    words = ("the", "ferry", "leaves", "at", "noon", "and", "comes", "back", "when", "calm")
    text = words[0]
    n = 1
    while tokens.count(text, "o200k_base") < wanted:
        text = f"{text} {words[n % len(words)]}"
        n += 1
    return text
