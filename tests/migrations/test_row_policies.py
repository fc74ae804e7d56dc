"""Whose rows a role sees: none without a named tenant, and never those of another one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.migrations import rights_matrix
from tests.migrations.rights_matrix import LOGINS, SERVICES
from tests.migrations.structure import UNDER_POLICY
from tests.migrations.two_tenants import (
    FIRST,
    SECOND,
    Tenant,
    fill,
    insert_statement,
    published_reads,
    row_of,
)
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]

IDS_FOR_SWEEPS = {
    "frontend_gateway.door_keys_v1": {"id", "tenant_id", "revoked_at"},
    "ingestion.open_turns_v1": {
        "turn_id", "tenant_id", "conversation_id", "branch_id", "state", "position", "deadline_at",
        "progressed_at", "cancel_reason",
    },
    "llm_gateway.work_v1": {"tenant_id", "turn_id", "step_id", "state", "attempt"},
}  # fmt: skip
"""Views over tables without policy: read to learn which tenants to name. Ids, states and times."""


@pytest.fixture
def filled(admin: Connection) -> list[str]:
    """The tables that hold a row of each tenant now."""
    tables = fill(admin)
    assert set(tables) >= UNDER_POLICY
    return tables


@contextmanager
def session(database: TestDatabase, role: str, *tenants: Tenant) -> Iterator[Connection]:
    """A transaction of one role that has named these tenants; rolled back at the end."""
    is_login = role in LOGINS
    url = database.url_of(role.removeprefix("turnwire_")) if is_login else database.admin_url
    with psycopg.connect(url, connect_timeout=10) as connection:
        if not is_login:
            connection.execute(sql.SQL("set local role {}").format(sql.Identifier(role)))
        named = ",".join(str(tenant.id) for tenant in tenants)
        if tenants:
            connection.execute("select set_config('app.tenant_ids', %s, true)", (named,))
        yield connection
        connection.rollback()


def seen(connection: Connection, table: str) -> set[Any]:
    """Tenants whose rows this session sees in a table."""
    query = sql.SQL("select tenant_id from {}").format(sql.Identifier(*table.split(".")))
    return {tenant for (tenant,) in connection.execute(query).fetchall()}


def holders(table: str, verb: str) -> list[str]:
    """Roles with a right on a table, the maintenance role left out; the owner has every right."""
    rights = rights_matrix.committed()["tables"][table]
    return [
        role
        for role, verbs in rights.items()
        if (verb in verbs or "owner" in verbs) and not role.endswith("_maint")
    ]


def test_no_role_sees_a_row_without_a_named_tenant(
    database: TestDatabase, filled: list[str]
) -> None:
    asked = 0
    for table in sorted(UNDER_POLICY):
        assert table in filled
        for role in holders(table, "select"):
            with session(database, role) as connection:
                assert seen(connection, table) == set(), (table, role)
            asked += 1
    assert asked >= 2 * len(UNDER_POLICY) - 2


def test_no_role_sees_a_row_of_a_tenant_that_was_not_named(
    database: TestDatabase, filled: list[str]
) -> None:
    for table in sorted(UNDER_POLICY & set(filled)):
        for role in holders(table, "select"):
            with session(database, role, FIRST) as connection:
                assert seen(connection, table) == {FIRST.id}, (table, role)
            with session(database, role, FIRST, SECOND) as connection:
                assert seen(connection, table) == {FIRST.id, SECOND.id}, (table, role)


def test_no_role_writes_a_row_of_a_tenant_that_was_not_named(
    database: TestDatabase, admin: Connection, filled: list[str]
) -> None:
    refused = 0
    for table in sorted(UNDER_POLICY & set(filled)):
        columns = admin.execute(
            "select attname, format_type(atttypid, null) from pg_attribute "
            "where attrelid = %s::regclass and attnum > 0 and attidentity = '' "
            "and attgenerated = '' and not attisdropped order by attnum",
            (table,),
        ).fetchall()
        row = row_of(table, columns, SECOND)
        for role in holders(table, "insert"):
            with (
                session(database, role, FIRST) as connection,
                pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"),
            ):
                connection.execute(insert_statement(table, row), row)
            refused += 1
        refused += _changes_nothing(database, table)
    assert refused >= 2 * len(UNDER_POLICY)


def _changes_nothing(database: TestDatabase, table: str) -> int:
    """Try to change and delete the other tenant's row; returns how many tries there were."""
    tries = 0
    identifier = sql.Identifier(*table.split("."))
    statements = {
        "update": sql.SQL("update {} set tenant_id = tenant_id where tenant_id = %s"),
        "delete": sql.SQL("delete from {} where tenant_id = %s"),
    }
    for verb, statement in statements.items():
        for role in holders(table, verb):
            with session(database, role, FIRST) as connection:
                # A reader of some columns only would fail here, so that would be noticed.
                changed = connection.execute(statement.format(identifier), (SECOND.id,))
                assert changed.rowcount == 0, (table, role, verb)
            tries += 1
    return tries


def test_a_row_cannot_be_given_to_a_tenant_that_was_not_named(
    database: TestDatabase, filled: list[str]
) -> None:
    del filled
    with (
        session(database, "turnwire_ingestion", FIRST) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"),
    ):
        connection.execute("update ingestion.messages set tenant_id = %s", (SECOND.id,))


def test_published_reads_show_the_named_tenant_and_nobody_else(
    database: TestDatabase, admin: Connection, filled: list[str]
) -> None:
    del filled
    reads = [read for read in published_reads(admin) if read.name not in IDS_FOR_SWEEPS]
    assert len(reads) >= 13

    for read in reads:

        def rows(*named: Tenant, of: Tenant, thing: Tenant) -> str:
            statement, values = read.statement(of, thing.thing)  # noqa: B023 -- called in its round
            with session(database, read.reader, *named) as connection:  # noqa: B023
                return str(connection.execute(statement, values).fetchall())

        assert rows(of=FIRST, thing=FIRST) == "[]", read
        own = rows(FIRST, of=FIRST, thing=FIRST)
        assert str(FIRST.thing) in own or FIRST.canary in own, (read, own)
        assert str(SECOND.id) not in own, read
        assert SECOND.canary not in own, read
        if read.arguments is not None:
            assert rows(FIRST, of=SECOND, thing=SECOND) == "[]", read
            assert rows(FIRST, of=SECOND, thing=FIRST) == "[]", read
            if read.is_of_the_whole_tenant:
                continue
            assert rows(FIRST, of=FIRST, thing=SECOND) == "[]", read
            # Two tenants named: the pair decides, not the id alone.
            assert rows(FIRST, SECOND, of=SECOND, thing=FIRST) == "[]", read


def test_reads_without_a_named_tenant_hold_ids_states_and_times_only(
    database: TestDatabase, admin: Connection, filled: list[str]
) -> None:
    del filled
    found = {}
    for read in published_reads(admin):
        if read.name in IDS_FOR_SWEEPS:
            statement, _ = read.statement(FIRST, FIRST.thing)
            with session(database, read.reader) as connection:
                cursor = connection.execute(statement)
                found[read.name] = {column.name for column in cursor.description or ()}
                assert {str(FIRST.id), str(SECOND.id)} <= {
                    part for row in cursor.fetchall() for part in map(str, row)
                }

    assert found == IDS_FOR_SWEEPS


def test_the_maintenance_role_sees_its_own_schema_without_a_named_tenant(
    database: TestDatabase, filled: list[str]
) -> None:
    """Owned by the table's owner, a sweep would see no row under FORCE, and say nothing."""
    tables = rights_matrix.committed()["tables"]
    asked = 0
    for table in sorted(UNDER_POLICY & set(filled)):
        for schema in SERVICES:
            if "select" in tables[table].get(f"{schema}_maint", ()):
                with session(database, f"{schema}_maint") as connection:
                    assert seen(connection, table) == {FIRST.id, SECOND.id}, table
                asked += 1
    assert asked >= 8


def test_a_name_that_is_no_tenant_is_an_error_rather_than_everybody(
    database: TestDatabase, filled: list[str]
) -> None:
    del filled
    with session(database, "turnwire_ingestion") as connection:
        for named, sees in (("", 0), (str(FIRST.id), 1)):
            connection.execute("select set_config('app.tenant_ids', %s, true)", (named,))
            rows = connection.execute("select from ingestion.messages").fetchall()
            assert len(rows) == sees
        connection.execute("select set_config('app.tenant_ids', '*', true)")
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            connection.execute("select from ingestion.messages")
