"""A pool of connections for one database role, and transactions that cost few round trips.

A transaction names the tenants whose rows it may see; BEGIN and that setting ride in the pipeline
of the first statements. Statements of one ``batch`` are sent together and answered together.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from libs.errors import StoreUnavailable
from libs.postgres.pipelined import Parameters, PipelinedConnection, Row, Statement

POOL_TIMEOUT_S = 5.0
"""Longest wait for a free connection; a request that waits longer is better refused."""

STATEMENT_TIMEOUT_MS = 15_000
"""Ceiling for one statement; ours take milliseconds, so only a fault reaches it."""

IDLE_IN_TRANSACTION_TIMEOUT_MS = 15_000
"""A transaction left open would hold its locks and stall vacuum."""

LOCK_TIMEOUT_MS = 2_000
"""A batch never waits longer for another conversation's slow transaction."""

CONNECT_TIMEOUT_S = 5
"""Longest wait for one connection attempt."""

RECONNECT_TIMEOUT_S = 600.0
"""How long the pool tries to replace a lost connection before it reports the failure."""

_NAME_TENANTS = "select set_config('app.tenant_ids', %(tenants)s, true)"


class Transaction:
    """One open transaction; made by ``Database.transaction`` only."""

    def __init__(self, connection: PipelinedConnection, tenants: str) -> None:
        self._connection = connection
        self._unnamed = tenants
        self.is_committed = False

    async def batch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run statements in order, in one round trip; rows of each, empty where it returns none."""
        return await self._run(statements, commit=False)

    async def fetch(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Run one statement and return its rows."""
        return (await self._run([(sql, parameters or {})], commit=False))[0]

    async def execute(self, sql: str, parameters: Parameters | None = None) -> None:
        """Run one statement for its effect."""
        await self._run([(sql, parameters or {})], commit=False)

    async def name_tenants(self, tenants: Collection[UUID]) -> None:
        """Name the tenants of this transaction later, for sweeps that learn them from a claim."""
        await self._run([(_NAME_TENANTS, {"tenants": _joined(tenants)})], commit=False)

    async def commit_with(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run the last statements and COMMIT in one round trip; nothing may follow.

        Raises:
            StoreUnavailable: The connection was lost: whether it committed is unknown. Running the
                whole unit of work again from its reads is safe by inbox, natural keys and fences.
        """
        rows = await self._run(statements, commit=True)
        self.is_committed = True
        return rows

    async def _run(self, statements: Sequence[Statement], *, commit: bool) -> list[list[Row]]:
        if not self._unnamed:
            return await self._connection.run(statements, commit=commit)
        named: Statement = (_NAME_TENANTS, {"tenants": self._unnamed})
        self._unnamed = ""
        return (await self._connection.run([named, *statements], commit=commit))[1:]


class Session:
    """One connection of its own, outside the pool: for session locks and lease beats.

    It connects when first used and again after it was lost; whoever holds session locks must take
    them again when ``connected_no`` has changed.
    """

    def __init__(self, url: str, options: str) -> None:
        self._url = url
        self._options = options
        self._connection: psycopg.AsyncConnection[Row] | None = None
        self.connected_no = 0

    async def fetch(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Run one statement by itself and return its rows.

        Raises:
            StoreUnavailable: No connection, or it was lost; the next call connects again.
        """
        try:
            connection = await self._connected()
            cursor = await connection.execute(sql, parameters or {}, prepare=True)
            return await cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            if self._connection is None or self._connection.closed:
                msg = "the session's connection to Postgres was lost"
                raise StoreUnavailable(msg) from error
            raise

    async def close(self) -> None:
        """Close the connection, and with it give back its session locks."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _connected(self) -> psycopg.AsyncConnection[Row]:
        if self._connection is None or self._connection.closed:
            self._connection = await psycopg.AsyncConnection[Row].connect(
                self._url,
                autocommit=True,
                row_factory=dict_row,
                options=self._options,
                connect_timeout=CONNECT_TIMEOUT_S,
            )
            self.connected_no += 1
        return self._connection


class Database:
    """Connections of one service's role to its schema.

    Attributes:
        schema: The service's own schema, first in the search path.
    """

    def __init__(
        self, pool: AsyncConnectionPool[PipelinedConnection], *, url: str, schema: str
    ) -> None:
        self._pool = pool
        self._url = url
        self.schema = schema
        self._check: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        schema: str,
        size: int = 8,
        timeout_s: float = 10.0,
        is_checked: bool = False,
    ) -> "Database":
        """Open the pool and wait until one connection works.

        Args:
            schema: Put in front of the search path, so that mechanics find their own tables.
            size: Connections at most; transactions are short, so a few serve many tasks.
            timeout_s: Longest wait for the first connection.
            is_checked: Ask a connection whether it still lives before it is used. One round trip
                more each time, and no transaction fails because Postgres was started again.

        Raises:
            StoreUnavailable: No connection in that time.
        """
        pool: AsyncConnectionPool[PipelinedConnection] = AsyncConnectionPool(
            url,
            connection_class=PipelinedConnection,
            kwargs={
                "row_factory": dict_row,
                "options": _options(schema),
                "connect_timeout": CONNECT_TIMEOUT_S,
                "application_name": f"turnwire-{schema}",
            },
            min_size=min(2, size),
            max_size=size,
            timeout=POOL_TIMEOUT_S,
            check=AsyncConnectionPool.check_connection if is_checked else None,
            reconnect_timeout=RECONNECT_TIMEOUT_S,
            open=False,
        )
        try:
            await pool.open(wait=True, timeout=timeout_s)
        except PoolTimeout as error:
            await pool.close()
            msg = f"no connection to Postgres as schema {schema} within {timeout_s:g} s: {error}"
            raise StoreUnavailable(msg) from error
        return cls(pool, url=url, schema=schema)

    def session(self) -> Session:
        """A connection of its own with the same rights; the caller closes it."""
        return Session(self._url, _options(self.schema))

    async def close(self) -> None:
        """Close all connections."""
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)
        await self._pool.close()

    @asynccontextmanager
    async def transaction(self, tenants: Collection[UUID] = ()) -> AsyncIterator[Transaction]:
        """Open a transaction that sees the policy rows of ``tenants`` and no others.

        Commits at the end unless ``commit_with`` did; rolls back on any exception.

        Raises:
            StoreUnavailable: No connection was free in time, or it was lost on the way.
        """
        try:
            async with self._pool.connection() as connection:
                transaction = Transaction(connection, _joined(tenants))
                try:
                    yield transaction
                    if not transaction.is_committed:
                        await connection.commit()
                except psycopg.Error as error:
                    # Lost connections often come without an sqlstate: the connection itself tells.
                    if connection.closed or isinstance(error, _CONNECTION_ENDED):
                        self._check_soon()
                        msg = "the connection to Postgres was lost during a transaction"
                        raise StoreUnavailable(msg) from error
                    raise
        except PoolTimeout as error:
            msg = f"no Postgres connection became free within {POOL_TIMEOUT_S:g} s"
            raise StoreUnavailable(msg) from error

    async def fetch(
        self, sql: str, parameters: Parameters | None = None, *, tenants: Collection[UUID] = ()
    ) -> list[Row]:
        """One statement in a transaction of its own; two round trips become one."""
        async with self.transaction(tenants) as transaction:
            return (await transaction.commit_with([(sql, parameters or {})]))[0]

    def _check_soon(self) -> None:
        """Replace dead connections now; otherwise each costs a later transaction its failure."""
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._replace_dead_connections())

    async def _replace_dead_connections(self) -> None:
        try:
            await self._pool.check()
        except psycopg.Error:
            return  # Postgres is still away: the pool reconnects by itself


_CONNECTION_ENDED = (
    psycopg.errors.AdminShutdown,
    psycopg.errors.CrashShutdown,
    psycopg.errors.CannotConnectNow,
)


def _options(schema: str) -> str:
    return (
        f"-c search_path={schema},turnwire -c statement_timeout={STATEMENT_TIMEOUT_MS} "
        f"-c lock_timeout={LOCK_TIMEOUT_MS} "
        f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_TIMEOUT_MS} "
        # Row policies make the planner expect almost no rows, and a plan cached while a table was
        # small would scan it for ever. Every statement of ours has an index to walk.
        "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off "
        # So a plan made once is as good as one made for each call's parameters, and making one
        # costs as much as running it.
        "-c plan_cache_mode=force_generic_plan"
    )


def _joined(tenants: Collection[UUID]) -> str:
    return ",".join(sorted({str(tenant) for tenant in tenants}))
