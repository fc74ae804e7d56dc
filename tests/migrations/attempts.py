"""Finds out what a role can really do, by trying it; nothing that is tried is kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors, sql

Connection = psycopg.Connection[Any]

OWN_STATES = "TW"
"""What our functions raise begins with this."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view.

    Attributes:
        columns: Name, and whether it may be assigned to.
        inserted: Columns that an insert may name: all but computed ones, of tables and views.
    """

    schema: str
    name: str
    columns: Sequence[tuple[str, bool]]
    inserted: Sequence[str]
    is_table: bool

    @property
    def full_name(self) -> str:
        """As the matrix names it."""
        return f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        """For a statement."""
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Function:
    """A function, and its arguments as types."""

    full_name: str
    schema: str
    name: str
    types: Sequence[str]


def relations(connection: Connection, schemas: Sequence[str]) -> list[Relation]:
    """Every table and view of these schemas."""
    rows = connection.execute(
        """
        select n.nspname, c.relname,
               array_agg(a.attname::text order by a.attnum),
               array_agg(a.attidentity = '' and a.attgenerated = '' order by a.attnum),
               array_agg(a.attgenerated = '' and (c.relkind in ('r', 'p')
                         or pg_column_is_updatable(c.oid, a.attnum, false)) order by a.attnum),
               c.relkind in ('r', 'p')
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
          join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
         where n.nspname = any(%s) and c.relkind in ('r', 'p', 'v', 'm')
         group by 1, 2, 6 order by 1, 2
        """,
        (list(schemas),),
    ).fetchall()
    return [
        Relation(
            schema,
            name,
            list(zip(columns, free, strict=True)),
            [column for column, is_stored in zip(columns, stored, strict=True) if is_stored],
            is_table,
        )
        for schema, name, columns, free, stored, is_table in rows
    ]


def functions(connection: Connection, schemas: Sequence[str]) -> list[Function]:
    """Every function of these schemas."""
    rows = connection.execute(
        """
        select n.nspname || '.' || p.proname || '('
               || pg_get_function_identity_arguments(p.oid) || ')',
               n.nspname, p.proname,
               array(select format_type(t, null)
                       from unnest(p.proargtypes) with ordinality x (t, no) order by no)
          from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where n.nspname = any(%s) order by 1
        """,
        (list(schemas),),
    ).fetchall()
    return [Function(*row) for row in rows]


def is_allowed(connection: Connection, statement: sql.SQL | sql.Composed, *, about: str) -> bool:
    """Run a statement and undo it; whether the right to it was there.

    A failure of another kind comes after the check of rights, so it counts as allowed.

    Args:
        about: Name in the refusal of the thing itself; a refusal about anything else is a fault.
    """
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement)
    except errors.InsufficientPrivilege as error:
        refusal = str(error.diag.message_primary)
    except psycopg.Error as error:
        # Nulls where none may stand. A wrong statement of ours is none of these.
        nulls = (psycopg.DataError, psycopg.IntegrityError, psycopg.InternalError)
        if not isinstance(error, nulls) and not (error.sqlstate or "").startswith(OWN_STATES):
            raise
        return True
    else:
        return True
    assert refusal.startswith("permission denied for"), refusal
    assert refusal.rsplit(" ", 1)[-1] == about, f"allowed, but then: {refusal}"
    return False


def verbs_on(connection: Connection, relation: Relation) -> list[str]:
    """What can be done to a table or view; no statement touches a row."""
    table = relation.identifier
    free = next(name for name, is_free in relation.columns if is_free)
    statements = {
        "select": sql.SQL("select * from {} limit 0").format(table),
        "insert": sql.SQL(
            "insert into {0} ({1}) overriding system value select {2} where false"
        ).format(
            table,
            sql.SQL(", ").join(map(sql.Identifier, relation.inserted)),
            sql.SQL(", ").join(
                sql.SQL("(null::{}).{}").format(table, sql.Identifier(name))
                for name in relation.inserted
            ),
        ),
        "update": _update(relation, free),
        "delete": sql.SQL("delete from {} where false").format(table),
    }
    if relation.is_table:
        statements["truncate"] = sql.SQL("truncate {}").format(table)
    found = [
        verb
        for verb, statement in statements.items()
        if is_allowed(connection, statement, about=relation.name)
    ]
    if "select" not in found:
        readable = [name for name, _ in relation.columns if _can_read(connection, relation, name)]
        if readable:
            found.append(f"select ({', '.join(sorted(readable))})")
    if relation.is_table and "update" not in found:
        changeable = [
            name
            for name, is_free in relation.columns
            if is_free and is_allowed(connection, _update(relation, name), about=relation.name)
        ]
        if changeable:
            found.append(f"update ({', '.join(sorted(changeable))})")
    return found


def _update(relation: Relation, column: str) -> sql.Composed:
    return sql.SQL("update {} set {} = default where false").format(
        relation.identifier, sql.Identifier(column)
    )


def _can_read(connection: Connection, relation: Relation, column: str) -> bool:
    statement = sql.SQL("select {} from {} limit 0").format(
        sql.Identifier(column), relation.identifier
    )
    return is_allowed(connection, statement, about=relation.name)


def can_call(connection: Connection, function: Function) -> bool:
    """Whether a function can be called; its arguments are null, and what it did is undone."""
    nulls = sql.SQL(", ").join(sql.SQL("null::" + type_) for type_ in function.types)
    statement = sql.SQL("select {}({})").format(
        sql.Identifier(function.schema, function.name), nulls
    )
    return is_allowed(connection, statement, about=function.name)
