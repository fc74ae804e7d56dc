"""One row of each of two tenants in every table, and calls of every published read.

What the rows say is of no interest here, only whose they are: check constraints are dropped and
foreign keys are not looked at. All ids of one tenant are one id, so every join finds its partner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.migrations.rights_matrix import SCHEMAS

Connection = psycopg.Connection[Any]

MARK = UUID("1f0d3c52-6b8e-4f0a-9a4c-7d1e2b3c4d5e")
SAID = {"role": "user", "status": "completed", "kind": "main", "outcome": "accepted"}
"""What the published reads look at."""
NEVER = frozenset({"deleted_at", "purge_at", "answer_deleted_at"})
"""What is gone is not read; here everything is there."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant, and the one id of everything it has."""

    id: UUID

    @property
    def thing(self) -> UUID:
        """Conversation, branch, turn, message, step and principal at once."""
        return uuid5(self.id, "thing")

    @property
    def canary(self) -> str:
        """Stands in every text of this tenant."""
        return f"canary-{self.id.hex[:12]}"


FIRST, SECOND = Tenant(uuid5(MARK, "first")), Tenant(uuid5(MARK, "second"))


def fill(connection: Connection) -> list[str]:
    """Insert one row of each tenant into every table that has tenants; returns the tables."""
    tables: dict[str, list[tuple[str, str]]] = {}
    for schema, table, column, kind in connection.execute(
        """
        select n.nspname, c.relname, a.attname, format_type(a.atttypid, null)
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
          join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
         where n.nspname = any(%s) and c.relkind in ('r', 'p') and a.attidentity = ''
           and a.attgenerated = ''
         order by 1, 2, a.attnum
        """,
        (list(SCHEMAS),),
    ).fetchall():
        tables.setdefault(f"{schema}.{table}", []).append((column, kind))
    filled = [name for name, columns in tables.items() if ("tenant_id", "uuid") in columns]
    with connection.transaction():
        _drop_checks(connection)
        connection.execute("set local session_replication_role = replica")
        for name in filled:
            for tenant in (FIRST, SECOND):
                _insert(connection, name, row_of(name, tables[name], tenant))
    return sorted(filled)


def row_of(name: str, columns: Sequence[tuple[str, str]], tenant: Tenant) -> dict[str, Any]:
    """A tenant's row of one table."""
    row = {column: _value(column, kind, tenant) for column, kind in columns}
    if name == "ingestion.open_turns":
        row["turn_id"] = uuid5(tenant.id, "another turn")  # history leaves open turns out
    return row


def _value(column: str, kind: str, tenant: Tenant) -> Any:
    if column == "tenant_id":
        return tenant.id
    if column in NEVER:
        return None
    values: Mapping[str, Any] = {
        "uuid": tenant.thing,
        "uuid[]": [tenant.thing],
        "bigint[]": [2**62],
        "text": SAID.get(column, tenant.canary),
        "text[]": [tenant.canary],
        "jsonb": Jsonb({"canary": tenant.canary}),
        "json": Jsonb({"canary": tenant.canary}),
        "bytea": tenant.canary.encode().ljust(32, b"."),
        "boolean": True,
        "timestamp with time zone": "2026-01-31T09:40:00Z",
    }
    return values.get(kind, 1)  # numbers of any kind


def _insert(connection: Connection, name: str, row: Mapping[str, Any]) -> None:
    connection.execute(insert_statement(name, row), row)


def insert_statement(name: str, row: Mapping[str, Any]) -> sql.Composed:
    """For a row as ``row_of`` makes it."""
    return sql.SQL("insert into {} ({}) values ({})").format(
        sql.Identifier(*name.split(".")),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join(map(sql.Placeholder, row)),
    )


def _drop_checks(connection: Connection) -> None:
    for table, constraint in connection.execute(
        """
        select c.conrelid::regclass::text, c.conname from pg_constraint c
          join pg_namespace n on n.oid = c.connamespace
         where n.nspname = any(%s) and c.contype = 'c'
        """,
        (list(SCHEMAS),),
    ).fetchall():
        connection.execute(
            sql.SQL("alter table {} drop constraint {}").format(
                sql.Identifier(*table.split(".")), sql.Identifier(constraint)
            )
        )


@dataclass(frozen=True, slots=True)
class PublishedRead:
    """A function or view by which one service reads another's rows.

    Attributes:
        reader: A login role that may use it.
        arguments: Name and type; None for a view.
    """

    name: str
    reader: str
    arguments: Sequence[tuple[str, str]] | None

    @property
    def is_of_the_whole_tenant(self) -> bool:
        """Whether nothing but a tenant is named, so that there is no thing of somebody else."""
        things = [name for name, kind in self.arguments or () if kind.startswith("uuid")]
        return things == ["tenant"]

    def statement(self, tenant: Tenant, thing: UUID) -> tuple[sql.Composed, dict[str, Any]]:
        """Ask for a thing of a tenant; a view is read as a whole."""
        identifier = sql.Identifier(*self.name.split("."))
        if self.arguments is None:
            return sql.SQL("select * from {}").format(identifier), {}
        values = {name: _argument(name, kind, tenant, thing) for name, kind in self.arguments}
        call = sql.SQL(", ").join(
            sql.SQL("{} => {}::" + kind).format(sql.Identifier(name), sql.Placeholder(name))
            for name, kind in self.arguments
        )
        return sql.SQL("select * from {}({})").format(identifier, call), values


def _argument(name: str, kind: str, tenant: Tenant, thing: UUID) -> Any:
    known: Mapping[str, Any] = {
        "tenants": [tenant.id],
        "tenant": tenant.id,
        "after": None,
        "before": None,
        "descending": False,
        "max_rows": 10,
        "max_count": 10,
        "max_characters": 100,
        "before_seqs": [2],
        "branch": None,
        "query": None,
        "needle": tenant.canary,
        "kinds": [SAID["kind"]],
        "of_kind": SAID["kind"],
        "versions": [1],
        "attempts": [1],
        "tokenizers": [tenant.canary],
    }
    if name in known:
        return known[name]
    return [thing] if kind == "uuid[]" else thing


def published_reads(connection: Connection) -> list[PublishedRead]:
    """Every function and view whose name ends in ``_v1``."""
    functions = connection.execute(
        """
        select n.nspname || '.' || p.proname, p.proargnames,
               array(select format_type(t, null)
                       from unnest(p.proargtypes) with ordinality x (t, no) order by no),
               (select min(rolname) from pg_roles where rolname like 'turnwire\\_%%'
                   and has_function_privilege(oid, p.oid, 'execute'))
          from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where n.nspname = any(%s) and p.proname like '%%\\_v1' order by 1
        """,
        (list(SCHEMAS),),
    ).fetchall()
    views = connection.execute(
        """
        select n.nspname || '.' || c.relname,
               (select min(rolname) from pg_roles where rolname like 'turnwire\\_%%'
                   and has_table_privilege(oid, c.oid, 'select'))
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = any(%s) and c.relkind in ('v', 'm') and c.relname like '%%\\_v1'
         order by 1
        """,
        (list(SCHEMAS),),
    ).fetchall()
    return [
        PublishedRead(name, reader, list(zip(names, types, strict=False)))
        for name, names, types, reader in functions
    ] + [PublishedRead(name, reader, None) for name, reader in views]
