"""The load before scripted gateways: what clients of each habit send, and what they report."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest
from aiohttp import web

from schemas.streams import TERMINAL_ATTEMPT
from tests.chaos import clients
from tests.chaos.caller import STORM, LoadTurn
from tests.chaos.clients import Load
from tests.rig.house import ApiKey
from tests.rig.ledger import Ledger, canary_of

EVENTS = [
    ("1-0", "message.started", '{"attempt": 1}'),
    ("1-1", "content_delta", '{"text": "It "}'),
    ("1-2", "content_delta", '{"text": "is "}'),
    ("1-3", "content_delta", '{"text": "late."}'),
    (f"{TERMINAL_ATTEMPT}-1", "done", '{"status": "completed", "length": 11}'),
]

NUMBER = web.AppKey("number", int)


@dataclass
class Door:
    """Two gateways' worth of scripted HTTP; notes every request."""

    refusals: list[int] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    hidden: bool = False
    posts: list[tuple[int, str, str]] = field(default_factory=list)
    reads: list[tuple[int, str | None]] = field(default_factory=list)
    turns: dict[tuple[str, str], UUID] = field(default_factory=lambda: defaultdict(uuid4))
    ports: list[int] = field(default_factory=list)
    tenants: dict[str, UUID] = field(default_factory=lambda: defaultdict(uuid4))
    ledgers: list[Ledger] = field(default_factory=list)

    # What the load needs of the house

    def gateway_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    async def key(self, tenant: str) -> ApiKey:
        return ApiKey(tenant, uuid4(), self.tenants[tenant], uuid4())

    async def new_ledger(self, tenant: str) -> Ledger:
        self.ledgers.append(Ledger(self.tenants[tenant]))
        return self.ledgers[-1]

    # The gateways

    def app(self, number: int) -> web.Application:
        app = web.Application()
        app[NUMBER] = number
        app.router.add_post("/v1/conversations", self.create)
        app.router.add_post("/v1/conversations/{id}/messages", self.post)
        app.router.add_get("/v1/conversations/{id}/messages", self.messages)
        app.router.add_get("/v1/turns/{id}", self.turn)
        app.router.add_get("/v1/turns/{id}/events", self.events)
        return app

    async def create(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"id": str(uuid4())}, status=201)

    async def post(self, request: web.Request) -> web.StreamResponse:
        key, said = request.headers["Idempotency-Key"], (await request.json())["content"]
        self.posts.append((request.app[NUMBER], key, said))
        if self.refusals:
            return web.json_response({}, status=self.refusals.pop(0), headers={"Retry-After": "0"})
        turn = self.turns[request.match_info["id"], key]
        if "event-stream" in request.headers["Accept"]:
            return await self.stream(request, turn, None)
        return web.json_response({"turn_id": str(turn)}, status=202)

    async def messages(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"data": []})

    async def turn(self, request: web.Request) -> web.StreamResponse:
        if self.hidden:
            return web.json_response({"type": "not-found"}, status=404)
        return web.json_response({"id": request.match_info["id"], "status": "completed"})

    async def events(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID")
        self.reads.append((request.app[NUMBER], last))
        return await self.stream(request, UUID(request.match_info["id"]), last)

    async def stream(
        self, request: web.Request, turn: UUID, last: str | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Location": f"/v1/turns/{turn}"}
        )
        await response.prepare(request)
        start = 0 if last is None else [one[0] for one in EVENTS].index(last) + 1
        cut = self.cut_after.pop(0) if self.cut_after else len(EVENTS)
        for name, event, data in EVENTS[start : start + cut]:
            await response.write(f"id: {name}\nevent: {event}\ndata: {data}\n\n".encode())
        if start + cut < len(EVENTS):
            assert request.transport is not None
            while request.transport.get_write_buffer_size():
                await asyncio.sleep(0.001)
            request.transport.abort()
        return response


@asynccontextmanager
async def serving(door: Door, *, patience_s: float = 20.0) -> AsyncIterator[Load]:
    """A load before two gateways, with one tenant and conversation."""
    runners = []
    try:
        for number in range(2):
            runner = web.AppRunner(door.app(number))
            await runner.setup()
            await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
            door.ports.append(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]
            runners.append(runner)
        load = Load(
            door,
            random.Random(1),
            conversations=1,
            tenants=1,
            rate_per_s=50,
        )
        load.patience_s, load.stare_s = patience_s, (0.01, 0.02)
        async with load:
            await load.prepare()
            yield load
    finally:
        for runner in runners:
            await runner.cleanup()


async def play(load: Load, habit: str, *, seed: int = 0) -> LoadTurn:
    """One turn by one habit, as the schedule plays it."""
    (caller, conversation) = load._places[0]
    dice = random.Random(seed)
    turn = LoadTurn(habit, caller.note(conversation, dice, is_long=False), load.now_s())
    async with asyncio.timeout(20):
        await load._play(caller, turn, dice)
    return turn


@pytest.mark.parametrize("habit", sorted(clients.HABITS))
async def test_every_habit_sees_the_end_of_its_turn(habit: str) -> None:
    door = Door()
    async with serving(door) as load:
        turn = await play(load, habit)
    assert load.complaints == []
    assert (turn.status, turn.post.turn_id) == ("completed", *door.turns.values())
    assert turn.accepted_s is not None
    assert turn.ended_s is not None
    assert {key for _, key, _ in door.posts} == {turn.post.key}
    assert all(canary_of(door.ledgers[0].tenant_id) in said for _, _, said in door.posts)
    if turn.post.stream is not None:
        assert turn.post.stream.text == "It is late."
        assert turn.post.stream.faults() == []


async def test_a_refused_message_is_sent_again_with_its_key_at_the_other_gateway() -> None:
    door = Door(refusals=[503, 429, 500, 409])
    async with serving(door) as load:
        turn = await play(load, "json")
    gateways = [number for number, _, _ in door.posts]
    assert len({key for _, key, _ in door.posts}) == 1
    assert gateways in ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1])
    assert [reply.status for reply in turn.post.replies] == [503, 429, 500, 409, 202]
    posts = [one.ok for one in load.operations if one.kind == "post"]
    assert posts == [False, False, False, True, True]


@pytest.mark.parametrize("habit", ["sse", "resuming", "slow"])
async def test_a_broken_stream_goes_on_at_the_other_gateway_after_its_last_event(
    habit: str,
) -> None:
    door = Door(cut_after=[2, 1])
    async with serving(door) as load:
        turn = await play(load, habit)
    assert turn.post.stream is not None
    assert turn.post.stream.text == "It is late."
    assert turn.post.stream.faults() == []
    assert turn.post.stream.reconnects >= 2
    assert len({number for number, _ in door.reads}) == 2
    lasts = [last for _, last in door.reads if last is not None]
    assert lasts == sorted(lasts)
    assert lasts[0] in ("1-0", "1-1")


async def test_a_storm_sends_one_key_at_once() -> None:
    door = Door()
    async with serving(door) as load:
        turn = await play(load, "storm")
    assert len(door.posts) == STORM
    assert len(turn.post.replies) == STORM
    assert len(door.turns) == 1


async def test_a_duplicate_is_sent_at_once_or_after_a_lost_reply_and_when_all_is_over() -> None:
    counts: Counter[int] = Counter()
    for seed in range(8):
        door = Door()
        async with serving(door) as load:
            turn = await play(load, "duplicate", seed=seed)
        assert {key for _, key, _ in door.posts} == {turn.post.key}
        counts[sum(reply.is_accepted for reply in turn.post.replies)] += 1
        assert len(door.turns) == 1
    assert max(counts) == 3
    assert min(counts) >= 2


async def test_an_accepted_turn_that_is_not_found_is_a_complaint() -> None:
    door = Door(hidden=True)
    async with serving(door) as load:
        turn = await play(load, "json")
    assert turn.ended_s is None
    (complaint,) = load.complaints
    assert "404" in complaint


async def test_a_message_that_is_refused_for_good_is_a_complaint() -> None:
    door = Door(refusals=[422])
    async with serving(door) as load:
        await play(load, "sse")
    (complaint,) = load.complaints
    assert "422" in complaint
    assert load.accepted == 0


async def test_a_turn_without_an_end_is_a_complaint() -> None:
    door = Door(refusals=[503] * 10_000)
    async with serving(door, patience_s=0.5) as load:
        await play(load, "json")
    (complaint,) = load.complaints
    assert "no end" in complaint
    assert load.statuses[503] >= 2


async def test_turns_begin_on_schedule_though_none_has_ended() -> None:
    door = Door(refusals=[503] * 10_000)
    until = asyncio.Event()
    async with serving(door) as load:
        running = asyncio.create_task(load.run(until))
        async with asyncio.timeout(10):
            while len(load.turns) < 40:
                await asyncio.sleep(0.01)
        assert load.accepted == 0
        door.refusals.clear()
        until.set()
        await asyncio.wait_for(running, 30)
    assert load.accepted == load.ended == len(load.turns)
    assert sum(load.habits.values()) == len(load.turns)
    assert load.complaints == []


async def test_a_gateway_that_left_the_rotation_gets_no_request() -> None:
    door = Door()
    async with serving(door) as load:
        door.ports.pop(1)
        for seed in range(4):
            await play(load, "resuming", seed=seed)
    assert {number for number, _, _ in door.posts} == {0}
    assert {number for number, _ in door.reads} == {0}


async def test_the_same_dice_begin_the_same_turns() -> None:
    texts = []
    for _ in range(2):
        door = Door()
        async with serving(door) as load:
            for _ in range(5):
                caller, conversation = load._places[0]
                load._begin(caller, conversation, 0.0)
            texts.append([(turn.habit, turn.post.key) for turn in load.turns])
            await asyncio.gather(*load._open)
    assert texts[0] == texts[1]
