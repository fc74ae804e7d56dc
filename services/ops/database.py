"""Opens the deployment's database for a command, and says plainly why it cannot be used."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from libs.errors import MisconfiguredSettings, StoreUnavailable
from libs.postgres import Database
from services.ops.failures import CommandFailed, ExitCode
from services.ops.settings import OpsSettings

CONNECT_S = 5.0  # a database that runs answers at once
VARIABLE = "TURNWIRE_OPS__DATABASE_URL"
START = "Start a local one with `turnwire up`"

_OLDER = (errors.UndefinedFunction, errors.UndefinedTable, errors.InvalidSchemaName)
_BUSY = (errors.QueryCanceled, errors.LockNotAvailable, errors.DeadlockDetected)


def database_url(settings: OpsSettings) -> str:
    """Where the deployment's database is.

    Raises:
        MisconfiguredSettings: The settings name none.
    """
    url = settings.database_url.get_secret_value()
    if not url:
        msg = (
            f"The command line does not know which database to ask. Set {VARIABLE}, or name a "
            "local stack's folder with --data-dir."
        )
        raise MisconfiguredSettings(msg)
    return url


@asynccontextmanager
async def opened_database(url: str, *, schema: str, size: int) -> AsyncIterator[Database]:
    """Connections for one command.

    A database that is away is told at once: the pool alone would try again for as long as it may,
    which is right for a service and wrong for a person.

    Raises:
        MisconfiguredSettings: The URL is none.
        CommandFailed: The database does not answer, or not to this account, or is of another
            release.
    """
    await knock(url, VARIABLE)
    try:
        database = await Database.open(url, schema=schema, size=size, timeout_s=CONNECT_S)
    except StoreUnavailable:
        msg = f"Postgres at {_place(url, VARIABLE)} stopped answering. Run the command again."
        raise CommandFailed(msg, exit_code=ExitCode.NOT_READY) from None
    try:
        with _in_plain_words():
            yield database
    finally:
        await database.close()


async def knock(url: str, variable: str) -> None:
    """Connect once and leave.

    Args:
        variable: That holds the URL, for the error's text.

    Raises:
        MisconfiguredSettings: The URL is none.
        CommandFailed: Nobody answers there, or this account is turned away.
    """
    place = _place(url, variable)
    try:
        connection = await psycopg.AsyncConnection.connect(url, connect_timeout=int(CONNECT_S))
    except psycopg.OperationalError as error:
        raise CommandFailed(
            _why(place, str(error), variable), exit_code=ExitCode.NOT_READY
        ) from None
    await connection.close()


def _place(url: str, variable: str) -> str:
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # its text would show the URL, and with it the password
        msg = (
            f"{variable} is no URL of a Postgres database. It looks like "
            "postgresql://ROLE:PASSWORD@HOST:5432/DATABASE."
        )
        raise MisconfiguredSettings(msg) from None
    return f"{parts.get('host') or 'the local socket'}:{parts.get('port') or 5432}"


def _why(place: str, told: str, variable: str) -> str:
    """What the client library says of a failed connection, with what to do about it."""
    first = told.splitlines()[0] if told else ""
    _, is_turned_away, reason = first.partition("FATAL:")
    if is_turned_away:
        return (
            f"Postgres at {place} turns us away: {reason.strip()}. See that {variable} names the "
            "right account and database."
        )
    reason = first.rpartition("failed: ")[2].rstrip(".")
    return (
        f"Postgres at {place} does not answer ({reason}). {START}, or see that {variable} is right "
        "and its server runs."
    )


@contextmanager
def _in_plain_words() -> Iterator[None]:
    try:
        yield
    except errors.InsufficientPrivilege as error:
        msg = (
            f"The account of {VARIABLE} may not do this ({error.diag.message_primary}). Use the "
            "role turnwire_ops."
        )
        raise CommandFailed(msg, exit_code=ExitCode.NOT_READY) from None
    except _OLDER as error:
        msg = (
            f"The database is not of this release ({error.diag.message_primary}). Run "
            "`turnwire migrate`."
        )
        raise CommandFailed(msg, exit_code=ExitCode.NOT_READY) from None
    except _BUSY as error:
        msg = (
            f"Postgres gave up ({error.diag.message_primary}): it is busy, or something else holds "
            "what is needed. Run the command again."
        )
        raise CommandFailed(msg, exit_code=ExitCode.NOT_READY) from None
