"""What is left of a deleted conversation when its time is over: nothing, and news of it."""

import zlib
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from libs.clock import SystemClock
from libs.outbox.messages import BUCKETS
from schemas.envelope import Event
from schemas.registry import TURN_EVENTS, decode
from schemas.turns import ConversationPurgedV1
from services.ingestion.retention import Retention
from tests.contract.ingestion.lines import Line, read, reader, writer
from tests.contract.ingestion.rig import Rig
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[dict[str, Any]]
TABLES = (
    "conversations",
    "branches",
    "turns",
    "messages",
    "archived_messages",
    "message_tokens",
    "transitions",
)


@pytest.fixture
def service(database: TestDatabase) -> Iterator[Connection]:
    with reader(database, "ingestion") as connection:
        yield connection


def deleted(line: Line, *, ago_s: int) -> Line:
    """The conversation, its time over since then; negative: it still has some."""
    line.connection.execute(
        "update conversations set deleted_at = now() - interval '1 hour',"
        " purge_at = now() - make_interval(secs => %s) where id = %s",
        [ago_s, line.id],
    )
    return line


def purge(service: Connection, *, max_rows: int = 100) -> list[UUID]:
    """Conversations that one call purged."""
    found = read(
        service,
        "select conversation_id from ingestion.op_purge_conversations(%s)",
        [max_rows],
        tenant=None,
    )
    return [row["conversation_id"] for row in found]


def full(rows: Connection, tenant: UUID) -> Line:
    """A conversation that has something in every table."""
    line = Line(rows, tenant=tenant)
    first = line.post(line.id, "one")
    line.edit(first.question, "in other words")
    line.post(line.id, "two")
    line.archive(3)
    rows.execute(
        "insert into transitions values (%s, %s, 'pending', null, gen_random_uuid(), now())",
        [tenant, first.id],
    )
    return line


def counts(rows: Connection, tenant: UUID) -> dict[str, int]:
    """Rows of a tenant by table."""
    found: dict[str, int] = {}
    for table in TABLES:
        statement = f"select count(*) as n from {table} where tenant_id = %s"  # noqa: S608
        row = rows.execute(statement.encode(), [tenant]).fetchone()
        assert row is not None
        found[table] = row["n"]
    return found


def told(rows: Connection) -> list[Event[ConversationPurgedV1]]:
    """Events that wait in the outbox, in the order they will leave in."""
    found = rows.execute("select * from outbox order by id").fetchall()
    for row in found:
        assert row["topic"] == TURN_EVENTS
        assert row["bucket"] == zlib.crc32(row["key"].encode()) % BUCKETS
        assert row["headers"]["ce_id"] == str(row["event_id"])
    return [decode(bytes(row["payload"])) for row in found]


def test_every_row_goes_and_the_rows_beside_it_stay(rows: Connection, service: Connection) -> None:
    tenant = uuid4()
    kept = full(rows, tenant)
    before = counts(rows, tenant)
    gone = deleted(full(rows, tenant), ago_s=1)
    assert all(counts(rows, tenant)[table] == 2 * n for table, n in before.items())

    assert purge(service) == [gone.id]

    assert counts(rows, tenant) == before
    assert kept.connection.execute(
        "select conversation_id from purged_conversations"
    ).fetchall() == [{"conversation_id": gone.id}]
    [event] = told(rows)
    assert (event.type, event.source) == ("conversation.purged", "ingestion")
    assert (event.tenant_id, event.conversation_id) == (tenant, gone.id)
    assert event.correlation_id == gone.id
    assert set(event.data.turn_ids) == {turn.id for turn in gone.turns}
    assert purge(service) == []
    assert len(told(rows)) == 1


def test_a_conversation_that_still_has_time_or_was_not_deleted_stays(
    rows: Connection, service: Connection
) -> None:
    tenant = uuid4()
    full(rows, tenant)
    deleted(full(rows, tenant), ago_s=-60)
    before = counts(rows, tenant)

    assert purge(service) == []
    assert counts(rows, tenant) == before


def test_a_turn_that_has_not_ended_is_waited_for(rows: Connection, service: Connection) -> None:
    line = Line(rows)
    line.post(line.id, "running", status="generating")
    deleted(line, ago_s=60)

    assert purge(service) == []
    rows.execute("delete from open_turns")
    assert purge(service) == [line.id]


def test_a_conversation_without_a_turn_is_told_as_well(
    rows: Connection, service: Connection
) -> None:
    line = deleted(Line(rows), ago_s=1)

    assert purge(service) == [line.id]
    [event] = told(rows)
    assert event.data.turn_ids == ()


def test_many_turns_are_told_in_events_of_five_hundred_each_once(
    rows: Connection, service: Connection
) -> None:
    line = Line(rows)
    for n in range(3):
        line.post(line.id, f"{n}")
    rows.execute(
        "insert into turns (tenant_id, id, conversation_id, branch_id, principal_id, request_id,"
        " key, fingerprint, policy, status, seq, queued_at_position, user_message_id,"
        " assistant_message_id, nul_removed, created_at, ended_at)"
        " select tenant_id, gen_random_uuid(), conversation_id, branch_id, principal_id,"
        " gen_random_uuid(), 'k' || n, 'f', 'serialize', 'failed', 10 + n, 0, gen_random_uuid(),"
        " gen_random_uuid(), 0, now(), now() from turns, generate_series(1, 998) n where seq = 1"
    )
    expected = {row["id"] for row in rows.execute("select id from turns")}
    deleted(line, ago_s=1)

    assert purge(service) == [line.id]

    events = told(rows)
    assert [len(event.data.turn_ids) for event in events] == [500, 500, 1]
    assert {turn for event in events for turn in event.data.turn_ids} == expected
    assert len({event.id for event in events}) == 3


def test_the_longest_overdue_go_first_and_no_more_than_asked_for(
    rows: Connection, service: Connection
) -> None:
    lines = [deleted(Line(rows), ago_s=ago_s) for ago_s in (1, 3, 2)]

    assert purge(service, max_rows=2) == [lines[1].id, lines[2].id]
    assert purge(service, max_rows=2) == [lines[0].id]


def test_a_restore_that_came_first_keeps_everything(
    rows: Connection, service: Connection, database: TestDatabase
) -> None:
    tenant = uuid4()
    line = deleted(full(rows, tenant), ago_s=1)
    before = counts(rows, tenant)
    with writer(database) as restoring:
        with restoring.transaction():
            restoring.execute(
                "update conversations set deleted_at = null, purge_at = null where id = %s",
                [line.id],
            )
            assert purge(service) == []  # it neither waits nor takes it
        assert purge(service) == []

    assert counts(rows, tenant) == before


def test_a_restore_that_came_second_finds_nothing(
    rows: Connection, service: Connection, database: TestDatabase
) -> None:
    line = deleted(full(rows, uuid4()), ago_s=1)
    lock = "select 1 from conversations where id = %s for update"
    with writer(database) as restoring:
        with service.transaction():
            service.execute("select ingestion.op_purge_conversations(1)")
            with restoring.transaction(), pytest.raises(psycopg.errors.LockNotAvailable):
                restoring.execute("set local lock_timeout = '100ms'")
                restoring.execute(lock, [line.id])
        assert restoring.execute(lock, [line.id]).fetchall() == []


def test_two_sweeps_at_once_share_the_work(
    rows: Connection, service: Connection, database: TestDatabase
) -> None:
    first, second = (deleted(full(rows, uuid4()), ago_s=ago_s) for ago_s in (2, 1))
    with reader(database, "ingestion") as other:
        with service.transaction():
            found = service.execute(
                "select conversation_id from ingestion.op_purge_conversations(1)"
            ).fetchall()
            assert [row["conversation_id"] for row in found] == [first.id]
            assert purge(other, max_rows=1) == [second.id]
        assert purge(other) == []
    assert len(told(rows)) == 2


def test_what_was_purged_is_remembered_for_thirty_days(
    rows: Connection, service: Connection
) -> None:
    rows.execute(
        "insert into purged_conversations select gen_random_uuid(), gen_random_uuid(),"
        " now() - make_interval(days => n) from unnest(array[29, 31]) n"
    )

    purge(service)

    [row] = rows.execute(
        "select now() - purged_at < interval '30 days' as young from purged_conversations"
    ).fetchall()
    assert row["young"]


def test_purging_a_conversation_touches_its_own_rows_and_not_its_tenant_s(
    rows: Connection,
) -> None:
    tenant = uuid4()
    neighbour = Line(rows, tenant=tenant)
    turn = neighbour.post(neighbour.id, "one")
    rows.execute(
        "insert into messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq,"
        " status, text, length, said_at, created_at)"
        " select %s, gen_random_uuid(), %s, %s, %s, 'user', 100 + n, 'completed', 'x', 1, now(),"
        " now() from generate_series(1, 5000) n",
        [tenant, neighbour.id, neighbour.id, turn.id],
    )
    line = Line(rows, tenant=tenant)
    for n in range(20):
        line.post(line.id, f"{n}")
    deleted(line, ago_s=1)

    with rows.transaction():
        rows.execute("set local role turnwire_ingestion")
        rows.execute("select * from op_purge_conversations(1)")
        rows.execute("reset role")
        row = rows.execute(
            "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0) as touched"
            " from pg_stat_xact_user_tables where schemaname = 'ingestion' and relname = 'messages'"
        ).fetchone()

    assert row is not None
    assert 0 < row["touched"] < 500


async def test_the_service_purges_until_nothing_is_due_and_forgets_no_event(
    rig: Rig, rows: Connection
) -> None:
    lines = [deleted(full(rows, uuid4()), ago_s=n + 1) for n in range(3)]
    deleted(full(rows, uuid4()), ago_s=-60)

    first, second = (
        Retention(one.database, clock=SystemClock()) for one in (rig.ingestion, rig.second)
    )
    assert await first.purge_conversations() == 3
    assert await second.purge_conversations() == 0

    assert {event.conversation_id for event in told(rows)} == {line.id for line in lines}
