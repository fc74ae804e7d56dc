"""The load of a chaos run: open-loop clients of several habits, all of which keep a ledger."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self
from uuid import UUID

import aiohttp

from tests.chaos import changing
from tests.chaos.caller import (
    AT_LENGTH,
    NARROW_BYTES,
    RETRIED,
    UNHURRIED,
    Caller,
    Complaint,
    LoadTurn,
    narrow_socket,
)
from tests.rig.deletions import look_again
from tests.rig.house import ApiKey
from tests.rig.ledger import Act, Ledger

HABITS: Mapping[str, int] = {
    "json": 27,
    "sse": 21,
    "resuming": 16,
    "slow": 8,
    "dead": 4,
    "duplicate": 10,
    "storm": 2,
    **changing.HABITS,
}
"""What a client does with its turn, in parts of a hundred.

``json`` posts and polls; ``sse`` posts and reads the stream in the same response; ``resuming`` cuts
its stream and goes on at another gateway; ``slow`` reads through a narrow socket, with pauses;
``dead`` opens the stream and reads nothing before it comes back; ``duplicate`` sends twice at once
or after a lost reply; ``storm`` sends one key ``STORM`` times at once; the rest is told of in
``tests.chaos.changing``.
"""

MANNERS: Mapping[str, str] = {
    **dict.fromkeys(("slow", "dead"), AT_LENGTH),
    **dict.fromkeys(changing.UNHURRIED_HABITS, UNHURRIED),
}
"""How clients of some habits ask to be answered."""

PATIENCE_S = 180.0
"""From the moment a turn is due to its end as the client sees it; a longer one is a complaint."""

STARE_S = (3.0, 40.0)
"""How long a dead reader looks on; the gateway throws one out after 30 s."""

MAX_OPEN = 3_000
"""Turns that may be open at once; the fastest schedule reaches it only if nothing ends."""

MAKING_AT_ONCE = 16
LOOKING_S = 30.0
"""Looking for all that was deleted in a long run would take minutes; then a part has to do."""


class Premises(Protocol):
    """What the load needs of the house."""

    def gateway_urls(self) -> Sequence[str]:
        """Gateways that a balancer would send a request to now; asked for each request."""
        ...

    async def key(self, tenant: str) -> ApiKey:
        """The tenant's API key."""
        ...

    async def new_ledger(self, tenant: str) -> Ledger:
        """A ledger that the verdict will read."""
        ...


class Operation(NamedTuple):
    """One request, one try. Seconds since the run's start; ``ok`` means a proper answer."""

    started_s: float
    ended_s: float
    ok: bool
    kind: str


class Load:
    """Clients of many tenants; turns begin on a schedule, not when the last has ended.

    Attributes:
        operations: Every request that was tried.
        turns: Every turn that was begun.
        complaints: What no client should ever be told, or was never told at all.
        statuses: Answers by HTTP status; 0 is a broken connection.
        patience_s: See ``PATIENCE_S``; what is set counts for turns that begin later.
        stare_s: Shortest and longest look of a dead reader; see ``STARE_S``.
        pace: What the moments are multiplied with at which something is done to a turn.
    """

    def __init__(
        self,
        premises: Premises,
        dice: random.Random,
        *,
        conversations: int = 200,
        tenants: int = 20,
        rate_per_s: float,
        zero_s: float | None = None,
    ) -> None:
        self._premises = premises
        self._dice = dice
        self._conversations = conversations
        self._tenants = tenants
        self._rate_per_s = rate_per_s
        self.patience_s = PATIENCE_S
        self.stare_s = STARE_S
        self.pace = 1.0
        self._zero_s = time.monotonic() if zero_s is None else zero_s
        self._http: aiohttp.ClientSession | None = None
        self._narrow: aiohttp.ClientSession | None = None
        self._places: list[tuple[Caller, UUID]] = []
        self._callers: list[Caller] = []
        self._open: set[asyncio.Task[None]] = set()
        self._broken: list[BaseException] = []
        self._until = asyncio.Event()
        self.operations: list[Operation] = []
        self.turns: list[LoadTurn] = []
        self.complaints: list[str] = []
        self.statuses: Counter[int] = Counter()

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._narrow = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, socket_factory=narrow_socket),
            read_bufsize=NARROW_BYTES // 4,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        for session in (self._http, self._narrow):
            if session is not None:
                await session.close()

    def now_s(self) -> float:
        """Seconds since the run's start."""
        return time.monotonic() - self._zero_s

    @property
    def accepted(self) -> int:
        """Turns that were promised to be durable."""
        return sum(1 for turn in self.turns if turn.accepted_s is not None)

    @property
    def ended(self) -> int:
        """Turns whose end was seen by their client."""
        return sum(1 for turn in self.turns if turn.ended_s is not None)

    @property
    def habits(self) -> Counter[str]:
        """Turns by habit of their client."""
        return Counter(turn.habit for turn in self.turns)

    @property
    def acts(self) -> list[Act]:
        """What clients did to turns, messages and conversations."""
        return [act for caller in self._callers for act in caller.ledger.acts]

    @property
    def changes(self) -> Counter[str]:
        """What clients changed, by kind and by policy; see ``changing.changes_in``."""
        return changing.changes_in(caller.ledger for caller in self._callers)

    async def prepare(self) -> None:
        """Make keys and conversations; everything is well when this runs."""
        for number in range(self._tenants):
            tenant = f"tenant-{number:02}"
            key = await self._premises.key(tenant)
            self._callers.append(Caller(self, key, await self._premises.new_ledger(tenant)))
        gate, seed = asyncio.Semaphore(MAKING_AT_ONCE), self._dice.random()

        async def one(number: int) -> None:
            caller = self._callers[number % self._tenants]
            async with gate, asyncio.timeout(self.patience_s):
                dice = random.Random(f"{seed} {number}")
                self._places.append((caller, await caller.conversation(dice)))

        await asyncio.gather(*(one(number) for number in range(self._conversations)))

    async def run(self, until: asyncio.Event) -> None:
        """Begin turns on schedule until the event is set, then wait for the end of all of them.

        Raises:
            AssertionError: Of a client that is broken itself.
        """
        order: list[tuple[Caller, UUID]] = []
        due_s, self._until = self.now_s(), until
        while True:
            due_s += self._dice.expovariate(self._rate_per_s)
            try:
                async with asyncio.timeout(max(0.0, due_s - self.now_s())):
                    await until.wait()
                break
            except TimeoutError:
                pass
            if len(self._open) >= MAX_OPEN:
                self.complaints.append(f"{MAX_OPEN} turns were open at {due_s:.1f} s: one left out")
                continue
            if not order:
                order = self._dice.sample(self._places, len(self._places))
            self._begin(*order.pop(), due_s)
        await asyncio.gather(*self._open, return_exceptions=True)
        if self._broken:
            raise self._broken[0]

    def _begin(self, caller: Caller, conversation: UUID, due_s: float) -> None:
        dice = random.Random(self._dice.random())
        (habit,) = dice.choices(list(HABITS), list(HABITS.values()))
        manner = MANNERS.get(habit, "")
        if habit == "cancelling" and dice.random() < 0.5:
            manner = UNHURRIED
        post = caller.note(conversation, dice, manner=manner)
        turn = LoadTurn(habit, post, due_s)
        self.turns.append(turn)
        task = asyncio.create_task(self._play(caller, turn, dice))
        self._open.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken.append(error)

    async def _play(self, caller: Caller, turn: LoadTurn, dice: random.Random) -> None:
        try:
            async with asyncio.timeout(self.patience_s):
                if turn.habit in changing.HABITS:
                    await changing.Changes(caller, self).play(turn, dice)
                else:
                    await caller.play(turn, dice)
        except TimeoutError:
            name = turn.post.turn_id or f"key {turn.post.key}"
            self.complaints.append(
                f"{turn.habit} turn {name} of conversation {turn.post.conversation_id} due at "
                f"{turn.due_s:.1f} s had no end after {self.patience_s:g} s"
            )
            return
        except Complaint as complaint:
            self.complaints.append(f"{turn.habit} turn {turn.post.turn_id}: {complaint}")
            return
        if dice.random() < 0.1:
            stranger = dice.choice([one for one in self._callers if one is not caller] or [caller])
            await self._peep(stranger, caller, turn)

    async def look_again(self) -> None:
        """Look, once all is done, whether anything shows that clients have deleted."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOKING_S):
                looking = (look_again(caller.ask, caller.ledger) for caller in self._callers)
                await asyncio.gather(*looking)

    async def _peep(self, stranger: Caller, owner: Caller, turn: LoadTurn) -> None:
        """What another tenant is told of a turn must be that there is none."""
        if stranger is owner:
            return
        reply = await stranger.request("GET", f"/v1/turns/{turn.post.turn_id}", kind="peep")
        if reply.status not in RETRIED and reply.status != 404:
            self.complaints.append(
                f"turn {turn.post.turn_id} was shown to a stranger: {reply.status}"
            )

    # For the callers

    def note(self, started_s: float, *, ok: bool, kind: str) -> None:
        """Count one try."""
        self.operations.append(Operation(started_s, self.now_s(), ok, kind))

    def url(self, place: int) -> str:
        """The gateway at that place of the list of this moment."""
        urls = self._premises.gateway_urls()
        return urls[place % len(urls)]

    def session(self, *, narrow: bool = False) -> aiohttp.ClientSession:
        """Connections for ordinary readers, or narrow ones."""
        session = self._narrow if narrow else self._http
        assert session is not None, "the load has not been entered"
        return session

    async def stare(self, for_s: float) -> None:
        """Do nothing for a while; when no more turns are begun, nobody needs to."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._until.wait()
