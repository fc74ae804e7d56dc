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
from urllib.parse import quote

import orjson
import psycopg
from psycopg import pq, waiting
from psycopg.rows import dict_row
from psycopg_pool import PoolTimeout

from deploy.local.ports import pick_port
from deploy.local.postgres import PostgresServer
from libs.errors import StoreUnavailable
from libs.postgres import Database
from libs.postgres.database import _options
from libs.postgres.pipelined import PipelinedConnection, Row, Statement
from tests.rig import parts
from tests.sim.looks import Looks, Writer, Writing
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
    "io_method": "sync",
    "track_activities": "off",
    "track_counts": "off",
    "update_process_title": "off",
    "bgwriter_lru_maxpages": "0",
    "unix_socket_directories": "..",  # than the data folder
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

PREPARED = 1_000
"""Statements of the superuser that stay prepared: all that a run's checks ask."""

SET_NOW = "select set_config('sim.now', %(now)s, false)"
OWN = """
select format('%%I.%%I', n.nspname, c.relname) as name from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where c.relkind = %s and n.nspname in
       ('frontend_gateway', 'ingestion', 'context_assembly', 'llm_gateway')
 order by 1
"""
WRITERS = """
select n.nspname as schema, p.proname as name, p.prosrc as body
  from pg_proc p join pg_namespace n on n.oid = p.pronamespace
 where p.provolatile = 'v' and n.nspname in
       ('frontend_gateway', 'ingestion', 'context_assembly', 'llm_gateway', 'turnwire')
"""
RUNS_BETWEEN_TRUNCATIONS = 25
"""Runs that delete their rows at the beginning; then the space is given back.

A truncated table is another file: every connection plans its statements anew, which costs more than
running them. Deleted rows cost less, as long as there are few.
"""

BEGIN = """
create function released.begin(is_to_truncate boolean) returns void language plpgsql
set session_replication_role = replica as $$
begin
  if is_to_truncate then truncate {tables}; else {deletions} end if;
  {sequences}
  {back}
end $$
"""
"""As a replica applies rows: what refers to others is deleted in any order."""


Rewrite = Callable[[str], str]
"""What the house sends -> what the server gets; the identity, or a mutant's doing."""


class ServerWithoutDurability(PostgresServer):
    """For simulations only: a crash of this server would lose everything."""

    def __init__(self, folder: Path, *, port: int, password: str) -> None:
        super().__init__(folder, port=port, password=password)
        self._settings = {**self._settings, **NOT_DURABLE, "sim.folder": str(folder)}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """URL of a superuser of a fresh server, for as long as the block runs."""
    with parts.started(
        ServerWithoutDurability(folder, port=pick_port(), password="simulated")
    ) as started:
        yield started.url


class SimConnection(PipelinedConnection):
    """A connection whose calls block, and whose transactions begin by telling the virtual time."""

    schema: str
    now: Callable[[], float]
    rewrite: Rewrite
    note: Callable[[str], None]
    looks: Looks
    fate: str | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ran: list[str] = []

    async def wait(self, gen: Any, *_arguments: Any, **_options: Any) -> Any:
        """Block until the server has answered."""
        return waiting.wait(gen, self.pgconn.socket, interval=WAIT_S)

    async def run(self, statements: Sequence[Statement], *, commit: bool) -> list[list[Row]]:
        """See ``PipelinedConnection.run``."""
        begins = self.pgconn.transaction_status == pq.TransactionStatus.IDLE
        rows = None
        if begins:
            self._ran = []
            if self.fate is None:
                rows = await self._look(statements, commit=commit)
        if commit and self.fate == "lost_request":
            await self._lose()
        if rows is None:
            self._ran += [text for text, _ in statements]
            rows = await self._sent(statements, commit=commit)
        if commit:
            self.looks.wrote(self.schema, self._ran)
        self.note(f"sql {len(statements)} {'commit' if commit else ''} {_told(rows)}")
        if commit and self.fate == "lost_reply":
            await self._lose()
        return rows

    async def commit(self) -> None:
        """Commit, unless the connection is about to be lost first."""
        if self.fate == "lost_request":
            await self._lose()
        await super().commit()
        self.looks.wrote(self.schema, self._ran)
        if self.fate == "lost_reply":
            await self._lose()

    async def _look(
        self, statements: Sequence[Statement], *, commit: bool
    ) -> list[list[Row]] | None:
        """What a transaction finds that does nothing but look; None where it must be run."""
        glance = self.looks.glance(self.schema, statements)
        if glance is None or not glance.is_worth_asking:
            return None
        rows = glance.rows_at(self.now())
        if rows is not None:
            return rows
        rows = await self._sent(statements, commit=commit, ahead_s=glance.ahead_s)
        if glance.found(self.now(), rows):
            return rows
        if glance.ahead_s:
            self.pgconn.exec_(b"rollback")
            return None
        self._ran = [text for text, _ in statements]
        return rows

    async def _sent(
        self, statements: Sequence[Statement], *, commit: bool, ahead_s: float = 0.0
    ) -> list[list[Row]]:
        """Run statements; a transaction that they begin is told the time first."""
        sent = [(self.rewrite(text), parameters) for text, parameters in statements]
        begins = self.pgconn.transaction_status == pq.TransactionStatus.IDLE
        if begins:
            now = wall_time(self.now() + ahead_s).isoformat()
            sent.insert(0, (SET_NOW, {"now": now}))
        try:
            rows = await super().run(sent, commit=commit)
        except psycopg.Error as error:
            self.note(f"sql {type(error).__name__}")
            raise
        return rows[1:] if begins else rows

    async def _lose(self) -> None:
        self.fate = None
        await self.rollback()
        msg = "the simulation cut this connection"
        raise psycopg.errors.AdminShutdown(msg)


def _told(rows: list[list[Row]]) -> str:
    """Rows for the trace; in an order of their own, as not every statement gives them one."""
    return b";".join(b",".join(sorted(map(_row_told, one))) for one in rows).decode()


def _row_told(row: Row) -> bytes:
    return orjson.dumps(tuple(row.values()), default=repr)


class Store:
    """One database of one worker, and the connections that its runs share."""

    def __init__(
        self,
        admin_url: str,
        url_of: Callable[[str], str],
        *,
        rewrite: Rewrite,
        spares_looks: bool = True,
    ) -> None:
        self._url_of = url_of
        self._rewrite = rewrite
        self._free: dict[str, list[SimConnection]] = {}
        self._now: Callable[[], float] = lambda: 0.0
        self._note: Callable[[str, str], None] = lambda _who, _what: None
        self._away_until = 0.0
        self.sessions: list[SimSession] = []
        self._admin = psycopg.connect(admin_url, autocommit=True, row_factory=dict_row)
        self._admin.prepared_max = PREPARED
        self._admin.execute(CLOCK)
        self._writing = Writing([Writer(**row) for row in self._admin.execute(WRITERS).fetchall()])
        self.looks = Looks(self._writing)
        self._spares_looks = spares_looks
        self._begun = 0
        self._make_beginnings()

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
        self.looks = Looks(self._writing, spares=self._spares_looks)
        is_to_truncate = self._begun % RUNS_BETWEEN_TRUNCATIONS == 0
        self._begun += 1
        self._admin.execute("select released.begin(%s)", [is_to_truncate])

    def rows(self, text: str, *values: object) -> list[dict[str, Any]]:
        """Rows as the superuser sees them; only for reading, and without a clock."""
        return self._admin.execute(text, values).fetchall()

    def at_present(self) -> psycopg.Connection[dict[str, Any]]:
        """The superuser's connection, its clock at the present virtual time; it may write."""
        self.looks.forget()
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
        connection.looks = self.looks
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
        connection.schema = schema
        connection.row_factory = dict_row  # type: ignore[assignment]
        return connection

    def _make_beginnings(self) -> None:
        """Make the function that empties every table and puts back the rows of the release."""
        tables = [row["name"] for row in self._admin.execute(OWN, ["r"]).fetchall()]
        sequences = [row["name"] for row in self._admin.execute(OWN, ["S"]).fetchall()]
        self._admin.execute("create schema released")
        back = []
        for number, table in enumerate(tables):
            kept = f"released.t{number}"
            if self._admin.execute(f"create table {kept} as table {table}").rowcount:
                back.append(f"insert into {table} table {kept};")
        parts_of_it = {
            "tables": ", ".join(tables),
            "deletions": " ".join(map("delete from {};".format, tables)),
            "sequences": " ".join(map("perform setval('{}', 1, false);".format, sequences)),
            "back": " ".join(back),
        }
        self._admin.execute(BEGIN.format_map(parts_of_it))


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
def store(
    server_url: str, template: str, *, rewrite: Rewrite, spares_looks: bool = True
) -> Iterator[Store]:
    """A database of its own for one worker."""
    with parts.fresh_database(server_url, template=template) as database:
        near = parts.TestDatabase(_near(database.admin_url))
        made = Store(near.admin_url, near.url_of, rewrite=rewrite, spares_looks=spares_looks)
        with contextlib.closing(made):
            yield made


def _near(url: str) -> str:
    """The same database by a socket beside its files: half of what a local port costs."""
    with psycopg.connect(url) as connection:
        (folder,) = connection.execute("show sim.folder").fetchone() or ("",)
    return f"{url}?host={quote(folder, safe='')}"
