"""The local stack as a whole: which parts to start, side by side, and where they are."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Literal, Self, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from deploy.local.credentials import SERVICES, Credentials, load_or_make, make_data_dir, save
from deploy.local.errors import LocalStackError
from deploy.local.identity import ProcessIdentity, boot_id
from deploy.local.kafka import KafkaServer
from deploy.local.kafka_aot import QuickKafkaServer
from deploy.local.kafka_settings import SideDoor
from deploy.local.model import MODEL, ModelServer
from deploy.local.part import Note, Server
from deploy.local.ports import holder, is_free, pick_port
from deploy.local.postgres import PostgresServer
from deploy.local.state import (
    ProcessEntry,
    StackState,
    exclusive,
    read_state,
    state_path,
    stop_leftovers,
    write_state,
)
from deploy.local.valkey import ValkeyServer

_S = TypeVar("_S", bound=Server)

PartName = Literal["postgres", "valkey", "kafka", "model"]
PARTS: tuple[PartName, ...] = ("postgres", "valkey", "kafka", "model")  # stopped in reverse
DATABASE = "turnwire"

# Given in the environment, the part is not started and the given one is used.
GIVEN_BY: Mapping[PartName, str] = {
    "postgres": "DATABASE_URL",
    "valkey": "REDIS_URL",
    "kafka": "KAFKA_BOOTSTRAP_SERVERS",
    "model": "LLM_BASE_URL",
}


@dataclass(frozen=True, slots=True)
class PartProgress:
    """One thing to tell the person who waits.

    Attributes:
        seconds: Since this part's start began.
        detail: Of ``ready``: where it is, without a password. Of ``note``: what takes long.
    """

    name: str
    state: Literal["starting", "note", "ready", "given", "stopped"]
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LlmEndpoint:
    """The OpenAI-compatible endpoint that answers."""

    base_url: str
    api_key: str
    model: str


class LocalStack:
    """The parts that Turnwire needs, in one data folder.

    ``async with LocalStack(…) as stack`` starts on entry and stops on exit.

    Args:
        parts: Which parts are needed at all.
        external: The environment that may give parts by URL (``GIVEN_BY``); pass ``os.environ``
            or a selection of it. An empty value counts as not given.
        progress: Told what happens, from the event loop's thread.
        kafka_side_doors: Listeners of the broker for clients that come through a proxy.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        parts: Sequence[PartName] = PARTS,
        external: Mapping[str, str] | None = None,
        progress: Callable[[PartProgress], None] = lambda _progress: None,
        kafka_side_doors: Sequence[SideDoor] = (),
    ) -> None:
        self._kafka_side_doors = kafka_side_doors
        self.data_dir = data_dir.absolute()
        self._external = {name: value for name, value in (external or {}).items() if value}
        self._wanted = tuple(name for name in PARTS if name in parts)
        self._progress = progress
        self._servers: dict[PartName, Server] = {}
        self._credentials: Credentials | None = None
        self._services: tuple[ProcessEntry, ...] = ()
        self._started_at = ""
        self._held = ExitStack()

    async def start(self) -> None:
        """Start every part that is wanted and not given, side by side. All or none.

        Raises:
            StackAlreadyRunning: If another process uses the data folder.
            LocalStackError: If a part could not be started; the others were stopped again.
        """
        make_data_dir(self.data_dir)
        self._held.enter_context(exclusive(self.data_dir))
        try:
            self._credentials = load_or_make(self.data_dir)
            await self._end_leftovers()
            self._choose_ports()
            self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
            await self._start_parts()
            self._write_state()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop what was started, last part first, and let go of the data folder. Idempotent."""
        try:
            for name, server in reversed(self._servers.items()):
                began, ran = monotonic(), server.pid is not None
                await server.stop()
                if ran:
                    self._tell(name, "stopped", began)
        finally:
            self._servers = {}
            if self._started_at:
                state_path(self.data_dir).unlink(missing_ok=True)
                self._started_at = ""
            self._held.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    # What the parts are

    @property
    def credentials(self) -> Credentials:
        """The data folder's secrets and ports.

        Raises:
            LocalStackError: Before ``start``.
        """
        if self._credentials is None:
            raise LocalStackError("The stack has no credentials before start(); start it first.")
        return self._credentials

    @property
    def servers(self) -> Mapping[PartName, Server]:
        """The parts that this stack started itself, by name."""
        return self._servers

    @property
    def postgres(self) -> PostgresServer:
        """The Postgres of this stack.

        Raises:
            LocalStackError: If it was given or not wanted. So for the other three.
        """
        return self._own("postgres", PostgresServer)

    @property
    def valkey(self) -> ValkeyServer:
        """The Valkey of this stack."""
        return self._own("valkey", ValkeyServer)

    @property
    def kafka(self) -> KafkaServer:
        """The Kafka of this stack."""
        return self._own("kafka", KafkaServer)

    @property
    def model(self) -> ModelServer:
        """The model server of this stack."""
        return self._own("model", ModelServer)

    @property
    def database_url(self) -> str:
        """URL of the database ``turnwire`` for whoever may migrate it."""
        return self._external.get("DATABASE_URL") or self.postgres.database_url(DATABASE)

    @property
    def role_passwords(self) -> Mapping[str, str]:
        """Password by database role, for ``migrate`` to set."""
        passwords = self.credentials.service_passwords
        return {f"turnwire_{service}": password for service, password in passwords.items()}

    def service_database_url(self, service: str) -> str:
        """The same database for the role of one service."""
        given = self._external.get(f"TURNWIRE_{service.upper()}__DATABASE_URL")
        password = self.credentials.service_passwords[service]
        return given or with_login(self.database_url, f"turnwire_{service}", password)

    @property
    def kafka_bootstrap_servers(self) -> str:
        """One or more ``host:port``, with commas between."""
        return self._external.get("KAFKA_BOOTSTRAP_SERVERS") or self.kafka.url

    @property
    def redis_url(self) -> str:
        """URL of the Redis or Valkey, password included."""
        return self._external.get("REDIS_URL") or self.valkey.url

    @property
    def llm(self) -> LlmEndpoint:
        """The endpoint that answers."""
        given = self._external
        if base_url := given.get("LLM_BASE_URL"):
            key, model = given.get("LLM_API_KEY", ""), given.get("LLM_MODEL", MODEL)
            return LlmEndpoint(base_url, key, model)
        return LlmEndpoint(self.model.url, self.credentials.model_api_key, MODEL)

    @property
    def door_master_key(self) -> str:
        """The key the door's signatures derive from, hexadecimal: given, else this folder's own."""
        return self._external.get("TURNWIRE_DOOR_MASTER_KEY") or self.credentials.door_master_key

    def record_services(self, services: Sequence[ProcessEntry]) -> None:
        """Write the services' processes into ``stack.json``, in place of those before."""
        self._services = tuple(services)
        self._write_state()

    def record_parts(self) -> None:
        """Write the parts' processes again, after one of them was restarted."""
        self._write_state()

    # How they come up

    def _own(self, name: PartName, kind: type[_S]) -> _S:
        server = self._servers.get(name)
        if not isinstance(server, kind):
            raise LocalStackError(
                f"This stack did not start {name}: it was not asked for, or {GIVEN_BY[name]} is "
                "set. Ask for the part, or set the variable."
            )
        return server

    async def _end_leftovers(self) -> None:
        """Our lock is free, so nobody owns what an earlier stack may have left running."""
        state = read_state(self.data_dir)
        if state is not None:
            await stop_leftovers(state)

    def _is_given(self, name: PartName) -> bool:
        return GIVEN_BY[name] in self._external

    def _choose_ports(self) -> None:
        """Keep the ports of the last start, so that URLs stay; move those that were taken."""
        credentials = self.credentials
        names = [name for name in self._wanted if not self._is_given(name)]
        for name in (*names, *(("controller",) if "kafka" in names else ())):
            known = credentials.ports.get(name)
            if known is not None and is_free(known):
                continue
            port = pick_port(avoid=credentials.ports.values())
            if known is not None:
                self._tell(
                    name,
                    "note",
                    monotonic(),
                    f"port {known} is taken by {holder(known)}; using {port}",
                )
            credentials = credentials.with_port(name, port)
        if credentials != self._credentials:
            self._credentials = credentials
            save(self.data_dir, credentials)

    async def _start_parts(self) -> None:
        starts: Mapping[PartName, Callable[[Note], Awaitable[None]]] = {
            "postgres": self._start_postgres,
            "valkey": self._start_valkey,
            "kafka": self._start_kafka,
            "model": self._start_model,
        }
        began = monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for name in self._wanted:
                    if self._is_given(name):
                        self._tell(
                            name, "given", began, without_login(self._external[GIVEN_BY[name]])
                        )
                    else:
                        group.create_task(self._start_one(name, starts[name]))
        except ExceptionGroup as errors:
            first = _first_of_ours(errors)
            if first is None:
                raise
            raise first from None

    async def _start_one(self, name: PartName, start: Callable[[Note], Awaitable[None]]) -> None:
        began = monotonic()
        self._tell(name, "starting", began)
        await start(lambda line: self._tell(name, "note", began, line))
        self._tell(name, "ready", began, self._servers[name].public_url)

    async def _start_postgres(self, note: Note) -> None:
        server = PostgresServer(
            self.data_dir / "postgres",
            port=self.credentials.ports["postgres"],
            password=self.credentials.postgres_password,
            note=note,
        )
        self._servers["postgres"] = server
        await server.start()
        await server.create_database(DATABASE)

    async def _start_valkey(self, note: Note) -> None:
        server = ValkeyServer(
            self.data_dir / "valkey",
            port=self.credentials.ports["valkey"],
            password=self.credentials.redis_password,
            note=note,
        )
        self._servers["valkey"] = server
        await server.start()

    async def _start_kafka(self, note: Note) -> None:
        server = QuickKafkaServer(
            self.data_dir / "kafka",
            port=self.credentials.ports["kafka"],
            controller_port=self.credentials.ports["controller"],
            note=note,
        )
        server.side_doors = self._kafka_side_doors
        self._servers["kafka"] = server
        await server.start()

    async def _start_model(self, note: Note) -> None:
        server = ModelServer(
            self.data_dir / "model",
            port=self.credentials.ports["model"],
            api_key=self.credentials.model_api_key,
            note=note,
        )
        self._servers["model"] = server
        await server.start()

    def _tell(
        self,
        name: str,
        state: Literal["starting", "note", "ready", "given", "stopped"],
        began: float,
        detail: str = "",
    ) -> None:
        self._progress(PartProgress(name, state, monotonic() - began, detail))

    def _write_state(self) -> None:
        owner = ProcessIdentity.of(os.getpid())
        if owner is None:
            raise LocalStackError("/proc does not show this process, so the stack cannot be noted.")
        started = [
            ProcessEntry(name, server.public_url, server.identity, str(server.log_path))
            for name, server in self._servers.items()
        ]
        given = [
            ProcessEntry(name, without_login(self._external[GIVEN_BY[name]]), None, None)
            for name in self._wanted
            if self._is_given(name)
        ]
        state = StackState(boot_id(), owner, self._started_at, (*started, *given), self._services)
        write_state(self.data_dir, state)


def environment(stack: LocalStack) -> dict[str, str]:
    """The variables that `migrate`, `topics` and all services need to use a started stack."""
    llm = stack.llm
    roles = {
        f"TURNWIRE_{service.upper()}__DATABASE_URL": stack.service_database_url(service)
        for service in SERVICES
    }
    return {
        "DATABASE_URL": stack.database_url,
        "KAFKA_BOOTSTRAP_SERVERS": stack.kafka_bootstrap_servers,
        "REDIS_URL": stack.redis_url,
        "LLM_BASE_URL": llm.base_url,
        "LLM_API_KEY": llm.api_key,
        "LLM_MODEL": llm.model,
        "TURNWIRE_DOOR_MASTER_KEY": stack.door_master_key,
        **roles,
    }


def with_login(url: str, user: str, password: str) -> str:
    """A URL with another user and password; host, port, path and options stay."""
    parts = urlsplit(url)
    address = parts.netloc.rpartition("@")[2]
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{address}"))


def without_login(url: str) -> str:
    """A URL fit for a log or a status line; what is no URL (``host:port``) stays as it is."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    # Options can hold a password as well.
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def _first_of_ours(errors: ExceptionGroup[Exception]) -> LocalStackError | None:
    """What failed first; the parts that were cancelled because of it are not in the group."""
    for error in errors.exceptions:
        found = _first_of_ours(error) if isinstance(error, ExceptionGroup) else error
        if isinstance(found, LocalStackError):
            return found
    return None
