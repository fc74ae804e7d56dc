"""Faults between two parts: bytes late, cut, parted, nobody there, a reply that is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault
from tests.chaos.proxy import Proxy

if TYPE_CHECKING:
    from tests.chaos.house import ChaosHouse

DELAY_MS = (50.0, 200.0)
"""Each way; a transaction of three round trips on the slowest edge then takes over a second."""

DELAYED_S = 6.0
PARTED_S = 12.0
"""Longer than a lease of 8 s: what a worker sends into the hole arrives when it is fenced out."""

REFUSED_S = 4.0
DROPPING_S = 8.0
"""Time for the replies to come by; a busy edge has several a second."""

MOST_REPLIES = 4
WRITERS = ("ingestion", "context_assembly", "llm_gateway")
"""Services that commit something for every turn."""


def used_edges(house: ChaosHouse) -> list[str]:
    """Edges over which anybody has connected; a fault of another would be one in name only."""
    return sorted(name for name, proxy in house.edges.items() if proxy.counters.connections)


def resource(edge: str) -> str:
    """What a fault holds while it has an edge to itself."""
    return f"edge {edge}"


async def take_edge(house: ChaosHouse, dice: random.Random, wanted: Sequence[str]) -> str:
    """Hold one of these edges, one that no other fault has if there is any."""
    free = [name for name in wanted if not house.is_held(resource(name))]
    name = dice.choice(free or list(wanted))
    await house.hold(resource(name))
    return name


@dataclass(slots=True)
class _OnEdge:
    """What all faults of an edge share."""

    kind: str = ""
    duration_s: float = 0.0
    edge: str = ""
    before: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def edges(self, house: ChaosHouse) -> Sequence[str]:
        """Those that may be hit: every one that something goes over."""
        return used_edges(house)

    def strike(self, proxy: Proxy, dice: random.Random) -> None:
        """Switch the fault on."""
        raise NotImplementedError

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Strike one edge, which is held until it is healed."""
        self.edge = await take_edge(house, dice, self.edges(house))
        proxy = house.edges[self.edge]
        self.before = _figures(proxy)
        self.strike(proxy, dice)
        return resource(self.edge)

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Switch everything off; tells what the proxy did meanwhile."""
        proxy = house.edges[self.edge]
        await self.end(proxy)
        house.let_go(resource(self.edge))
        return {name: count - self.before[name] for name, count in _figures(proxy).items()}

    async def end(self, proxy: Proxy) -> None:
        """Switch the fault off."""
        await proxy.restore()


@dataclass(slots=True)
class Delay(_OnEdge):
    """Every piece comes late, by a time that varies."""

    kind: str = "delay"
    duration_s: float = DELAYED_S

    def strike(self, proxy: Proxy, dice: random.Random) -> None:
        """Slow it down."""
        ms = dice.uniform(*DELAY_MS)
        proxy.delay(ms, jitter_ms=ms / 2)


@dataclass(slots=True)
class Cut(_OnEdge):
    """All connections are reset at once; new ones work."""

    kind: str = "cut"

    def strike(self, proxy: Proxy, dice: random.Random) -> None:
        """Reset them."""
        del dice
        proxy.cut()


@dataclass(slots=True)
class Blackhole(_OnEdge):
    """Nothing passes, and nobody is told; what is held arrives late, or in half the cases never."""

    kind: str = "blackhole"
    duration_s: float = PARTED_S
    loses: bool = False

    def strike(self, proxy: Proxy, dice: random.Random) -> None:
        """Part the network."""
        self.loses = dice.random() < 0.5
        proxy.blackhole()

    async def end(self, proxy: Proxy) -> None:
        """Join it again."""
        if self.loses:
            proxy.cut()
        await proxy.restore()


@dataclass(slots=True)
class Refuse(_OnEdge):
    """Nobody is at the part's address."""

    kind: str = "refuse"
    duration_s: float = REFUSED_S

    def strike(self, proxy: Proxy, dice: random.Random) -> None:
        """Close the door."""
        del dice
        proxy.refuse()


@dataclass(slots=True)
class DropCommitReply(_OnEdge):
    """COMMITs take effect and the client's connection dies before it is told."""

    kind: str = "drop_commit_reply"
    duration_s: float = DROPPING_S

    def edges(self, house: ChaosHouse) -> Sequence[str]:
        """Those to Postgres of services that write."""
        wanted = [f"{service}-postgres" for service in WRITERS]
        return [name for name in used_edges(house) if name in wanted]

    def strike(self, proxy: Proxy, dice: random.Random) -> None:
        """The next few are lost."""
        proxy.drop_next_commit_reply(dice.randint(1, MOST_REPLIES))


@dataclass(slots=True)
class DropReply(_OnEdge):
    """A request to Kafka or Redis takes effect and its connection dies before the reply."""

    kind: str = "drop_reply"
    duration_s: float = DROPPING_S

    def edges(self, house: ChaosHouse) -> Sequence[str]:
        """Those to Kafka and Redis."""
        return [name for name in used_edges(house) if name.endswith(("-kafka", "-redis"))]

    def strike(self, proxy: Proxy, dice: random.Random) -> None:
        """The next few are lost."""
        proxy.drop_next_reply(dice.randint(1, MOST_REPLIES))


def _figures(proxy: Proxy) -> dict[str, int]:
    counters = proxy.counters
    return {
        "connections": counters.connections,
        "cut_connections": counters.cuts,
        "dropped_replies": counters.dropped_replies,
    }


FAULTS: Mapping[str, Callable[[random.Random], Fault]] = {
    "delay": lambda _: Delay(),
    "cut": lambda _: Cut(),
    "blackhole": lambda _: Blackhole(),
    "refuse": lambda _: Refuse(),
    "drop_commit_reply": lambda _: DropCommitReply(),
    "drop_reply": lambda _: DropReply(),
}
"""How a fault of each kind is made."""
