"""Rights in the database: the committed matrix, the catalogue and what each role can really do."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.migrations import rights_matrix, structure
from tests.migrations.attempts import can_call, functions, relations, verbs_on
from tests.migrations.rights_matrix import LOGINS, PUBLIC, SCHEMAS, WITHOUT_LOGIN
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]
TRIED = ("select", "insert", "update", "delete", "truncate")


def test_the_committed_matrix_is_what_the_database_grants(admin: Connection) -> None:
    """Written again with ``python -m tests.migrations.rights_matrix`` after a change of grants."""
    actual = rights_matrix.read(admin)

    assert rights_matrix.differences(actual, rights_matrix.committed()) == []
    assert sum(len(objects) for objects in actual.values()) > 60


@contextmanager
def acting_as(database: TestDatabase, role: str) -> Iterator[Connection]:
    """A session with exactly the rights of one role; a login role really logs in."""
    if role in LOGINS:
        url = database.url_of(role.removeprefix("turnwire_"))
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            yield connection
        return
    with psycopg.connect(database.admin_url, autocommit=True, connect_timeout=10) as connection:
        nobody = f"test_nobody_{secrets.token_hex(4)}" if role == PUBLIC else None
        if nobody is not None:
            connection.execute(sql.SQL("create role {}").format(sql.Identifier(nobody)))
        try:
            connection.execute(sql.SQL("set role {}").format(sql.Identifier(nobody or role)))
            yield connection
        finally:
            connection.execute("reset role")
            if nobody is not None:
                connection.execute(sql.SQL("drop role {}").format(sql.Identifier(nobody)))


NOT_OWNERS = [role for role in WITHOUT_LOGIN if not role.endswith("_owner")]


@pytest.mark.parametrize("role", [PUBLIC, *LOGINS, *NOT_OWNERS])
def test_a_role_can_do_what_the_matrix_says_and_nothing_else(
    database: TestDatabase, admin: Connection, role: str
) -> None:
    matrix = rights_matrix.committed()
    has_usage = {
        schema for schema, roles in matrix["schemas"].items() if role in roles or PUBLIC in roles
    }

    def listed(kind: str, name: str) -> set[str]:
        if name.partition(".")[0] not in has_usage:
            return set()
        rights = matrix[kind][name]
        return {*rights.get(PUBLIC, ()), *rights.get(role, ())}

    wrong: list[str] = []
    tried = 0
    with acting_as(database, role) as connection:
        for relation in relations(admin, SCHEMAS):
            kind = "views" if relation.full_name in matrix["views"] else "tables"
            expected = listed(kind, relation.full_name)
            if "owner" in expected or relation.schema not in has_usage:
                continue
            expected = {verb for verb in expected if verb.split(" ")[0] in TRIED}
            actual = set(verbs_on(connection, relation))
            tried += 1
            if actual != expected:
                wrong.append(f"{relation.full_name}: can {actual}, listed are {expected}")
        for function in functions(admin, SCHEMAS):
            if function.schema not in has_usage:
                continue
            expected = listed("functions", function.full_name)
            tried += 1
            if can_call(connection, function) != bool(expected):
                wrong.append(f"{function.full_name}: listed are {expected}")

    assert wrong == []
    assert tried >= 5


def test_everything_in_the_database_obeys_the_rules_of_rights(admin: Connection) -> None:
    assert structure.all_faults(admin) == []


@pytest.mark.parametrize("role", LOGINS)
def test_a_service_creates_nothing_and_becomes_nobody_else(
    database: TestDatabase, role: str
) -> None:
    others = [*WITHOUT_LOGIN, *(login for login in LOGINS if login != role)]
    with acting_as(database, role) as connection:
        for schema in (*SCHEMAS, "public"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(
                    sql.SQL("create table {} (a int)").format(sql.Identifier(schema, "made"))
                )
        for other in others:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(sql.SQL("set role {}").format(sql.Identifier(other)))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("alter table ingestion.messages disable row level security")


# What the rules must notice: each row breaks one thing in a database of its own.

AS_OWNER = "set role ingestion_owner; "
TENANT_TABLE = (
    AS_OWNER
    + "create table ingestion.scratch (tenant_id uuid, id uuid, primary key (tenant_id, id)); "
)
BROKEN = [
    (
        "a_table_in_neither_list",
        AS_OWNER + "create table ingestion.scratch (id uuid primary key)",
        structure.table_faults,
        "ingestion.scratch is in neither list",
    ),
    (
        "a_tenant_table_without_any_policy",
        TENANT_TABLE,
        structure.table_faults,
        "ingestion.scratch holds a tenant's rows without ENABLE and FORCE",
    ),
    (
        "a_tenant_table_without_force",
        "alter table ingestion.messages no force row level security",
        structure.table_faults,
        "ingestion.messages holds a tenant's rows without ENABLE and FORCE",
    ),
    (
        "a_policy_that_is_wider",
        "create policy more on ingestion.messages to turnwire_ingestion using (true)",
        structure.table_faults,
        "ingestion.messages has the policies",
    ),
    (
        "a_policy_for_another_role",
        "alter policy maintenance on ingestion.messages to turnwire_ingestion",
        structure.table_faults,
        "ingestion.messages has the policies",
    ),
    (
        "a_listed_table_that_is_gone",
        "drop table ingestion.operator_actions",
        structure.table_faults,
        "ingestion.operator_actions is listed and does not exist",
    ),
    (
        "a_key_that_begins_with_something_else",
        "alter table llm_gateway.usage drop constraint usage_pkey; "
        "alter table llm_gateway.usage add primary key (step_id, tenant_id, attempt)",
        structure.key_faults,
        "llm_gateway.usage: key usage_pkey begins with step_id",
    ),
    (
        "a_foreign_key_without_the_tenant",
        "alter table ingestion.transitions add constraint loose "
        "foreign key (turn_id) references ingestion.turns (id)",
        structure.key_faults,
        "ingestion.transitions: key loose begins with turn_id",
    ),
    (
        "a_function_that_everybody_may_execute",
        "grant execute on function ingestion.op_end_turn to public",
        structure.function_faults,
        "ingestion.op_end_turn may be executed by everybody",
    ),
    (
        "a_function_without_a_fixed_path",
        "alter function ingestion.op_end_turn reset search_path",
        structure.function_faults,
        "ingestion.op_end_turn has the settings None",
    ),
    (
        "a_published_read_owned_by_the_tables_owner",
        "alter function llm_gateway.results_v1 owner to llm_gateway_owner",
        structure.function_faults,
        "llm_gateway.results_v1 belongs to llm_gateway_owner",
    ),
    (
        "a_published_read_with_the_callers_rights",
        "alter function llm_gateway.results_v1 security invoker",
        structure.function_faults,
        "llm_gateway.results_v1 is published and not SECURITY DEFINER",
    ),
    (
        "a_view_owned_by_the_tables_owner",
        "alter view ingestion.turns_v1 owner to ingestion_owner",
        structure.view_faults,
        "ingestion.turns_v1 belongs to ingestion_owner",
    ),
    (
        "a_view_without_a_barrier",
        "alter view ingestion.turns_v1 reset (security_barrier)",
        structure.view_faults,
        "ingestion.turns_v1 belongs to ingestion_reader and has the options None",
    ),
    (
        "a_time_made_by_a_default",
        "alter table ingestion.branches alter created_at set default now()",
        structure.clock_faults,
        "ingestion.branches.created_at uses now(",
    ),
    (
        "an_id_made_by_a_default",
        "alter table ingestion.branches alter id set default gen_random_uuid()",
        structure.clock_faults,
        "ingestion.branches.id uses gen_random_uuid(",
    ),
    (
        "a_function_with_a_clock_of_its_own",
        "create function ingestion.late() returns timestamptz language sql as 'select now()'",
        structure.clock_faults,
        "ingestion.late uses now(",
    ),
    (
        "an_identity_more",
        "alter table ingestion.branches add no bigint generated always as identity",
        structure.clock_faults,
        "ingestion.branches.no is numbered by the database",
    ),
    (
        "a_thing_that_the_superuser_owns",
        "create table ingestion.stray (id uuid primary key)",
        structure.owner_faults,
        "ingestion.stray belongs to",
    ),
]


@pytest.mark.parametrize(
    ("breaking", "check", "fault"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_the_rules_notice(
    admin: Connection, breaking: str, check: Callable[[Connection], list[str]], fault: str
) -> None:
    assert check(admin) == []

    admin.execute(breaking)
    admin.execute("reset role")

    found = check(admin)
    assert any(line.startswith(fault) for line in found), found


def test_roles_with_more_than_grants_are_noticed(admin: Connection) -> None:
    """Roles are the whole server's, so the change is undone before anybody else could see it."""
    with admin.transaction(force_rollback=True):
        admin.execute("alter role ingestion_reader bypassrls")
        admin.execute("alter role llm_gateway_maint login")
        admin.execute("grant ingestion_maint to turnwire_ingestion")

        assert structure.role_faults(admin) != []
        assert sorted(structure.role_faults(admin)) == [
            "ingestion_reader has an attribute that reaches beyond grants",
            "llm_gateway_maint may log in",
            "turnwire_ingestion is a member of ['ingestion_maint']",
        ]


def test_a_grant_more_or_less_is_told_line_by_line(admin: Connection) -> None:
    admin.execute("grant delete on ingestion.messages to turnwire_ingestion")
    admin.execute("grant select on llm_gateway.work to public")
    admin.execute("revoke select on ingestion.turns_v1 from turnwire_ops")
    admin.execute("grant select (text) on llm_gateway.results to turnwire_ops")

    told = rights_matrix.differences(rights_matrix.read(admin), rights_matrix.committed())

    assert [line for line in told if "llm_gateway.work:" not in line] == [
        "+ tables ingestion.messages: turnwire_ingestion delete",
        "+ tables llm_gateway.results: turnwire_ops select (text)",
        "- views ingestion.turns_v1: turnwire_ops select",
    ]
    assert "+ tables llm_gateway.work: public select" in told
