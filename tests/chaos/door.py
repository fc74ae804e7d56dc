"""Two gateways' worth of scripted HTTP, for tests of what clients send and report."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from aiohttp import web

from libs.ids import message_id
from schemas.streams import TERMINAL_ATTEMPT
from tests.chaos.caller import LoadTurn
from tests.chaos.clients import Load
from tests.rig.house import ApiKey
from tests.rig.ledger import Ledger

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
    """Two gateways' worth of scripted HTTP; notes every request.

    Attributes:
        pace_s: Between two events of a stream.
        hides_nothing: What was deleted is shown all the same.
        answers: By policy, kind of post or act: status and body of the next answers.
        asked: Method, path and body of everything but plain messages and reads.
    """

    refusals: list[int] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    hidden: bool = False
    hides_nothing: bool = False
    pace_s: float = 0.0
    answers: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    ended: set[UUID] = field(default_factory=set)
    cancelled: set[UUID] = field(default_factory=set)
    deleted: set[UUID] = field(default_factory=set)
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
        app.router.add_patch("/v1/conversations/{id}/messages/{message}", self.post)
        app.router.add_delete("/v1/conversations/{id}/messages/{target}", self.delete)
        app.router.add_delete("/v1/conversations/{target}", self.delete)
        app.router.add_get("/v1/conversations/{id}", self.conversation)
        app.router.add_post("/v1/conversations/{id}/restore", self.restore)
        app.router.add_post("/v1/turns/{id}/cancel", self.cancel)
        app.router.add_post("/v1/turns/{id}/{kind:regenerate|continue}", self.post)
        app.router.add_get("/v1/turns/{id}", self.turn)
        app.router.add_get("/v1/turns/{id}/events", self.events)
        return app

    async def create(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"id": str(uuid4())}, status=201)

    async def post(self, request: web.Request) -> web.StreamResponse:
        key, body = request.headers["Idempotency-Key"], await request.json()
        self.posts.append((request.app[NUMBER], key, body.get("content", "")))
        kind = request.match_info.get("kind", "edit" if request.method == "PATCH" else "message")
        if kind != "message" or "policy" in body:
            self.asked.append((request.method, request.path, body))
        if self.refusals:
            return web.json_response({}, status=self.refusals.pop(0), headers={"Retry-After": "0"})
        if (scripted := self.scripted(body.get("policy", kind))) is not None:
            return scripted
        turn = self.turns[request.match_info["id"], key]
        if "event-stream" in request.headers["Accept"]:
            return await self.stream(request, turn, None)
        return web.json_response({"turn_id": str(turn)}, status=202)

    def scripted(self, wish: str) -> web.Response | None:
        """The next answer that a test wants to what a client wishes."""
        if not self.answers.get(wish):
            return None
        status, body = self.answers[wish].pop(0)
        return web.json_response(body, status=status, headers={"Retry-After": "0"})

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        turn = UUID(request.match_info["id"])
        self.asked.append((request.method, request.path, {}))
        if (scripted := self.scripted("cancel")) is not None:
            return scripted
        if turn in self.ended:
            return web.json_response(problem("turn-already-terminal"), status=409)
        self.cancelled.add(turn)
        return web.json_response({}, status=202)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        target = UUID(request.match_info["target"])
        self.asked.append((request.method, request.path, {}))
        if (scripted := self.scripted("delete")) is not None:
            return scripted
        self.deleted.add(target)
        return web.Response(status=204)

    async def restore(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path, {}))
        self.deleted.discard(UUID(request.match_info["id"]))
        return web.json_response({})

    async def conversation(self, request: web.Request) -> web.StreamResponse:
        is_gone = UUID(request.match_info["id"]) in self.deleted and not self.hides_nothing
        return web.json_response({}, status=404 if is_gone else 200)

    async def messages(self, _: web.Request) -> web.StreamResponse:
        shown = sorted(self.deleted) if self.hides_nothing else []
        return web.json_response({"data": [{"id": str(one)} for one in shown]})

    async def turn(self, request: web.Request) -> web.StreamResponse:
        if self.hidden:
            return web.json_response({"type": "not-found"}, status=404)
        status = self.status_of(UUID(request.match_info["id"]))
        return web.json_response({"id": request.match_info["id"], "status": status})

    def status_of(self, turn: UUID) -> str:
        """How a turn has ended."""
        return "cancelled" if turn in self.cancelled else "completed"

    async def events(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID")
        self.reads.append((request.app[NUMBER], last))
        return await self.stream(request, UUID(request.match_info["id"]), last)

    def is_gone(self, turn: UUID) -> bool:
        """Whether the answer of a turn, or its conversation, is deleted."""
        conversations = {UUID(one) for (one, _), known in self.turns.items() if known == turn}
        is_deleted = {message_id(turn, "assistant"), *conversations} & self.deleted
        return bool(is_deleted) and not self.hides_nothing

    async def stream(
        self, request: web.Request, turn: UUID, last: str | None
    ) -> web.StreamResponse:
        if self.is_gone(turn) or request.method == "HEAD":
            status = 410 if self.is_gone(turn) else 200
            return web.json_response(problem("not-found"), status=status)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Location": f"/v1/turns/{turn}"}
        )
        await response.prepare(request)
        start = 0 if last is None else [one[0] for one in EVENTS].index(last) + 1
        cut = self.cut_after.pop(0) if self.cut_after else len(EVENTS)
        for name, event, text in EVENTS[start : start + cut]:
            data = text
            if turn in self.cancelled and event != "done":
                continue
            if event == "done":
                self.ended.add(turn)
                data = text.replace("completed", self.status_of(turn))
            await asyncio.sleep(self.pace_s)
            await response.write(f"id: {name}\nevent: {event}\ndata: {data}\n\n".encode())
        if start + cut < len(EVENTS):
            assert request.transport is not None
            while request.transport.get_write_buffer_size():
                await asyncio.sleep(0.001)
            request.transport.abort()
        return response


def problem(slug: str, **more: str) -> dict[str, Any]:
    """A problem document as gateways write it."""
    return {"type": f"http://127.0.0.1/problems/{slug}", "detail": "scripted", **more}


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
        load.patience_s, load.stare_s, load.pace = patience_s, (0.01, 0.02), 0.1
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
    turn = LoadTurn(habit, caller.note(conversation, dice), load.now_s())
    async with asyncio.timeout(20):
        await load._play(caller, turn, dice)
    return turn
