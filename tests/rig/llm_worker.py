"""A worker of llm_gateway in the test's own process on a real Postgres, and turns to run."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID, uuid4

import psycopg
from prometheus_client import CollectorRegistry
from psycopg.rows import dict_row

from libs.catalogue import Catalogue
from libs.clock import SystemClock
from libs.kafka.publisher import MemoryPublisher
from libs.kafka.records import Delivery
from libs.outbox import Relay
from libs.postgres import Database
from libs.redis.memory import MemoryLiveStream, MemoryRedis
from libs.redis.ports import LiveStream
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from schemas.envelope import Data, Event, encode
from schemas.registry import CONTEXT_EVENTS, TURN_EVENTS, decode
from schemas.steps import StepPlannedV1
from schemas.streams import EntryId, delta_text
from services.llm_gateway.app import Adapters, App, build_app
from services.llm_gateway.instruments import Instruments
from services.llm_gateway.ports import Provider
from services.llm_gateway.providers.openai_compatible import OpenAiCompatible
from services.llm_gateway.settings import LlmSettings
from tests.rig.parts import TestDatabase
from tests.rig.provider import Rule, ScriptedProvider, running_provider

CONDITION_TIMEOUT_S = 20.0
CONDITION_POLL_S = 0.01

_TURN = """
insert into ingestion.conversations (tenant_id, id, principal_id, policy, fingerprint, next_seq,
  created_at, updated_at) values (%(tenant)s, %(conversation)s, %(principal)s, 'serialize', 'f', 3,
  now(), now()) on conflict do nothing;
insert into ingestion.branches (tenant_id, conversation_id, id, kind, created_at)
  values (%(tenant)s, %(conversation)s, %(conversation)s, 'main', now()) on conflict do nothing;
insert into ingestion.turns (tenant_id, id, conversation_id, branch_id, principal_id, request_id,
  key, fingerprint, policy, status, seq, base_seq, queued_at_position, user_message_id,
  assistant_message_id, nul_removed, created_at, started_at, deadline_at, options)
  values (%(tenant)s, %(turn)s, %(conversation)s, %(conversation)s, %(principal)s, %(request)s,
  %(turn)s::text, 'f', 'serialize', 'generating', %(seq)s, %(seq)s, 0, %(user)s, %(assistant)s, 0,
  now(), now(), %(deadline)s, %(options)s);
insert into ingestion.open_turns (turn_id, tenant_id, conversation_id, branch_id, state, position,
  deadline_at, progressed_at) values (%(turn)s, %(tenant)s, %(conversation)s, %(conversation)s,
  'generating', 0, %(deadline)s, now());
insert into context_assembly.steps (tenant_id, step_id, turn_id, step_no, conversation_id,
  branch_id, seq, model, state, deadline_at, event_id, told_at, created_at) values (%(tenant)s,
  %(step)s, %(turn)s, 1, %(conversation)s, %(conversation)s, %(seq)s, 'scripted', 'planned',
  %(deadline)s, %(event)s, now(), now());
insert into context_assembly.payloads (tenant_id, step_id, turn_id, payload, created_at)
  values (%(tenant)s, %(step)s, %(turn)s, %(payload)s, now());
"""


@dataclass(frozen=True, slots=True)
class SeededTurn:
    """A turn that ingestion and context_assembly have brought as far as its planned step."""

    event: Event[StepPlannedV1]
    payload: bytes

    @property
    def step_id(self) -> UUID:
        return self.event.data.step_id

    @property
    def turn_id(self) -> UUID:
        return self.event.turn_id


@dataclass(frozen=True, slots=True)
class Terms:
    """What a turn's call may take: seconds from now, whose they are, and the turn's options."""

    deadline_s: float = 300.0
    limited_by: Literal["turn", "step"] = "turn"
    options: Mapping[str, Any] | None = None


def seed_turn(
    database: TestDatabase,
    *,
    text: str = "hello",
    tenant: UUID | None = None,
    conversation: UUID | None = None,
    seq: int = 1,
    terms: Terms = Terms(),
) -> SeededTurn:
    """Write the rows of one turn, and return the event that asks for its model call."""
    payload = json.dumps(
        {"max_tokens": 64, "messages": [{"content": text, "role": "user"}], "model": "scripted"},
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()
    deadline = datetime.now(UTC) + timedelta(seconds=terms.deadline_s)
    event: Event[StepPlannedV1] = Event(
        id=uuid4(),
        source="context_assembly",
        tenant_id=tenant or uuid4(),
        conversation_id=conversation or uuid4(),
        correlation_id=uuid4(),
        occurred_at=datetime.now(UTC),
        data=StepPlannedV1(
            step_id=uuid4(),
            step_no=1,
            branch_id=uuid4(),
            seq=seq,
            model="scripted",
            fingerprint=hashlib.sha256(payload).hexdigest(),
            deadline_at=deadline,
            limited_by=terms.limited_by,
        ),
    )
    event = _on_branch(event, event.conversation_id)
    values = {
        "tenant": event.tenant_id,
        "conversation": event.conversation_id,
        "turn": event.turn_id,
        "step": event.data.step_id,
        "event": event.id,
        "seq": seq,
        "deadline": deadline,
        "payload": payload,
        "options": None if terms.options is None else json.dumps(terms.options),
        **{name: uuid4() for name in ("principal", "request", "user", "assistant")},
    }
    with psycopg.connect(database.admin_url, connect_timeout=10) as connection:
        for statement in _TURN.split(";"):
            if statement.strip():
                connection.execute(statement.encode(), values)
    return SeededTurn(event, payload)


def on_another_branch(turn: SeededTurn) -> SeededTurn:
    """The turn as one of a branch of its own."""
    return SeededTurn(_on_branch(turn.event, uuid4()), turn.payload)


def _on_branch(event: Event[StepPlannedV1], branch: UUID) -> Event[StepPlannedV1]:
    data = event.data.model_copy(update={"branch_id": branch})
    return Event(
        id=event.id,
        source=event.source,
        tenant_id=event.tenant_id,
        conversation_id=event.conversation_id,
        correlation_id=event.correlation_id,
        occurred_at=event.occurred_at,
        data=data,
    )


def about(turn: SeededTurn, data: Data) -> Event[Data]:
    """Another event of the same turn."""
    return Event(
        id=uuid4(),
        source="ingestion",
        tenant_id=turn.event.tenant_id,
        conversation_id=turn.event.conversation_id,
        correlation_id=turn.turn_id,
        occurred_at=datetime.now(UTC),
        data=data,
    )


def delivery(event: Event[Any]) -> Delivery:
    """An event as a consumer gets it."""
    topic = CONTEXT_EVENTS if isinstance(event.data, StepPlannedV1) else TURN_EVENTS
    key = str(event.conversation_id).encode()
    return Delivery(topic, 0, 0, key, (), encode(event), event)


def rows(database: TestDatabase, statement: str, *values: Any) -> list[dict[str, Any]]:
    """Read or change rows as superuser, past all policies."""
    with psycopg.connect(
        database.admin_url, connect_timeout=10, row_factory=dict_row
    ) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: It did not come true in time.
    """
    try:
        async with asyncio.timeout(CONDITION_TIMEOUT_S):
            while not condition():
                await asyncio.sleep(CONDITION_POLL_S)
    except TimeoutError:
        msg = f"not within {CONDITION_TIMEOUT_S:g} s: {what}"
        raise AssertionError(msg) from None


@dataclass(slots=True)
class Worker:
    """One worker process's parts, and what can be seen of it from outside."""

    app: App
    publisher: MemoryPublisher
    live: LiveStream
    metrics: Metrics
    database: Database
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def told(self) -> list[Event[Any]]:
        """Events published so far."""
        return [decode(record.value) for record in self.publisher.records]

    async def take(self, *turns: SeededTurn) -> None:
        """Deliver the planned steps of turns in one batch."""
        await self.app.steps.handle([delivery(turn.event) for turn in turns])

    async def ended(self, turn: SeededTurn) -> Event[Any]:
        """Wait for the event that tells the end of a turn's step."""
        await until(lambda: any(e.turn_id == turn.turn_id for e in self.told), "an end is told")
        return next(e for e in self.told if e.turn_id == turn.turn_id)

    async def die(self, database: TestDatabase) -> None:
        """Stop everything at once, as a killed process does, and let its lease run out."""
        tasks = [*self.tasks, *self.app.pool._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.expire(database)

    def expire(self, database: TestDatabase) -> None:
        """Let this worker's lease have run out."""
        rows(
            database,
            "update llm_gateway.workers set lease_until = now() - interval '1 s' "
            "where worker_id = %s",
            self.app.lease.worker_id,
        )

    async def shown(self, turn: SeededTurn) -> str:
        """The text that the stream shows of a turn."""
        entries = await self.live.read(turn.turn_id, EntryId(0, 0), 10_000)
        return "".join(map(delta_text, entries))

    async def until_shown(self, turn: SeededTurn, text: str) -> None:
        """Wait until the stream shows at least this text."""
        async with asyncio.timeout(CONDITION_TIMEOUT_S):
            while not (await self.shown(turn)).startswith(text):
                await asyncio.sleep(CONDITION_POLL_S)


@asynccontextmanager
async def http_provider(*rules: Rule) -> AsyncIterator[tuple[ScriptedProvider, Provider]]:
    """A scripted server and the adapter that talks to it."""
    async with (
        running_provider(*rules) as server,
        OpenAiCompatible.open(
            base_url=server.base_url, api_key=None, now=lambda: datetime.now(UTC)
        ) as provider,
    ):
        yield server, provider


@asynccontextmanager
async def running_worker(
    database: TestDatabase,
    provider: Provider,
    *,
    live: LiveStream | None = None,
    background: Sequence[str] = (
        "lease",
        "live_writer",
        "finisher",
        "claims",
        "looks",
        "checkpoints",
    ),
    **settings: Any,
) -> AsyncIterator[Worker]:
    """A worker with these background parts running; sweeps are left to the test by default."""
    url = database.url_of("llm_gateway")
    opened = await Database.open(url, schema="llm_gateway", size=4)
    clock = SystemClock()
    metrics = Metrics(CollectorRegistry())
    publisher = MemoryPublisher()
    relay = Relay(opened, publisher, clock=clock, metrics=metrics)
    stream = live if live is not None else MemoryLiveStream(MemoryRedis())
    app = build_app(
        LlmSettings(database_url=url, profile="local", **settings),
        Adapters(
            database=opened,
            relay=relay,
            live=stream,
            provider=provider,
            catalogue=Catalogue.load(),
            instruments=Instruments(clock, metrics, Tracing()),
        ),
        worker_id=uuid4(),
    )
    await app.begin()
    worker = Worker(app, publisher, stream, metrics, opened)
    parts = {"relay": relay.run, **app.background}
    for name in ("relay", *background):
        worker.tasks.append(asyncio.create_task(_awaited(parts[name]), name=name))
    try:
        yield worker
    finally:
        for task in worker.tasks:
            task.cancel()
        await app.pool.close()
        await asyncio.gather(*worker.tasks, return_exceptions=True)
        await app.lease.give_up()
        await opened.close()


async def _awaited(work: Callable[[], Any]) -> None:
    await work()
