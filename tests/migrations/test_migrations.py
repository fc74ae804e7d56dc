"""Applying migrations: once, unchanged, and by a role that is no superuser."""

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from deploy.local.ports import pick_port
from deploy.local.postgres import PostgresServer
from deploy.local.stack import with_login
from libs.postgres.migrations import ChangedMigration, Migration
from libs.postgres.migrations import migrate as apply
from services.ops.migrations import all_migrations, migrate, pending_migrations
from tests.migrations import rights_matrix, structure
from tests.rig.parts import ROLE_PASSWORDS, started, with_database

pytestmark = pytest.mark.postgres

ADMIN = "deployer"


def image_of(url: str) -> list[Any]:
    """Everything the catalogue knows of our schemas, and the ledger of migrations."""
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        columns = connection.execute(
            """
            select n.nspname, c.relname, c.relkind::text, a.attname, format_type(a.atttypid, -1),
                   a.attnotnull, c.relrowsecurity, c.relforcerowsecurity, c.reloptions
              from pg_class c join pg_namespace n on n.oid = c.relnamespace
              left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
             where n.nspname = any(%s) order by 1, 2, a.attnum
            """,
            (list(rights_matrix.SCHEMAS),),
        ).fetchall()
        functions = connection.execute(
            "select p.oid::regprocedure::text, md5(pg_get_functiondef(p.oid)) from pg_proc p "
            "join pg_namespace n on n.oid = p.pronamespace where n.nspname = any(%s) order by 1",
            (list(rights_matrix.SCHEMAS),),
        ).fetchall()
        ledger = connection.execute("select * from turnwire.migrations order by 1, 2").fetchall()
        return [columns, functions, ledger, rights_matrix.read(connection)]


async def test_applying_twice_changes_nothing(empty_database_url: str) -> None:
    url = empty_database_url
    pending = await pending_migrations(url)
    first = await migrate(url, passwords=ROLE_PASSWORDS)
    before = image_of(url)

    second = await migrate(url, passwords=ROLE_PASSWORDS)

    assert (
        [m.name for m in first] == [m.name for m in pending] == [m.name for m in all_migrations()]
    )
    assert second == []
    assert await pending_migrations(url) == []
    assert image_of(url) == before


async def test_two_that_migrate_at_once_apply_each_file_once(empty_database_url: str) -> None:
    url = empty_database_url
    applied = await asyncio.gather(migrate(url), migrate(url))

    assert sorted(len(one) for one in applied) == [0, len(all_migrations())]


async def test_a_file_that_was_changed_after_it_was_applied_is_refused(
    empty_database_url: str,
) -> None:
    url = empty_database_url
    await migrate(url)
    before = image_of(url)
    known = all_migrations()
    last = known[-1]
    changed = [*known[:-1], replace(last, text=last.text + "\n-- one more word\n")]
    more = Migration("test", "0001_more.sql", "create table turnwire.more (id int primary key)")

    with pytest.raises(ChangedMigration, match=f"{last.unit}/{last.name}"):
        await apply(url, [*changed, more])

    assert image_of(url) == before


async def test_a_file_that_fails_leaves_nothing_of_itself(empty_database_url: str) -> None:
    url = empty_database_url
    await migrate(url)
    before = image_of(url)
    broken = Migration("test", "0001_broken.sql", "create table turnwire.half (id int); select 1/0")

    with pytest.raises(psycopg.errors.DivisionByZero):
        await apply(url, [*all_migrations(), broken])

    assert image_of(url) == before


@pytest.fixture
def fresh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of this test alone: roles are the whole server's, and here nobody made them yet."""
    server = PostgresServer(
        tmp_path_factory.mktemp("fresh"), port=pick_port(), password=secrets.token_urlsafe(16)
    )
    with started(server):
        yield server.url


@pytest.fixture
def managed_database(fresh_server: str) -> str:
    """A database as a managed Postgres gives it: its owner may create roles and is no superuser."""
    password, name = secrets.token_urlsafe(16), "turnwire_managed"
    with psycopg.connect(fresh_server, autocommit=True, connect_timeout=10) as connection:
        connection.execute(
            sql.SQL("create role {} login createrole password {}").format(
                sql.Identifier(ADMIN), sql.Literal(password)
            )
        )
        connection.execute(
            sql.SQL("create database {} owner {}").format(
                sql.Identifier(name), sql.Identifier(ADMIN)
            )
        )
    return with_login(with_database(fresh_server, name), ADMIN, password)


async def test_an_owner_who_may_create_roles_can_migrate_without_being_superuser(
    managed_database: str,
) -> None:
    applied = await migrate(managed_database, passwords=ROLE_PASSWORDS)
    again = await migrate(managed_database, passwords=ROLE_PASSWORDS)

    assert len(applied) == len(all_migrations())
    assert again == []
    with psycopg.connect(managed_database, autocommit=True, connect_timeout=10) as connection:
        assert (
            rights_matrix.differences(rights_matrix.read(connection), rights_matrix.committed())
            == []
        )
        assert structure.all_faults(connection) == []
    for role, password in ROLE_PASSWORDS.items():
        url = with_login(managed_database, role, password)
        with psycopg.connect(url, connect_timeout=10) as connection:
            assert connection.execute("select current_user").fetchone() == (role,)
