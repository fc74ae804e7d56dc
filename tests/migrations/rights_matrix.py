"""Reads what every role may do in a migrated database, and keeps it as a file for review.

``python -m tests.migrations.rights_matrix`` writes ``rights_matrix.yaml`` again; whoever changes a
grant reads the difference before it is committed.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import yaml

from services.ops.migrations import migrate
from tests.rig import parts

PATH = Path(__file__).with_name("rights_matrix.yaml")

SCHEMAS = ("turnwire", "frontend_gateway", "ingestion", "context_assembly", "llm_gateway")
SERVICES = SCHEMAS[1:]
LOGINS = (*(f"turnwire_{service}" for service in SERVICES), "turnwire_ops")
WITHOUT_LOGIN = tuple(
    f"{service}_{kind}" for service in SERVICES for kind in ("owner", "reader", "maint")
)
PUBLIC = "public"
ROLES = (PUBLIC, *LOGINS, *WITHOUT_LOGIN)

VERBS: Mapping[str, Sequence[str]] = {
    "schemas": ("usage", "create"),
    "tables": ("select", "insert", "update", "delete", "truncate", "references", "trigger"),
    "views": ("select", "insert", "update", "delete", "truncate", "references", "trigger"),
    "sequences": ("usage", "select", "update"),
    "functions": ("execute",),
}
COLUMN_VERBS = ("select", "insert", "update", "references")

Matrix = dict[str, dict[str, dict[str, list[str]]]]
"""Kind -> object -> role -> verbs; ``owner`` stands for all, public's rights are public's alone."""

_OBJECTS = {
    "schemas": """
        select n.nspname as name, n.oid, n.nspowner as owner from pg_namespace n
         where n.nspname = any(%(schemas)s) or n.nspname = 'public'""",
    "tables": """
        select n.nspname || '.' || c.relname as name, c.oid, c.relowner as owner
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = any(%(schemas)s) and c.relkind in ('r', 'p')""",
    "views": """
        select n.nspname || '.' || c.relname as name, c.oid, c.relowner as owner
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = any(%(schemas)s) and c.relkind in ('v', 'm')""",
    "sequences": """
        select n.nspname || '.' || c.relname as name, c.oid, c.relowner as owner
          from pg_class c join pg_namespace n on n.oid = c.relnamespace
         where n.nspname = any(%(schemas)s) and c.relkind = 'S'""",
    "functions": """
        select n.nspname || '.' || p.proname || '('
               || pg_get_function_identity_arguments(p.oid) || ')' as name,
               p.oid, p.proowner as owner
          from pg_proc p join pg_namespace n on n.oid = p.pronamespace
         where n.nspname = any(%(schemas)s)""",
}
_HAS = {
    "schemas": "has_schema_privilege",
    "tables": "has_table_privilege",
    "views": "has_table_privilege",
    "sequences": "has_sequence_privilege",
    "functions": "has_function_privilege",
}


def read(connection: psycopg.Connection[Any]) -> Matrix:
    """The matrix of this database, as its catalogue tells it."""
    matrix: Matrix = {}
    for kind, query in _OBJECTS.items():
        found = connection.execute(query, {"schemas": list(SCHEMAS)}).fetchall()
        matrix[kind] = {
            name: _rights(connection, kind, oid, owner) for name, oid, owner in sorted(found)
        }
    return matrix


def _rights(
    connection: psycopg.Connection[Any], kind: str, oid: int, owner: int
) -> dict[str, list[str]]:
    verbs = list(VERBS[kind])
    rows = connection.execute(
        f"""
        select r.role, coalesce(r.role = pg_get_userbyid(%(owner)s::oid), false),
               array(select v from unnest(%(verbs)s::text[]) with ordinality as x (v, no)
                      where {_HAS[kind]}(r.role, %(oid)s::oid, v) order by no)
          from unnest(%(roles)s::name[]) with ordinality as r (role, no) order by r.no
        """,  # noqa: S608 -- the name of a function from the table above
        {"owner": owner, "verbs": verbs, "oid": oid, "roles": list(ROLES)},
    ).fetchall()
    everybody: set[str] = set()
    rights: dict[str, list[str]] = {}
    for role, is_owner, granted in rows:
        if role == PUBLIC:
            everybody = set(granted)
        shown = [verb for verb in granted if role == PUBLIC or verb not in everybody]
        if kind in ("tables", "views") and not is_owner:
            shown += _column_rights(connection, oid, role, granted)
        if is_owner:
            shown = ["owner"]
        if shown:
            rights[role] = shown
    return rights


def _column_rights(
    connection: psycopg.Connection[Any], oid: int, role: str, granted: Sequence[str]
) -> list[str]:
    """Rights on single columns, such as ``select (at, id)``, where the table's own are missing."""
    found = []
    for verb in COLUMN_VERBS:
        if verb in granted:
            continue
        rows = connection.execute(
            """
            select attname from pg_attribute
             where attrelid = %(oid)s and attnum > 0 and not attisdropped
               and has_column_privilege(%(role)s::name, %(oid)s::oid, attnum, %(verb)s)
             order by attname
            """,
            {"oid": oid, "role": role, "verb": verb},
        ).fetchall()
        if rows:
            found.append(f"{verb} ({', '.join(name for (name,) in rows)})")
    return found


def committed() -> Matrix:
    """The matrix that was reviewed."""
    matrix: Matrix = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return matrix


def differences(actual: Matrix, expected: Matrix) -> list[str]:
    """One line for every right that is there and should not be, or the other way round."""
    return [
        f"{sign} {kind} {name}: {role} {verb}"
        for sign, have, other in (("+", actual, expected), ("-", expected, actual))
        for kind, objects in have.items()
        for name, roles in objects.items()
        for role, verbs in (roles or {"nobody": ["exists"]}).items()
        for verb in verbs
        if not _holds(other, (kind, name, role, verb))
    ]


def _holds(matrix: Matrix, right: tuple[str, str, str, str]) -> bool:
    kind, name, role, verb = right
    objects = matrix.get(kind, {})
    if name not in objects:
        return False
    return role == "nobody" or verb in (objects[name] or {}).get(role, [])


def write(matrix: Matrix) -> None:
    """Store the matrix for review."""
    head = (
        "# What each role may do: kind -> object -> role -> verbs. Not listed is not allowed;\n"
        '# "owner" stands for all verbs, and what public may do everybody may.\n'
        "# Written by: python -m tests.migrations.rights_matrix\n"
    )
    body = yaml.safe_dump(matrix, sort_keys=False, default_flow_style=None, width=400)
    PATH.write_text(head + body, encoding="utf-8")


def main() -> None:
    """Migrate a database of its own and write the file from it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        parts.postgres(Path(folder)) as server,
        parts.fresh_database(server) as database,
    ):
        parts.run(migrate(database.admin_url, passwords=parts.ROLE_PASSWORDS))
        with psycopg.connect(database.admin_url, autocommit=True) as connection:
            write(read(connection))


if __name__ == "__main__":
    main()
