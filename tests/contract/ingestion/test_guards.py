"""Behind every decision: what the database itself refuses, and what is told only once it agreed.

Each of these holds even where the code in front of it decided wrongly.
"""

import asyncio
from uuid import UUID, uuid4

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from libs import ids
from libs.catalogue import Catalogue
from libs.clock import SystemClock
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from schemas.streams import BEFORE_ALL
from services.ingestion.app import Adapters, build_app
from services.ingestion.settings import IngestionSettings
from services.ingestion.store import SQL
from services.ingestion.tokens import CatalogueTokens
from tests.contract.ingestion.rig import (
    MASTER_KEY,
    TENANT,
    Rig,
    create,
    generated,
    post,
    refused,
)
from tests.rig.waiting import until

pytestmark = pytest.mark.postgres

COPY_OF_A_TURN = """
insert into ingestion.turns
select made.* from ingestion.turns t
 cross join lateral jsonb_populate_record(
   t, jsonb_build_object('id', %(id)s::uuid, 'key', %(key)s::text)) as made
 where t.key = 'k'
"""
"""A turn as nobody should write it: like the one of key k, with another id."""

WAITS = "select exists (select from pg_locks where not granted and locktype = 'transactionid')"

ENDS_WITHIN_S = 10.0
"""The reaper looks every second or two; the rest is for a busy machine."""

NO_COMMIT = """
create function ingestion.no_commit() returns trigger language plpgsql as
  $$ begin raise exception 'this commit is refused'; end $$;
create constraint trigger no_commit after insert or update on ingestion.turns
  deferrable initially deferred for each row execute function ingestion.no_commit();
"""
"""Lets every statement pass and refuses the COMMIT."""


async def asked(rig: Rig) -> tuple[UUID, UUID]:
    """A conversation with one open turn, of key k."""
    conversation = uuid4()
    await rig.ingestion.requests.handle([create(conversation), post(conversation, "k")])
    rig.ingestion.relay.messages.clear()
    return conversation, ids.turn_id(TENANT, conversation, "k")


def status(rig: Rig, turn: UUID) -> str:
    found: str = rig.one("select status from ingestion.turns where id = %s", turn)
    return found


def inbox_of(rig: Rig, consumer: str) -> set[UUID]:
    rows = rig.rows("select event_id from ingestion.inbox where consumer = %s", consumer)
    return {row["event_id"] for row in rows}


async def test_of_two_transactions_with_one_key_the_database_lets_one_commit(rig: Rig) -> None:
    await asked(rig)
    url = rig.test_database.admin_url
    first = await psycopg.AsyncConnection.connect(url)
    second = await psycopg.AsyncConnection.connect(url)
    try:
        await first.execute(COPY_OF_A_TURN, {"id": uuid4(), "key": "both want it"})
        late = asyncio.create_task(
            second.execute(COPY_OF_A_TURN, {"id": uuid4(), "key": "both want it"})
        )

        async def has_come_to_it() -> bool:
            return late.done() or rig.one(WAITS)

        await until(has_come_to_it)
        await first.commit()

        with pytest.raises(psycopg.errors.UniqueViolation):
            await late
    finally:
        await first.close()
        await second.close()


async def test_a_write_that_ends_an_ended_turn_fails_whatever_was_decided(rig: Rig) -> None:
    conversation, turn = await asked(rig)
    data = rig.result(turn, "the answer")
    await rig.ingestion.generation.handle([generated(conversation, turn, data)])
    other_end = {
        "tenants": [TENANT],
        "ids": [turn],
        "statuses": ["failed"],
        "reasons": ["internal"],
        "lengths": [0],
        "hashes": [None],
        "uptos": [None],
        "usages": [None],
        "attempts": [9],
        "expected": 1,
    }

    with pytest.raises(psycopg.Error) as refused:
        async with rig.second.database.transaction([TENANT]) as transaction:
            await transaction.commit_with([(SQL["end_turns"], other_end)])

    assert refused.value.sqlstate == "TW003"
    assert status(rig, turn) == "completed"


async def test_a_turn_that_was_not_committed_is_told_to_nobody(rig: Rig) -> None:
    conversation = uuid4()
    await rig.ingestion.requests.handle([create(conversation)])
    rig.rows(NO_COMMIT)

    with pytest.raises(psycopg.errors.RaiseException):
        await rig.ingestion.requests.handle([post(conversation, "k")])

    assert rig.ingestion.relay.messages == []
    turn = ids.turn_id(TENANT, conversation, "k")
    assert await rig.ingestion.live.read(turn, BEFORE_ALL, 10) == []
    assert rig.one("select count(*) from ingestion.turns") == 0


async def test_an_end_that_was_not_committed_is_told_to_nobody(rig: Rig) -> None:
    conversation, turn = await asked(rig)
    shown = await rig.ingestion.live.read(turn, BEFORE_ALL, 10)
    data = rig.result(turn, "the answer")
    rig.rows(NO_COMMIT)

    with pytest.raises(psycopg.errors.RaiseException):
        await rig.ingestion.generation.handle([generated(conversation, turn, data)])

    assert rig.ingestion.relay.messages == []
    assert await rig.ingestion.live.read(turn, BEFORE_ALL, 10) == shown
    assert status(rig, turn) == "pending"


async def test_the_process_ends_overdue_turns_by_itself(rig: Rig) -> None:
    _, turn = await asked(rig)
    rig.rows("update ingestion.open_turns set deadline_at = now() - interval '1 hour'")
    app = build_app(
        IngestionSettings(
            database_url=SecretStr("unused"), door_master_key=SecretStr(MASTER_KEY.decode())
        ),
        Adapters(
            database=rig.second.database,
            relay=rig.second.relay,
            live=rig.second.live,
            tokens=CatalogueTokens(Catalogue.load()),
            clock=SystemClock(),
            metrics=Metrics(CollectorRegistry()),
            tracing=Tracing(),
        ),
    )
    works = [asyncio.ensure_future(work()) for work in app.background.values()]

    async def is_over() -> bool:
        return status(rig, turn) != "pending"

    try:
        await until(is_over, within_s=ENDS_WITHIN_S)
    except TimeoutError:
        pytest.fail(f"the turn is still {status(rig, turn)} after {ENDS_WITHIN_S} s")
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    assert status(rig, turn) == "failed"


async def test_a_decided_request_stands_in_the_inbox_whatever_was_decided(rig: Rig) -> None:
    conversation = uuid4()
    requests = [create(conversation), post(conversation, "k"), post(uuid4(), "k")]

    await rig.ingestion.requests.handle(requests)

    assert inbox_of(rig, rig.ingestion.requests.consumer) == {r.event.id for r in requests}


async def test_an_event_stands_in_the_inbox_whether_or_not_it_moved_its_turn(rig: Rig) -> None:
    conversation, turn = await asked(rig)
    end = generated(conversation, turn, rig.result(turn, "the answer"))
    late = refused(conversation, turn, "invariant")

    await rig.ingestion.generation.handle([end])
    await rig.ingestion.context.handle([late])

    assert inbox_of(rig, rig.ingestion.generation.consumer) == {end.event.id}
    assert inbox_of(rig, rig.ingestion.context.consumer) == {late.event.id}
