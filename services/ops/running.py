"""Turnwire on one machine: parts, schema, topics, first key and services, up and down again."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from deploy.local.errors import LocalStackError, PartFailed
from deploy.local.part import Server
from deploy.local.ports import require_free
from deploy.local.processes import ServiceSpec, Supervisor
from deploy.local.stack import LocalStack, PartProgress, environment
from deploy.local.state import exclusive
from deploy.local.waiting import http_status, until_async
from services.ops.data_folder import DataFolder
from services.ops.keys import ring_at
from services.ops.migrations import migrate
from services.ops.progress import Progress
from services.ops.service_environment import HOST, SERVICES, role_passwords, service_environment
from services.ops.topics import apply_all

HTTP_BOUND_S = 20.0  # from a ready gateway to its first answer takes milliseconds
PART_WATCH_S = 1.0  # how soon an ended part is noticed
MOVE_PORT = "Or choose another port with --port."


@dataclass(frozen=True, slots=True)
class Address:
    """Where a started Turnwire is, and the key that opens it.

    Attributes:
        key_path: The file that keeps the key, mode 0600.
        key_is_new: Whether this start made it.
    """

    url: str
    api_key: str
    key_path: Path
    key_is_new: bool

    @property
    def page(self) -> str:
        """The chat page."""
        return f"{self.url}/ui/"


class Turnwire:
    """Everything that `up` starts, in one data folder; ``async with`` it.

    Args:
        port: Of the chat page and the HTTP interface.
        environ: May give parts by URL, and settings of services.
    """

    def __init__(
        self, folder: DataFolder, *, port: int, environ: Mapping[str, str], progress: Progress
    ) -> None:
        self._folder = folder
        self._port = port
        self._environ = environ
        self._progress = progress
        self._stack = LocalStack(folder.path, external=environ, progress=self._tell_part)
        self._supervisor = Supervisor(
            folder.path / "logs",
            keep_alive=True,
            note=lambda line: progress.note("restart", line),
            changed=self._record,
        )
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> Address:
        """Start everything; all or nothing.

        Raises:
            LocalStackError: A part or a service did not come up, or a port or the data folder is
                in use; what had been started was stopped again.
            ChatError: The database or the broker refused what is needed.
        """
        check_unused(self._folder)
        require_free(self._port, purpose="the chat page", remedy=MOVE_PORT)
        try:
            await self._stack.start()
            variables = environment(self._stack)
            await self._prepare(variables)
            address = await self._first_address(variables)
            await self._start_services(variables)
        except BaseException:
            await self.stop()
            raise
        self._folder.keep_url(address.url)
        self._watch = asyncio.create_task(self._keep_parts(), name="parts")
        return address

    async def stop(self) -> None:
        """Stop services, then parts. Idempotent."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        try:
            await self._supervisor.stop()
        finally:
            await self._stack.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _prepare(self, variables: Mapping[str, str]) -> None:
        """Schema and topics, side by side."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._migrate(variables))
                group.create_task(self._apply_topics(variables))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _migrate(self, variables: Mapping[str, str]) -> None:
        with self._progress.step("schema"):
            await migrate(variables["DATABASE_URL"], passwords=role_passwords(variables))

    async def _apply_topics(self, variables: Mapping[str, str]) -> None:
        with self._progress.step("topics"):
            await apply_all(variables["KAFKA_BOOTSTRAP_SERVERS"], profile="local")

    async def _first_address(self, variables: Mapping[str, str]) -> Address:
        async with ring_at(variables["TURNWIRE_OPS__DATABASE_URL"]) as ring:
            key, is_new = await ring.first_key(self._folder)
        return Address(f"http://{HOST}:{self._port}", key, self._folder.key_path, is_new)

    async def _start_services(self, variables: Mapping[str, str]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for service in SERVICES:
                    group.create_task(self._start_service(service, variables))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        await self._await_http()

    async def _start_service(self, service: str, variables: Mapping[str, str]) -> None:
        settings = service_environment(service, variables, given=self._environ, port=self._port)
        with self._progress.step(service):
            await self._supervisor.start([ServiceSpec(service, settings)])

    async def _await_http(self) -> None:
        async def answers() -> bool:
            return await http_status(self._port, "/openapi.json") is not None

        if not await until_async(answers, timeout_s=HTTP_BOUND_S):
            log = self._supervisor.process("frontend_gateway").log_path
            msg = (
                f"The gateway is ready but does not answer on port {self._port} after "
                f"{HTTP_BOUND_S:.0f} s. Its log: {log}"
            )
            raise PartFailed(msg)

    async def _keep_parts(self) -> None:
        """Bring a part back when it ended by itself, with the data it has."""
        while True:
            await asyncio.sleep(PART_WATCH_S)
            for server in self._stack.servers.values():
                if server.pid is None:
                    await self._bring_back(server)

    async def _bring_back(self, server: Server) -> None:
        self._progress.note(server.name, f"ended by itself; it starts again. {server.log_path}")
        try:
            with self._progress.step(server.name):
                await server.start()
        except LocalStackError as error:
            self._progress.note(server.name, f"did not come back: {error}")
            return
        self._stack.record_parts()

    def _record(self) -> None:
        self._stack.record_services(self._supervisor.entries)

    def _tell_part(self, told: PartProgress) -> None:
        match told.state:
            case "starting":
                self._progress.begin(told.name)
            case "note":
                self._progress.note(told.name, told.detail)
            case "ready":
                self._progress.end(told.name, told.detail)
            case "given":
                self._progress.note(told.name, f"given, not started  {told.detail}")
            case "stopped":
                self._progress.note(told.name, "stopped")


def check_unused(folder: DataFolder) -> None:
    """Do nothing unless another process runs a stack on the folder.

    Raises:
        StackAlreadyRunning: One does.
    """
    if folder.exists:
        with exclusive(folder.path):
            pass  # the kernel says who holds it; the start itself takes it again
