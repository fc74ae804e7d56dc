"""Dead letters that an operator wants handled again, and processes that say that they run."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from libs.clock import SystemClock
from libs.errors import StoreUnavailable
from libs.heartbeat import Heartbeat
from libs.kafka.loop import BatchLoop
from libs.kafka.records import Delivery
from libs.kafka.redriving import Redriving
from libs.operating import Acts, Reads
from libs.postgres import Database
from libs.telemetry.metrics import Metrics
from libs.telemetry.ops_server import OK, CheckResult
from schemas.envelope import Event, encode
from schemas.registry import decode
from schemas.turns import TurnEndedV1
from tests.contract.ingestion.lines import writer
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[dict[str, Any]]
CONSUMER = "ingestion.generation"


class Handler:
    """Handles what it is given, or fails as it is told."""

    consumer = CONSUMER
    topics = ("turn.events",)

    def __init__(self) -> None:
        self.handled: list[UUID] = []
        self.headers: list[tuple[tuple[str, bytes | None], ...]] = []
        self.error: Exception | None = None
        self.refuses: str | None = None

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        return [self.refuses for _ in deliveries]

    async def handle(self, batch: Sequence[Delivery]) -> None:
        if self.error is not None:
            raise self.error
        self.handled += [one.event.id for one in batch]
        self.headers += [one.headers for one in batch]

    async def ending_of(self, *_: object) -> Sequence[Any]:
        msg = "a re-drive ends no turn"
        raise AssertionError(msg)


@pytest.fixture
def rows(database: TestDatabase) -> Iterator[Connection]:
    with writer(database) as connection:
        yield connection


@pytest.fixture
async def service(database: TestDatabase) -> AsyncIterator[Database]:
    """Connections with the rights of the service."""
    found = await Database.open(database.url_of("ingestion"), schema="ingestion", size=2)
    yield found
    await found.close()


@pytest.fixture
async def ops(database: TestDatabase) -> AsyncIterator[Database]:
    found = await Database.open(database.url_of("ops"), schema="turnwire", size=2)
    yield found
    await found.close()


def event() -> Event[TurnEndedV1]:
    return Event(
        id=uuid4(),
        source="ingestion",
        tenant_id=uuid4(),
        conversation_id=uuid4(),
        correlation_id=uuid4(),
        causation_id=None,
        occurred_at=datetime.now(UTC),
        data=TurnEndedV1(status="completed", reason=None, length=1),
    )


def set_aside(rows: Connection, value: bytes | None) -> UUID:
    letter = uuid4()
    rows.execute(
        "insert into ingestion.dead_letters (id, consumer, topic, partition, "
        '"offset", key, headers, value, reason, error, attempts, at, mirrored) '
        "values (%s, %s, 'turn.events', 0, 3, 'k', %s, %s, 'bug', 'x', 6, now(), false)",
        (letter, CONSUMER, json.dumps([["Y2VfaWQ=", "MQ=="], ["ZW1wdHk=", None]]), value),
    )
    return letter


def redriving(service: Database, handler: Handler) -> tuple[Redriving, BatchLoop]:
    clock = SystemClock()
    loop = BatchLoop(
        handler,
        decode=decode,
        parking=None,  # type: ignore[arg-type]  # nothing is parked again
        clock=clock,
        metrics=Metrics(CollectorRegistry()),
    )
    return Redriving(service, [loop], clock=clock), loop


async def test_a_letter_that_can_be_handled_now_is_gone_afterwards(
    rows: Connection, service: Database, ops: Database
) -> None:
    told, handler = event(), Handler()
    letter, other = set_aside(rows, encode(told)), set_aside(rows, encode(event()))
    again, loop = redriving(service, handler)
    assert await again.look(loop) == 0  # nobody asked

    await Acts(ops, actor="tests").redrive("ingestion", letter, dry_run=False)
    assert await again.look(loop) == 1

    assert handler.handled == [told.id]
    assert handler.headers == [(("ce_id", b"1"), ("empty", None))]
    assert [one["id"] for one in await Reads(ops).dead_letters()] == [str(other)]
    assert await again.look(loop) == 0


@pytest.mark.parametrize("how", ["error", "refused", "unreadable"])
async def test_a_letter_that_fails_again_stays_with_its_new_reason(
    rows: Connection, service: Database, ops: Database, how: str
) -> None:
    handler = Handler()
    letter = set_aside(rows, b"{" if how == "unreadable" else encode(event()))
    again, loop = redriving(service, handler)
    handler.error = ValueError("a word of somebody") if how == "error" else None
    handler.refuses = "key_revoked" if how == "refused" else None

    await Acts(ops, actor="tests").redrive("ingestion", letter, dry_run=False)
    assert await again.look(loop) == 1
    assert await again.look(loop) == 0

    found = await Reads(ops).dead_letter(letter)
    assert found is not None
    reasons = {"error": "bug", "refused": "key_revoked", "unreadable": "malformed"}
    assert (found["reason"], found["attempts"]) == (reasons[how], 7)
    assert found["is_asked"] is False
    assert "a word of somebody" not in found["error"]


async def test_without_a_database_a_letter_is_tried_again_later(
    rows: Connection, service: Database, ops: Database
) -> None:
    handler = Handler()
    handler.error = StoreUnavailable("away")
    letter = set_aside(rows, encode(event()))
    again, loop = redriving(service, handler)
    await Acts(ops, actor="tests").redrive("ingestion", letter, dry_run=False)
    with pytest.raises(StoreUnavailable):
        await again.look(loop)
    assert await again.look(loop) == 0  # held for whoever was at it

    handler.error = None
    rows.execute("update ingestion.dead_letters set redrive_at = now() - interval '1 s'")
    assert await again.look(loop) == 1
    assert await Reads(ops).dead_letter(letter) is None


async def test_a_process_says_how_it_is_until_it_leaves(
    rows: Connection, service: Database, ops: Database
) -> None:
    async def ill() -> CheckResult:
        return CheckResult(ok=False, detail="no broker answers")

    async def well() -> CheckResult:
        return OK

    checks = {"postgres": well, "kafka": ill}
    beat = Heartbeat(
        service,
        instance_id=uuid4(),
        version="1.2.3",
        checks=checks,
        lag=lambda: {"turn.requests": 7},
        clock=SystemClock(),
    )
    rows.execute(
        "insert into ingestion.instances values (gen_random_uuid(), '1', 'gone:1', '{}', '{}', "
        "now(), now() - interval '1 hour')"
    )
    await beat.beat()
    await beat.beat()

    found = next(one for one in await Reads(ops).services() if one["service"] == "ingestion")
    assert (found["health"], found["running"], found["silent"]) == ("not ready", 1, 0)
    assert (found["lag"], found["versions"]) == (7, ["1.2.3"])
    (process,) = found["processes"]
    assert process["checks"]["kafka"] == {"state": "failed", "detail": "no broker answers"}

    await beat.leave()
    found = next(one for one in await Reads(ops).services() if one["service"] == "ingestion")
    assert found["health"] == "absent"
