"""Applies numbered SQL files once each, in order, one transaction a file.

Files are named ``NNNN_{pre|post}_what.sql`` (units of a service) or ``NNNN_what.sql``: *pre* runs
before the new code, *post* after it. An applied file is frozen: its checksum is compared.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from libs.errors import MisconfiguredSettings, StoreUnavailable

_LOCK = 7_726_021  # any constant: two migrations of one database never run side by side
_LEDGER = """
create schema if not exists turnwire;
create table if not exists turnwire.migrations (
  unit text not null,
  name text not null,
  sha256 text not null,
  applied_at timestamptz not null,
  primary key (unit, name)
)
"""
CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_MS = 60_000
"""How long one migration waits for another that is running."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file.

    Attributes:
        unit: Who owns it: ``postgres`` for what all share, else a service's folder name.
    """

    unit: str
    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Checksum of the text, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class ChangedMigration(MisconfiguredSettings):
    """A file that was applied here has another text now."""

    code = "migration.changed"


async def migrate(
    url: str, migrations: Sequence[Migration], *, passwords: Mapping[str, str] | None = None
) -> list[Migration]:
    """Apply what is missing and return it; nothing to do is the empty list.

    Args:
        url: Of a role that may create roles and schemas.
        migrations: In the order in which they apply.
        passwords: Login role -> password to set; roles left out keep theirs.

    Raises:
        ChangedMigration: An applied file was edited.
        StoreUnavailable: No connection.
    """
    try:
        connection = await psycopg.AsyncConnection.connect(
            url,
            connect_timeout=CONNECT_TIMEOUT_S,
            autocommit=True,
            application_name="turnwire-migrate",
        )
    except psycopg.OperationalError as error:
        msg = f"migrations cannot connect to Postgres: {error}"
        raise StoreUnavailable(msg) from error
    async with connection:
        await connection.execute(f"set lock_timeout = {LOCK_TIMEOUT_MS}")
        await connection.execute("set client_min_messages = warning")
        await connection.execute("select pg_advisory_lock(%s)", (_LOCK,))
        await connection.execute(_LEDGER)
        applied = await _applied(connection)
        missing = [m for m in migrations if _is_missing(m, applied)]
        for migration in missing:
            await _apply(connection, migration)
        for role, password in (passwords or {}).items():
            statement = sql.SQL("alter role {} password {}").format(
                sql.Identifier(role), sql.Literal(password)
            )
            await connection.execute(statement)
        await connection.execute("select pg_advisory_unlock(%s)", (_LOCK,))
    return missing


async def pending(url: str, migrations: Sequence[Migration]) -> list[Migration]:
    """What ``migrate`` would apply, without applying it."""
    try:
        connection = await psycopg.AsyncConnection.connect(
            url, connect_timeout=CONNECT_TIMEOUT_S, autocommit=True
        )
    except psycopg.OperationalError as error:
        msg = f"cannot connect to Postgres: {error}"
        raise StoreUnavailable(msg) from error
    async with connection:
        applied = await _applied(connection)
    return [m for m in migrations if _is_missing(m, applied)]


def _is_missing(migration: Migration, applied: Mapping[tuple[str, str], str]) -> bool:
    known = applied.get((migration.unit, migration.name))
    if known is not None and known != migration.sha256:
        msg = (
            f"migration {migration.unit}/{migration.name} was changed after it was applied here; "
            "put its text back and write a new file"
        )
        raise ChangedMigration(msg)
    return known is None


async def _applied(connection: psycopg.AsyncConnection) -> dict[tuple[str, str], str]:
    cursor = await connection.execute("select to_regclass('turnwire.migrations') is not null")
    row = await cursor.fetchone()
    if row is None or not row[0]:
        return {}
    cursor = await connection.execute("select unit, name, sha256 from turnwire.migrations")
    return {(unit, name): digest for unit, name, digest in await cursor.fetchall()}


async def _apply(connection: psycopg.AsyncConnection, migration: Migration) -> None:
    async with connection.transaction():
        # The text is a file of this repository; many statements need the simple protocol.
        await connection.execute(migration.text)
        await connection.execute("reset role")
        await connection.execute(
            "insert into turnwire.migrations (unit, name, sha256, applied_at) "
            "values (%s, %s, %s, current_timestamp)",
            (migration.unit, migration.name, migration.sha256),
        )
