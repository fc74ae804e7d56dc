"""Turnwire and the peers in one run, window by window in turns, with the same clients' loop."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self
from uuid import uuid4

import orjson

from deploy.local.ports import pick_port
from deploy.local.waiting import http_status, until_async
from tests.bench.bench_house import SERVICES, STORES, BenchHouse
from tests.bench.driver import (
    EXPECTED,
    TURNS_PER_CONVERSATION,
    ProviderClient,
    Samples,
    Turn,
    TurnwireClient,
    closed_loop,
)
from tests.bench.machine import (
    Fsync,
    Memory,
    measure_fsync,
    measure_speed,
    read_cpu,
    read_memory,
)
from tests.bench.measuring import prepare
from tests.bench.wire import Answer, BadAnswer, Caller

KINDS = ("chat_openai", "httpx")
"""How the peer's node calls the model; see ``server.py``."""

WORKERS = 2
START_BOUND_S = 60.0
END_BOUND_S = 15.0
WARM_UP_S = 10.0
WARM_UP_CLIENTS = 16
IDLE_S = 4.0
DIRECT_S = 2.0
ROUNDS = 2
FIRST_TOKEN = b'data: {"text"'
DONE = b"event: done"


class PeerServer:
    """The peer's web server and its workers, of one kind."""

    def __init__(self, kind: str, python: Path, *, database_url: str, llm_base_url: str) -> None:
        self._python = python
        self._env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PEER_CLIENT": kind,
            "PEER_DATABASE_URL": database_url,
            "PEER_LLM_BASE_URL": llm_base_url,
        }
        self._process: asyncio.subprocess.Process | None = None
        self.port = pick_port()

    async def __aenter__(self) -> Self:
        folder = Path(__file__).parent
        setting_up = await asyncio.create_subprocess_exec(
            self._python, "server.py", cwd=folder, env=self._env
        )
        async with asyncio.timeout(START_BOUND_S):
            assert await setting_up.wait() == 0, "the peer could not make its tables"
        options = ("--factory", "--no-access-log", "--log-level", "warning")
        where = ("--host", "127.0.0.1", "--port", str(self.port), "--workers", str(WORKERS))
        self._process = await asyncio.create_subprocess_exec(
            *(self._python, "-m", "uvicorn", "server:make_app", *options, *where),
            cwd=folder,
            env=self._env,
        )

        async def answers() -> bool:
            return await http_status(self.port, "/healthz") == 200

        if not await until_async(answers, timeout_s=START_BOUND_S):
            await self.__aexit__(None, None, None)
            msg = f"the peer did not answer on port {self.port} within {START_BOUND_S:.0f} s"
            raise RuntimeError(msg)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            async with asyncio.timeout(END_BOUND_S):
                await self._process.wait()

    @property
    def pid(self) -> int:
        """Of the process whose children are the workers."""
        assert self._process is not None
        return self._process.pid


class PeerClient:
    """One client; it takes a fresh thread as often as Turnwire's takes a fresh conversation."""

    def __init__(self, port: int, name: str) -> None:
        self._caller = Caller("127.0.0.1", port, {})
        self._name = name
        self._asked = 0
        self._thread = ""

    async def next_turn(self) -> Answer:
        """Ask, read the answer to its end, and verify it."""
        if self._asked % TURNS_PER_CONVERSATION == 0:
            self._thread = uuid4().hex
        self._asked += 1
        said = f"Question {self._asked} of {self._name}: when does the next ferry leave?"
        answer = await self._caller.post(
            f"/threads/{self._thread}/messages",
            {"content": said},
            headers="Accept: text/event-stream\r\n",
            mark=FIRST_TOKEN,
        )
        events = answer.body.split(b"\n\n")
        text = "".join(
            orjson.loads(event[6:])["text"] for event in events if event.startswith(FIRST_TOKEN)
        )
        if answer.status != 200 or text != EXPECTED or not answer.body.rfind(DONE) > 0:
            raise BadAnswer(f"the peer answered {answer.status} {text!r}")
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._caller.close()


@dataclass(slots=True)
class Side:
    """All windows of one side at one number of clients.

    Attributes:
        cpu_s: CPU seconds by process.
    """

    samples: Samples = field(default_factory=Samples)
    cpu_s: dict[str, float] = field(default_factory=dict)

    def add(self, window: Samples, used: Mapping[str, float]) -> None:
        """One more window."""
        self.samples.seconds += window.seconds
        self.samples.turns += window.turns
        self.samples.first_ms += window.first_ms
        self.samples.whole_ms += window.whole_ms
        for name, seconds in used.items():
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + seconds

    def cpu_ms(self, *names: str) -> float:
        """Milliseconds of CPU a turn."""
        used = sum(self.cpu_s[name] for name in names)
        return used * 1000 / max(1, self.samples.turns)


@dataclass(frozen=True, slots=True)
class Level:
    """All of them at one number of clients.

    Attributes:
        peers: By kind.
        idle_postgres: Of one core, what Postgres used while nobody asked anything.
    """

    clients: int
    turnwire: Side
    peers: Mapping[str, Side]
    provider: Samples
    idle_postgres: float

    @property
    def turnwire_cpu_ms(self) -> float:
        """Of all services and all stores."""
        return self.turnwire.cpu_ms(*SERVICES, *STORES)

    def peer_cpu_ms(self, kind: str) -> float:
        """Of its workers, and what Postgres did for them beyond its idling."""
        side = self.peers[kind]
        idle_ms = self.idle_postgres * side.samples.seconds * 1000 / max(1, side.samples.turns)
        return side.cpu_ms(kind) + max(0.0, side.cpu_ms("postgres") - idle_ms)


@dataclass(slots=True)
class Comparison:
    """Everything one run found."""

    fsync: Fsync
    speed_ms: float
    levels: list[Level] = field(default_factory=list)
    memory: dict[str, Memory] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)


async def compare(
    house: BenchHouse, python: Path, *, clients: Sequence[int], seconds: float
) -> Comparison:
    """Warm all up, then measure them in turns."""
    found = Comparison(measure_fsync(house.stack.data_dir), measure_speed())
    async with AsyncExitStack() as stack:
        peers: dict[str, PeerServer] = {}
        for kind in KINDS:
            await house.stack.postgres.create_database(f"peer_{kind}")
            peers[kind] = await stack.enter_async_context(
                PeerServer(
                    kind,
                    python,
                    database_url=house.stack.postgres.database_url(f"peer_{kind}"),
                    llm_base_url=house.provider.base_url,
                )
            )
        key, ledger = await house.ledger()
        most = max(*clients, WARM_UP_CLIENTS)
        ours = [TurnwireClient(house.gateway_url(), key, ledger, f"c{n}") for n in range(most)]
        theirs = {
            kind: [PeerClient(peer.port, f"c{n}") for n in range(most)]
            for kind, peer in peers.items()
        }
        pids = {**house.pids(), **{kind: peer.pid for kind, peer in peers.items()}}
        rivals = _Rivals(house, pids, ours, theirs)
        try:
            await rivals.warm_up()
            for count in clients:
                found.levels.append(await rivals.measure(count, seconds))
            found.memory = {name: read_memory(pid) for name, pid in pids.items()}
        finally:
            rivals.close()
    verdict = await house.verdict()
    verdict.require(one_terminal_per_turn=1, stream_equals_store=3)
    found.checked = dict(verdict.checked)
    return found


class _Rivals:
    """The clients of all sides."""

    def __init__(
        self,
        house: BenchHouse,
        pids: Mapping[str, int],
        ours: Sequence[TurnwireClient],
        theirs: Mapping[str, Sequence[PeerClient]],
    ) -> None:
        self._house = house
        self._pids = pids
        self._ours = ours
        self._theirs = theirs

    async def warm_up(self) -> None:
        """Ask all sides for a while, one after the other."""
        for turns in (self._turns("", WARM_UP_CLIENTS), *self._peers_turns(WARM_UP_CLIENTS)):
            await closed_loop(turns, seconds=WARM_UP_S)

    async def measure(self, clients: int, seconds: float) -> Level:
        """Windows of all sides in turns."""
        direct = [ProviderClient(self._house.provider.base_url) for _ in range(clients)]
        provider = await closed_loop([one.next_turn for one in direct], seconds=DIRECT_S)
        for one in direct:
            one.close()
        idle_postgres = await self._idle_postgres()
        turnwire, peers = Side(), {kind: Side() for kind in self._theirs}
        for _ in range(ROUNDS):
            await prepare(self._ours[:clients], seconds)
            await self._window(self._turns("", clients), turnwire, seconds)
            for kind, side in peers.items():
                await self._window(self._turns(kind, clients), side, seconds)
        return Level(clients, turnwire, peers, provider, idle_postgres)

    def close(self) -> None:
        """Close all connections."""
        for mine in self._ours:
            mine.close()
        for clients in self._theirs.values():
            for other in clients:
                other.close()

    def _turns(self, kind: str, clients: int) -> Sequence[Turn]:
        if kind:
            return [client.next_turn for client in self._theirs[kind][:clients]]
        return [client.next_turn for client in self._ours[:clients]]

    def _peers_turns(self, clients: int) -> Sequence[Sequence[Turn]]:
        return [self._turns(kind, clients) for kind in self._theirs]

    async def _idle_postgres(self) -> float:
        """What Postgres uses while nobody asks, of one core."""
        began, before = perf_counter(), read_cpu(self._pids)
        while perf_counter() - began < IDLE_S:
            await asyncio.sleep(IDLE_S / 4)
        return read_cpu(self._pids).since(before)["postgres"] / (perf_counter() - began)

    async def _window(self, turns: Sequence[Turn], side: Side, seconds: float) -> None:
        before = read_cpu(self._pids)
        window = await closed_loop(turns, seconds=seconds)
        side.add(window, read_cpu(self._pids).since(before))
