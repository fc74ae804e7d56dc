"""Wires the gateway from the parts it is given."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from libs.catalogue import Catalogue
from libs.clock import Clock
from libs.errors import StoreUnavailable
from libs.kafka.publisher import Publisher
from libs.telemetry.metrics import Metrics
from libs.telemetry.ops_server import OK, Check, CheckResult
from libs.telemetry.tracing import Tracing
from services.frontend_gateway.door import Door
from services.frontend_gateway.http.changes import (
    CANCEL,
    CONTINUE,
    MESSAGE,
    REGENERATE,
    ChangeRoutes,
)
from services.frontend_gateway.http.context import Context, SettingsPolicy
from services.frontend_gateway.http.conversations import (
    CONVERSATION,
    POST_MESSAGE,
    RESTORE,
    ConversationRoutes,
    PostMessage,
)
from services.frontend_gateway.http.docs import Docs
from services.frontend_gateway.http.edge import EXCEPTION_HANDLERS, Edge
from services.frontend_gateway.http.evidence import EvidenceRoutes
from services.frontend_gateway.http.operating import CaptureRoutes, InstructionRoutes
from services.frontend_gateway.http.operators import OperatorRoutes
from services.frontend_gateway.http.rights import Doorkeeper
from services.frontend_gateway.http.story import StoryRoutes, TurnPage
from services.frontend_gateway.http.streams import TurnEvents
from services.frontend_gateway.http.turns import TurnRoutes
from services.frontend_gateway.http.ui import Pages
from services.frontend_gateway.http.watching import ConversationEvents
from services.frontend_gateway.hub import Bell, Hub, LiveRead, Pace
from services.frontend_gateway.operators import Operators
from services.frontend_gateway.outcomes import OutcomeDesk
from services.frontend_gateway.ports import Proof, Store
from services.frontend_gateway.settings import GatewaySettings
from services.frontend_gateway.watching import Watchers

PURGE_EVERY_S = 600.0  # ended browser sessions cost nothing but room
NO_ROUTE = "none"


@dataclass(frozen=True, slots=True)
class Adapters:
    """The outside world."""

    store: Store
    publisher: Publisher
    live: LiveRead
    bell: Bell
    clock: Clock
    metrics: Metrics
    tracing: Tracing
    operators: Operators
    random_bytes: Callable[[int], bytes] = os.urandom
    pace: Pace = field(default_factory=Pace)


class Gateway:
    """The gateway as an ASGI application, with what keeps it running.

    Attributes:
        asgi: The application; its life cycle starts and ends the background work.
        hub: All streams of turns in this process.
        watchers: All streams of conversations in this process.
    """

    def __init__(self, settings: GatewaySettings, adapters: Adapters) -> None:
        self._settings = settings
        self._adapters = adapters
        desk = OutcomeDesk(adapters.store, adapters.bell)
        self._desk = desk
        doorkeeper = Doorkeeper(adapters.store, adapters.clock)

        async def is_allowed(proof: Proof) -> bool:
            return await doorkeeper.caller(proof) is not None

        self.hub = Hub(
            live=adapters.live,
            bell=adapters.bell,
            watched=adapters.store,
            is_allowed=is_allowed,
            watcher=str(adapters.clock.new_id()),
            pace=adapters.pace,
        )
        self.watchers = Watchers(adapters.store, is_allowed, poll_s=settings.conversation_poll_s)
        context = Context(
            store=adapters.store,
            door=Door(
                adapters.publisher,
                desk,
                master_key=settings.door_master_key.get_secret_value().encode(),
                wait_s=settings.acceptance_wait_s,
                rejected=adapters.metrics.admission_rejected_total,
            ),
            hub=self.hub,
            watchers=self.watchers,
            catalogue=Catalogue.load(settings.models_file, default=settings.llm_model),
            policy=SettingsPolicy(settings.system_policy_text, settings.system_policy_version),
            doorkeeper=doorkeeper,
            clock=adapters.clock,
            metrics=adapters.metrics,
            tracing=adapters.tracing,
            max_streams_per_key=settings.max_streams_per_key,
            session_lifetime_s=settings.session_lifetime_s,
            random_bytes=adapters.random_bytes,
            operators=adapters.operators,
        )
        adapters.metrics.sse_streams_active.set_function(self._stream_count)
        adapters.metrics.sse_buffer_bytes.set_function(lambda: self.hub.buffered_bytes)
        self._ticker: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self.asgi = self._application(context)

    def _stream_count(self) -> int:
        return self.hub.stream_count + self.watchers.stream_count

    async def drain(self) -> None:
        """Close the streams over the time that the settings name."""
        self.watchers.drain(self._settings.drain_s)
        await self.hub.drain(self._settings.drain_s)

    async def check_ticker(self) -> CheckResult:
        """Whether silent streams are still looked after; without that the process is no use."""
        if any(task is not None and task.done() for task in (self._ticker, self._watching)):
            return CheckResult(ok=False, detail="the stream ticker ended")
        return OK

    def _application(self, context: Context) -> ASGIApp:
        routes = _routes(context)
        templates: dict[object, str] = {route.endpoint: route.path for route in routes}

        def route_of(scope: Scope) -> str:
            return templates.get(scope.get("endpoint"), NO_ROUTE)

        def observe(method: str, route: str, status: int, seconds: float) -> None:
            histogram = self._adapters.metrics.http_request_duration_seconds
            histogram.labels(method, route, status).observe(seconds)

        app = Starlette(
            routes=routes,
            exception_handlers=EXCEPTION_HANDLERS,
            lifespan=self._lifespan,
        )
        app.state.public_url = self._settings.public_url
        return Edge(
            app,
            clock=self._adapters.clock,
            allowed_hosts=self._settings.allowed_hosts,
            route_of=route_of,
            observe=observe,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[Mapping[str, object]]:
        del app
        self._ticker = asyncio.create_task(self.hub.run(), name="hub")
        purging = asyncio.create_task(self._purge(), name="purge")
        self._watching = asyncio.create_task(self.watchers.run(), name="watchers")
        tasks = {self._ticker, purging, self._watching}
        try:
            yield {}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1)
            self.watchers.close()
            await self.hub.close()
            await self._desk.close()

    async def _purge(self) -> None:
        while True:
            await self._adapters.clock.sleep(PURGE_EVERY_S)
            with contextlib.suppress(StoreUnavailable):
                await self._adapters.store.purge_sessions()


def _routes(context: Context) -> list[Route]:
    pages = Pages(context)
    docs = Docs()
    return [
        *_conversation_routes(context),
        *_turn_routes(context),
        *OperatorRoutes(context).routes(),
        Route("/openapi.json", docs.openapi, methods=["GET"]),
        Route("/docs", docs.reference, methods=["GET"]),
        Route("/problems", docs.problems, methods=["GET"]),
        Route("/problems/{slug}", docs.problem, methods=["GET"]),
        Route("/", pages.home, methods=["GET"]),
        Route("/ui/login", pages.login, methods=["POST"]),
        Route("/ui/logout", pages.logout, methods=["POST"]),
        Route("/ui/", pages.file, methods=["GET"]),
        Route("/ui/turns/{turn_id:path}", TurnPage(context, pages).show, methods=["GET"]),
        Route("/ui/vendor/{name}", pages.vendored, methods=["GET"]),
        Route("/ui/{name:path}", pages.file, methods=["GET"]),
    ]


def _conversation_routes(context: Context) -> list[Route]:
    conversations = ConversationRoutes(context)
    changes = ChangeRoutes(context)
    instructions = InstructionRoutes(context)
    captures = CaptureRoutes(context)
    # An empty id must not look like a path that does not exist.
    nameless = "/v1/conversations//messages"
    return [
        Route(POST_MESSAGE, PostMessage(context), methods=["POST"]),
        Route(f"{CONVERSATION}/events", ConversationEvents(context), methods=["GET"]),
        Route("/v1/conversations", conversations.create, methods=["POST"]),
        Route("/v1/conversations", conversations.all, methods=["GET"]),
        Route(CONVERSATION, conversations.one, methods=["GET"]),
        Route(CONVERSATION, conversations.update, methods=["PATCH"]),
        Route(CONVERSATION, conversations.delete, methods=["DELETE"]),
        Route(RESTORE, conversations.restore, methods=["POST"]),
        Route(f"{CONVERSATION}/branches", conversations.branches, methods=["GET"]),
        Route(f"{CONVERSATION}/messages", conversations.messages, methods=["GET"]),
        Route(MESSAGE, changes.edit, methods=["PATCH"]),
        Route(MESSAGE, changes.delete, methods=["DELETE"]),
        Route(nameless, conversations.nameless, methods=["GET", "POST"]),
        Route("/v1/instructions", instructions.of_tenant, methods=["GET"]),
        Route("/v1/instructions", instructions.set_of_tenant, methods=["PUT"]),
        Route(f"{CONVERSATION}/instructions", instructions.of_conversation, methods=["GET"]),
        Route(f"{CONVERSATION}/instructions", instructions.set_of_conversation, methods=["PUT"]),
        Route("/v1/capture", captures.set_posture, methods=["PUT"]),
        Route(f"{CONVERSATION}/capture", captures.flag, methods=["PUT"]),
    ]


def _turn_routes(context: Context) -> list[Route]:
    turn = "/v1/turns/{turn_id}"
    changes = ChangeRoutes(context)
    evidence = EvidenceRoutes(context)
    story = StoryRoutes(context)
    return [
        Route(f"{turn}/events", TurnEvents(context), methods=["GET"]),
        Route(turn, TurnRoutes(context).one, methods=["GET"]),
        Route(CANCEL, changes.cancel, methods=["POST"]),
        Route(REGENERATE, changes.regenerate, methods=["POST"]),
        Route(CONTINUE, changes.go_on, methods=["POST"]),
        Route(f"{turn}/plan", evidence.plan, methods=["GET"]),
        Route(f"{turn}/plan/diff", evidence.diff, methods=["GET"]),
        Route(f"{turn}/plan/left-out", story.left_out, methods=["GET"]),
        Route(f"{turn}/plan/excerpts", story.excerpts, methods=["GET"]),
        Route(f"{turn}/plan/text", story.text, methods=["GET"]),
        Route(f"{turn}/timeline", story.timeline, methods=["GET"]),
        Route(f"{turn}/explain", evidence.explain, methods=["POST"]),
        Route(f"{turn}/replay", evidence.replay, methods=["GET"]),
        Route(f"{turn}/captures", CaptureRoutes(context).read, methods=["GET"]),
    ]


def build_app(settings: GatewaySettings, adapters: Adapters) -> Gateway:
    """Wire the service; tests call this with twins in memory."""
    return Gateway(settings, adapters)


NEEDED = frozenset({"postgres"})


def readiness(gateway: Gateway, checks: Mapping[str, Check]) -> dict[str, Check]:
    """What ``/readyz`` asks: reading must work; without queue and bells the gateway is degraded.

    Args:
        checks: Of every dependency, by name; those in ``NEEDED`` decide about readiness.
    """

    def softened(check: Check) -> Check:
        async def ask() -> CheckResult:
            found = await check()
            return CheckResult(ok=True, degraded=not found.ok, detail=found.detail)

        return ask

    told: dict[str, Check] = {"streams": gateway.check_ticker}
    for name, check in checks.items():
        told[name] = check if name in NEEDED else softened(check)
    return told
