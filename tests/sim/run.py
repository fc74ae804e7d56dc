"""One seed: start the house, let clients and faults loose on it, heal, come to rest, check."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from libs import api_keys
from tests.rig.checker import Evidence, Verdict, check_on
from tests.rig.evidence import INNER_TOPICS
from tests.rig.ledger import Post, canary_of
from tests.sim.changing import Changes
from tests.sim.checks import check_cancels, check_recovery
from tests.sim.client import SimClient
from tests.sim.clockwork import NothingWillHappen, RoundInCircles, VirtualLoop
from tests.sim.faults import Fault, changes
from tests.sim.house import SERVICES, SimHouse, catalogue
from tests.sim.operating import Operator
from tests.sim.planting import plant
from tests.sim.postgres import Store
from tests.sim.process import Process
from tests.sim.world import RunAway, World

MAX_TURNS = 6
CLIENTS_WITHIN_S = 240.0
"""Virtual seconds in which every client must have got everything that it asked for."""

HEALED_AFTER_S = 90.0
"""Virtual seconds after which no fault strikes any more."""

REST_WITHIN_S = 90.0
"""Virtual seconds from the heal to rest."""

LOOK_S = 0.5

AT_REST = """
select (select count(*) from ingestion.open_turns) + (select count(*) from ingestion.outbox)
     + (select count(*) from context_assembly.outbox) + (select count(*) from llm_gateway.outbox)
     + (select count(*) from llm_gateway.work where state in ('ready', 'running'))
     + (select count(*) from ingestion.conversations where purge_at is not null)
     + (select count(*) from context_assembly.steps s join ingestion.purged_conversations p
               on p.tenant_id = s.tenant_id and p.conversation_id = s.conversation_id) as n
"""
CAME_OF_IT = """
select (select count(*) from ingestion.purged_conversations) as purge,
       count(*) filter (where is_trimmed) as trim,
       count(*) filter (where is_trimmed and before = ceiling) as trim_section,
       count(*) filter (where is_instructed) as instructed_plan
  from (select (p.plan #>> '{history,trimmed}')::int > 0 as is_trimmed,
               (h ->> 'before')::int as before, (h ->> 'ceiling')::int as ceiling,
               json_array_length(p.plan -> 'instructions') > 0 as is_instructed
          from context_assembly.plans p,
               json_array_elements(p.plan #> '{budget,sections}') h
         where h ->> 'section' = 'history') plans
"""

CREATE_KEY = "select * from frontend_gateway.op_create_key(%s, %s, %s, %s, %s, %s, %s, %s, %s)"


@dataclass(slots=True)
class Result:
    """What one run came to."""

    seed: int
    faults: tuple[Fault, ...]
    trace: str = ""
    broken: list[str] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    uses: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    steps: int = 0
    lines: list[str] = field(default_factory=list)


def run(seed: int, faults: Sequence[Fault], store: Store, *, tell: bool = False) -> Result:
    """Play one seed with exactly these faults.

    Args:
        tell: Keep every line of the trace.
    """
    result = Result(seed, tuple(faults))
    world = World(seed, faults)
    if tell:
        world.lines = result.lines
    random.seed(f"product {seed}")
    loop = VirtualLoop(random.Random(f"order {seed}"))
    asyncio.set_event_loop(loop)
    began_s = loop.time()
    try:
        store.begin_run(loop.time, world.note)
        changing = Changes(world, random.Random(f"changes {seed}")) if changes(seed) else None
        loop.run_until_complete(_play(world, store, result, changing))
    except (NothingWillHappen, RoundInCircles, RunAway) as error:
        result.broken.append(f"comes_to_rest: {type(error).__name__}")
    finally:
        result.trace = world.trace_hash
        result.hits, result.uses, result.steps = world.hits, world.uses, world.steps
        result.struck = world.struck
        result.virtual_s = loop.time() - began_s
        _close(loop, world)
    return result


def _close(loop: VirtualLoop, world: World) -> None:
    loop.callbacks = 0  # the end is counted anew
    loop.run_until_complete(_kill_all(loop, world))
    asyncio.set_event_loop(None)
    loop.close()


async def _kill_all(loop: VirtualLoop, world: World) -> None:
    """Kill every process, and let what was cancelled come to its end."""
    world.lines = None
    for process in tuple(world.processes):
        process.is_paused = False
        loop.go_on(process)
        process.kill()
    left = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CLIENTS_WITHIN_S)


class Play:
    """The clients of one run, and what they do.

    Attributes:
        changing: What they do beside talking; None where they only talk.
    """

    def __init__(self, world: World, store: Store, changing: Changes | None) -> None:
        self.world = world
        self.changing = changing
        self.store = store
        self.script = random.Random(f"script {world.random.random()}")
        self.house = SimHouse(world, store, is_hasty=changing is not None)
        self.clients: list[SimClient] = []
        self.operator = None
        if changing is not None:
            dice = random.Random(f"operating {world.seed}")
            self.operator = Operator(world, store, dice, self.clients)
        self.failures: list[str] = []
        self.planted = 0
        self._number = 0

    def open_doors(self) -> None:
        """One to three clients of one or two tenants, each with a key of its own."""
        tenants = self.script.randint(1, 2)
        for number in range(self.script.randint(1, 3)):
            self.clients.append(self._client(f"tenant{number % tenants}", f"principal{number}"))

    def _client(self, tenant: str, principal: str) -> SimClient:
        key = api_keys.new_api_key(self.world.random_bytes(api_keys.SECRET_BYTES))
        values = [
            self._id(),
            tenant,
            self._id(),
            principal,
            self._id(),
            ["chat", "read"] if self.changing is None else ["chat", "read", "admin"],
            api_keys.visible_prefix(key),
            api_keys.hash_api_key(key),
            "simulation",
        ]
        (row,) = self.store.at_present().execute(CREATE_KEY, values).fetchall()
        return SimClient(self.house, key=key, tenant_id=row["tenant_id"])

    def _id(self) -> UUID:
        return UUID(bytes=self.world.random_bytes(16), version=4)

    async def talk(self, client: SimClient, turns: int) -> None:
        """One client's whole conversation; what it could not get is a failure of the run."""
        try:
            async with asyncio.timeout(CLIENTS_WITHIN_S):
                conversation = await client.conversation()
                say = partial(self._text, client)
                tenant = client.ledger.tenant_id
                self.planted += plant(self.store.at_present(), conversation, tenant, self.script)
                while turns:
                    at_once = min(turns, self.script.choice((1, 1, 1, 2, 3)))
                    turns -= at_once
                    async with asyncio.TaskGroup() as group:
                        for _ in range(at_once):
                            group.create_task(self._say(client, conversation))
                        if self.changing is not None:
                            group.create_task(self.changing.change(client, conversation, say))
                if self.changing is not None:
                    await self.changing.leave(client, conversation, say)
        except* (AssertionError, TimeoutError) as errors:
            told = "; ".join(f"{type(one).__name__} {one}" for one in errors.exceptions)
            self.failures.append(f"no_accepted_turn_lost: a client gave up: {told}")

    def _text(self, client: SimClient) -> str:
        self._number += 1
        canary = canary_of(client.ledger.tenant_id)
        return f"{canary} {self._number} {self.script.random()}"

    async def _say(self, client: SimClient, conversation: UUID) -> None:
        post = client.note(conversation, self._text(client))
        if self.changing is not None:
            post.policy, post.model = self.changing.policy(), self.changing.model()
        await asyncio.sleep(self.script.uniform(0, 1.5))
        if self.script.random() < 0.2:
            self.world.use("client", "duplicate")
            await asyncio.gather(client.send(post), client.send(post))
        else:
            await client.send(post)
        await self._peep(client, post)
        leaves_after = self.script.randint(1, 6) if self.script.random() < 0.4 else None
        if leaves_after is not None:
            self.world.use("client", "disconnect")
        if self.changing is not None:
            await self.changing.follow(client, post, leaves_after)
        else:
            await client.follow(post, leaves_after=leaves_after)

    async def _peep(self, owner: SimClient, post: Post) -> None:
        """Somebody of another tenant tries to read the turn."""
        others = [one for one in self.clients if one.ledger.tenant_id != owner.ledger.tenant_id]
        if not others or post.turn_id is None or self.script.random() > 0.3:
            return
        self.world.use("client", "foreign_read")
        if await self.script.choice(others).may_see(post.turn_id):
            self.failures.append(f"tenant_isolation: turn {post.turn_id} is shown to a stranger")

    async def go(self) -> None:
        """Start everything, and wait until every client has what it asked for."""
        self.house.start({service: self.script.randint(1, 2) for service in SERVICES})
        tasks: list[asyncio.Task[Any]] = []
        turns = self.script.randint(len(self.clients), MAX_TURNS)
        for number, client in enumerate(self.clients):
            share = turns // len(self.clients) + (number < turns % len(self.clients))
            process = Process(f"client.{number}", "client", self.world)
            tasks.append(process.spawn(self.talk(client, share)))
        if self.operator is not None:
            operating = Process("operator.0", "operator", self.world)
            tasks.append(operating.spawn(self.operator.work()))
        self.world.later(HEALED_AFTER_S, self.house.heal)
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        self.house.heal()

    def verdict(self) -> Verdict:
        """Everything that anybody saw, compared."""
        house = self.house
        evidence = Evidence(
            topics={topic: house.broker.told.get(topic, []) for topic in INNER_TOPICS},
            streams={turn: stream.entries for turn, stream in house.redis._streams.items()},
            prompts=house.provider.prompts,
            open_calls=house.provider.open,
            catalogue=catalogue(),
            overlap_s=0.0,
        )
        ledgers = [client.ledger for client in self.clients]
        connection = self.store.at_present()
        verdict = check_on(connection, ledgers, evidence=evidence)
        # What strikes an operator's command delays nobody's turn.
        strikes = [strike for strike in self.world.strikes if strike[1].port != "operating"]
        check_recovery(connection, house.deaths, strikes, verdict)
        acts = [act for ledger in ledgers for act in ledger.acts]
        check_cancels(connection, acts, strikes, verdict)
        return verdict

    async def come_to_rest(self) -> None:
        """Wait until nothing is open any more."""
        loop = asyncio.get_running_loop()
        until = loop.time() + REST_WITHIN_S
        while self.store.rows(AT_REST)[0]["n"] or self.house.provider.open:
            if loop.time() >= until:
                return  # the checker says what is left
            await asyncio.sleep(LOOK_S)


async def _play(world: World, store: Store, result: Result, changing: Changes | None) -> None:
    play = Play(world, store, changing)
    play.open_doors()
    await play.go()
    await play.come_to_rest()
    for client in play.clients:
        await client.look_again()
    verdict = play.verdict()
    result.broken = play.failures + verdict.broken
    result.checked = verdict.checked
    if changing is not None:
        (came,) = play.store.rows(CAME_OF_IT)
        world.hits.update({f"house/{kind}": int(count) for kind, count in came.items()})
    for row in play.store.rows(
        "select status, count(*) as n from ingestion.turns where request_id <> id group by 1"
    ):
        result.ends[row["status"]] = row["n"]
