"""The real SQL on a real Postgres, one call at a time.

A call blocks the whole process, so while one is in flight nobody acts and virtual time stands
still. Connections are kept from run to run; what a run sees of lost ones is played.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import pq, sql, waiting
from psycopg.rows import dict_row
from psycopg_pool import PoolTimeout

from deploy.local.ports import pick_port
from deploy.local.postgres import PostgresServer
from libs.errors import StoreUnavailable
from libs.postgres import Database
from libs.postgres.database import _options
from libs.postgres.pipelined import PipelinedConnection, Row, Statement
from tests.rig import parts
from tests.sim.process import Process, running, wall_time

NOT_DURABLE = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "jit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "64MB",
}
"""A run never reads what an earlier run left, and nothing may happen that no actor did."""

CLOCK = """
create or replace function turnwire.clock() returns timestamptz language sql stable parallel safe
as $$ select current_setting('sim.now')::timestamptz $$
"""
WAIT_S = 1.0
"""Between two looks whether somebody has interrupted us; an answer is taken at once."""

REFUSAL_S = 1.0
"""A process waits so long for a connection before it is told that there is none."""

SET_NOW = "select set_config('sim.now', %(now)s, false)"
OWN_TABLES = """
select format('%I.%I', n.nspname, c.relname) as name from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where c.relkind = 'r' and n.nspname in
       ('frontend_gateway', 'ingestion', 'context_assembly', 'llm_gateway')
 order by 1
"""

Rewrite = Callable[[str], str]
"""What the house sends -> what the server gets; the identity, or a mutant's doing."""


class ServerWithoutDurability(PostgresServer):
    """For simulations only: a crash of this server would lose everything."""

    def __init__(self, folder: Path, *, port: int, password: str) -> None:
        super().__init__(folder, port=port, password=password)
        self._settings = {**self._settings, **NOT_DURABLE}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """URL of a superuser of a fresh server, for as long as the block runs."""
    with parts.started(
        ServerWithoutDurability(folder, port=pick_port(), password="simulated")
    ) as started:
        yield started.url


class SimConnection(PipelinedConnection):
    """A connection whose calls block, and whose transactions begin by telling the virtual time."""

    now: Callable[[], float]
    rewrite: Rewrite
    note: Callable[[str], None]
    fate: str | None = None

    async def wait(self, gen: Any, *_arguments: Any, **_options: Any) -> Any:
        """Block until the server has answered."""
        return waiting.wait(gen, self.pgconn.socket, interval=WAIT_S)

    async def run(self, statements: Sequence[Statement], *, commit: bool) -> list[list[Row]]:
        """See ``PipelinedConnection.run``."""
        begins = self.pgconn.transaction_status == pq.TransactionStatus.IDLE
        sent = [(self.rewrite(text), parameters) for text, parameters in statements]
        if begins:
            sent.insert(0, (SET_NOW, {"now": wall_time(self.now()).isoformat()}))
        if commit and self.fate == "lost_request":
            await self._lose()
        try:
            rows = await super().run(sent, commit=commit)
        except psycopg.Error as error:
            self.note(f"sql {type(error).__name__}")
            raise
        rows = rows[1:] if begins else rows
        self.note(f"sql {len(statements)} {'commit' if commit else ''} {_told(rows)}")
        if commit and self.fate == "lost_reply":
            await self._lose()
        return rows

    async def commit(self) -> None:
        """Commit, unless the connection is about to be lost first."""
        if self.fate == "lost_request":
            await self._lose()
        await super().commit()
        if self.fate == "lost_reply":
            await self._lose()

    async def _lose(self) -> None:
        self.fate = None
        await self.rollback()
        msg = "the simulation cut this connection"
        raise psycopg.errors.AdminShutdown(msg)


def _told(rows: list[list[Row]]) -> str:
    return ";".join(repr([tuple(row.values()) for row in one]) for one in rows)


class Store:
    """One database of one worker, and the connections that its runs share."""

    def __init__(self, admin_url: str, url_of: Callable[[str], str], *, rewrite: Rewrite) -> None:
        self.admin_url = admin_url
        self._url_of = url_of
        self._rewrite = rewrite
        self._free: dict[str, list[SimConnection]] = {}
        self._now: Callable[[], float] = lambda: 0.0
        self._note: Callable[[str, str], None] = lambda _who, _what: None
        self._away_until = 0.0
        self.sessions: list[SimSession] = []
        self._admin = psycopg.connect(admin_url, autocommit=True, row_factory=dict_row)
        self._admin.execute(CLOCK)
        self._begin = self._statement_to_begin()

    def close(self) -> None:
        """Close every connection."""
        self._admin.close()
        for connections in self._free.values():
            for connection in connections:
                connection.pgconn.finish()

    def begin_run(self, now: Callable[[], float], note: Callable[[str, str], None]) -> None:
        """Empty the tables, restart the sequences, and follow another run's time."""
        self._now, self._note = now, note
        self._away_until = 0.0
        self.sessions = []
        self._admin.execute(self._begin)

    def rows(self, text: str, *values: object) -> list[dict[str, Any]]:
        """Rows as the superuser sees them."""
        return self.at_present().execute(text, values).fetchall()

    def at_present(self) -> psycopg.Connection[dict[str, Any]]:
        """The superuser's connection, its clock at the present virtual time."""
        self._admin.execute(
            "select set_config('sim.now', %s, false)", [wall_time(self._now()).isoformat()]
        )
        return self._admin

    @property
    def is_away(self) -> bool:
        """Whether the server is being started again."""
        return self._now() < self._away_until

    def restart(self, for_s: float) -> None:
        """Refuse everybody for so long; every session and its locks are gone."""
        self._away_until = self._now() + for_s
        for session in self.sessions:
            session.drop()

    def come_back(self) -> None:
        """Answer again at once."""
        self._away_until = 0.0

    def take(self, schema: str) -> SimConnection:
        """A free connection of a service's role."""
        waiting_here = self._free.setdefault(schema, [])
        connection = waiting_here.pop() if waiting_here else self._connect(schema)
        connection.fate = None
        connection.now = self._now
        connection.rewrite = self._rewrite
        connection.note = lambda what: self._note(running().name, what)
        return connection

    def give_back(self, schema: str, connection: SimConnection) -> None:
        """Take a connection back, with whatever it had open undone."""
        if connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
            connection.pgconn.exec_(b"rollback")
        if connection.pgconn.transaction_status == pq.TransactionStatus.IDLE:
            self._free[schema].append(connection)
        else:
            connection.pgconn.finish()

    def _connect(self, schema: str) -> SimConnection:
        conninfo = psycopg.conninfo.make_conninfo(self._url_of(schema), options=_options(schema))
        connection = SimConnection(pq.PGconn.connect(conninfo.encode()))
        connection.row_factory = dict_row  # type: ignore[assignment]
        return connection

    def _statement_to_begin(self) -> sql.Composed:
        """Empties every table and puts back the rows that belong to the release."""
        names = [row["name"] for row in self._admin.execute(OWN_TABLES).fetchall()]
        tables = [sql.SQL(name) for name in names]
        statements = [
            sql.SQL("truncate {} restart identity cascade").format(sql.SQL(", ").join(tables))
        ]
        self._admin.execute("create schema released")
        for number, table in enumerate(tables):
            kept = sql.SQL("released.{}").format(sql.Identifier(f"t{number}"))
            made = self._admin.execute(sql.SQL("create table {} as table {}").format(kept, table))
            if made.rowcount:
                statements.append(sql.SQL("insert into {} table {}").format(table, kept))
        return sql.SQL("; ").join(statements)


class SimPool:
    """The pool of one process; stands where psycopg's own does."""

    def __init__(self, store: Store, schema: str) -> None:
        self._store = store
        self._schema = schema

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[SimConnection]:
        """A connection; commits at the end, rolls back after an error."""
        process = running()
        fault = await process.step("postgres", self._schema)
        if fault is not None and fault.kind == "restart":
            self._store.restart(0.5 + fault.value * 10)
        if self._store.is_away:
            await asyncio.sleep(REFUSAL_S)
        if self._store.is_away or (fault is not None and fault.kind in ("refused", "restart")):
            msg = "the simulation lets no connection become free"
            raise PoolTimeout(msg)
        connection = self._store.take(self._schema)
        connection.fate = fault.kind if fault is not None else None
        try:
            yield connection
            await connection.commit()
        finally:
            self._store.give_back(self._schema, connection)
        await process.answer()

    async def check(self) -> None:
        """Nothing to replace: lost connections are played."""

    async def close(self) -> None:
        """Nothing to close: the connections outlive the run."""


class SimSession:
    """A connection of its own, with session locks; see ``libs.postgres.database.Session``."""

    def __init__(self, store: Store, schema: str, process: Process) -> None:
        self._store = store
        self._schema = schema
        self._connection: SimConnection | None = None
        self.connected_no = 0
        process.at_death.append(self.drop)
        store.sessions.append(self)

    async def fetch(self, text: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Run one statement by itself."""
        process = running()
        fault = await process.step("postgres.session", self._schema)
        if fault is not None and fault.kind == "lost":
            self.drop()
        if fault is not None or self._store.is_away:
            msg = "the simulation plays a session that is lost or refused"
            raise StoreUnavailable(msg)
        if self._connection is None:
            self._connection = self._store.take(self._schema)
            self.connected_no += 1
        rows = await self._connection.run([(text, parameters or {})], commit=True)
        await process.answer()
        return rows[0]

    async def close(self) -> None:
        """Give back locks and connection."""
        self.drop()

    def drop(self) -> None:
        """Lose the connection, and its locks with it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.exec_(b"select pg_advisory_unlock_all()")
            self._store.give_back(self._schema, connection)


class SimDatabase(Database):
    """The product's own transactions over played connections."""

    def __init__(self, store: Store, schema: str) -> None:
        super().__init__(SimPool(store, schema), url="", schema=schema)  # type: ignore[arg-type]
        self._store = store

    def session(self) -> SimSession:  # type: ignore[override]
        """A session of the process that asks."""
        return SimSession(self._store, self.schema, running())

    def _check_soon(self) -> None:
        """Dead connections are never in the pool."""


@contextmanager
def store(server_url: str, template: str, *, rewrite: Rewrite) -> Iterator[Store]:
    """A database of its own for one worker."""
    with parts.fresh_database(server_url, template=template) as database:
        made = Store(database.admin_url, database.url_of, rewrite=rewrite)
        with contextlib.closing(made):
            yield made
