"""A record that cannot be handled is parked, its turn is ended where it matches, others go on."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

import pytest
from prometheus_client import CollectorRegistry

from libs.clock import SystemClock
from libs.errors import Terminal
from libs.kafka import Delivery
from libs.kafka.loop import BatchLoop
from libs.kafka.parking import Parking
from libs.telemetry.metrics import Metrics
from schemas.registry import TURN_EVENTS, decode
from schemas.steps import StepPlannedV1, StepRefusedV1
from services.context_assembly.handlers import CONSUMER
from services.context_assembly.ports import (
    BatchFacts,
    BatchQuestion,
    PlanningStore,
    PlanningTransaction,
)
from tests.rig.parts import TestDatabase
from tests.rig.planning import Chat, PostgresWorld, delivery, postgres_world, start
from tests.rig.planning_handlers import handlers

pytestmark = pytest.mark.postgres


@pytest.fixture
async def world(database: TestDatabase) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database) as real:
        yield real


@dataclass(frozen=True)
class Raw:
    """A record as the consumer hands it out."""

    offset: int
    key: bytes | None
    value: bytes | None
    topic: str = TURN_EVENTS
    partition: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Unplannable(Terminal):
    """What the failing store raises."""

    code = "test.unplannable"


class FailingStore:
    """Works for everybody but one conversation."""

    def __init__(self, inner: PlanningStore, conversation: UUID) -> None:
        self._inner = inner
        self._conversation = conversation
        self.reader = inner.reader
        self.token_counts = inner.token_counts

    @asynccontextmanager
    async def transaction(self, tenants: Collection[UUID]) -> AsyncIterator[PlanningTransaction]:
        async with self._inner.transaction(tenants) as transaction:
            facts = transaction.facts

            async def failing(question: BatchQuestion) -> BatchFacts:
                if self._conversation in question.conversations:
                    raise Unplannable("this conversation cannot be planned")
                return await facts(question)

            transaction.facts = failing  # type: ignore[method-assign]
            yield transaction


def loop_of(world: PostgresWorld) -> BatchLoop:
    metrics = Metrics(CollectorRegistry())
    parking = Parking(world.database, world.relay, consumer=CONSUMER, metrics=metrics)
    return BatchLoop(
        handlers(world).turns, decode=decode, parking=parking, clock=SystemClock(), metrics=metrics
    )


def raw(record: Delivery, offset: int) -> Raw:
    return Raw(offset, record.key, record.value)


async def dead(world: PostgresWorld) -> list[str]:
    rows = await world.fetch('select reason from context_assembly.dead_letters order by "offset"')
    return [row["reason"] for row in rows]


async def test_a_started_turn_that_cannot_be_planned_fails_and_its_neighbours_go_on(
    world: PostgresWorld,
) -> None:
    bad, good = Chat(), Chat()
    broken, fine = await start(world, bad, "one"), await start(world, good, "two")
    world.store = FailingStore(world.store, bad.id)

    await loop_of(world)([raw(broken, 0), raw(fine, 1)])

    told = {step.event.conversation_id: step.event.data for step in await world.told()}
    assert told[bad.id] == StepRefusedV1(reason="dead_lettered")
    assert isinstance(told[good.id], StepPlannedV1)
    assert await dead(world) == ["test.unplannable"]
    [row] = await world.fetch(
        "select state, reason from context_assembly.steps where conversation_id = %(id)s", id=bad.id
    )
    assert row == {"state": "refused", "reason": "dead_lettered"}


async def test_an_event_about_somebody_elses_turn_ends_nothing(world: PostgresWorld) -> None:
    victim, attacker = Chat(), Chat()
    started = await start(world, victim, "mine")
    await start(world, attacker, "theirs")
    stolen = replace(started.event, id=uuid4(), tenant_id=attacker.tenant_id)
    moved = replace(started.event, id=uuid4(), conversation_id=attacker.id)

    await loop_of(world)([raw(delivery(stolen), 0), raw(delivery(moved), 1)])

    assert [t for t in await world.told_types() if t.startswith("step.")] == []
    assert await dead(world) == ["context.unknown_turn"] * 2


async def test_the_end_of_a_parked_turn_is_told_once(world: PostgresWorld) -> None:
    bad = Chat()
    broken = await start(world, bad, "one")
    world.store = FailingStore(world.store, bad.id)
    loop = loop_of(world)

    await loop([raw(broken, 0)])
    await loop([raw(broken, 0)])

    assert (await world.told_types()).count("step.refused") == 1


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"{}", b'{"type":"turn.started"}'])
async def test_unreadable_records_are_parked_and_the_partition_goes_on(
    world: PostgresWorld, value: bytes | None
) -> None:
    chat = Chat()
    fine = await start(world, chat, "two")

    await loop_of(world)([Raw(0, b"k", value), raw(fine, 1)])

    assert len(await dead(world)) == 1
    assert "step.planned" in await world.told_types()
