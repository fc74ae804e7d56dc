"""Where tests take a part from: the environment's URL, else Docker, else the local wheel.

Every function is a context manager that starts a part and ends it. Tests that kill a part use
``deploy.local`` directly, since what the environment names is not theirs to kill.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from deploy.local.kafka import KafkaServer
from deploy.local.kafka_aot import QuickKafkaServer
from deploy.local.model import MODEL, ModelServer
from deploy.local.part import Server
from deploy.local.ports import pick_port
from deploy.local.postgres import PostgresServer
from deploy.local.stack import LlmEndpoint, with_login
from deploy.local.valkey import ValkeyServer
from services.ops.migrations import migrate

Source = Literal["given", "docker", "local"]
T = TypeVar("T")

DOCKER_PING_S = 2
CONTAINER_BOUND_S = 180.0  # pulling an image is part of it
CONTAINER_POLL_S = 0.2
POSTGRES_IMAGE = "postgres:18"
VALKEY_IMAGE = "valkey/valkey:9"
KAFKA_IMAGE = "apache/kafka:4.3.1"

# Of the database roles; they belong to the whole server, so every test database shares them.
ROLES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway", "ops")
ROLE_PASSWORDS: Mapping[str, str] = {f"turnwire_{role}": f"test-{role}" for role in ROLES}


def source(variable: str) -> Source:
    """Where a part comes from. ``TURNWIRE_TEST_PARTS=local`` passes Docker over."""
    if os.environ.get(variable):
        return "given"
    if os.environ.get("TURNWIRE_TEST_PARTS") != "local" and docker_answers():
        return "docker"
    return "local"


@cache
def docker_answers() -> bool:
    """Whether a Docker engine answers a ping; asked once a session.

    Asked without Docker's own client, which leaves sockets open when there is no engine.
    """
    address = urlsplit(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    target: str | tuple[str, int]
    if address.scheme == "unix":
        family, target = socket.AF_UNIX, address.path
    elif address.scheme == "tcp" and address.hostname:
        family, target = socket.AF_INET, (address.hostname, address.port or 2375)
    else:
        return False
    with socket.socket(family) as engine:
        engine.settimeout(DOCKER_PING_S)
        try:
            engine.connect(target)
            engine.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return b" 200 " in engine.recv(64)
        except OSError:
            return False


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from a fixture, beside whatever loop the tests have set."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(work)


@contextmanager
def started(server: Server) -> Iterator[Server]:
    """A local server for as long as the block runs."""
    try:
        run(server.start())
        yield server
    finally:
        run(server.stop())


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """URL of a superuser in the database ``postgres``."""
    match source("DATABASE_URL"):
        case "given":
            yield os.environ["DATABASE_URL"]
        case "docker":
            with _postgres_container() as url:
                yield url
        case "local":
            server = PostgresServer(folder, port=pick_port(), password=secrets.token_urlsafe(16))
            with started(server):
                yield server.url


@contextmanager
def valkey(folder: Path) -> Iterator[str]:
    """URL of database 0."""
    match source("REDIS_URL"):
        case "given":
            yield os.environ["REDIS_URL"]
        case "docker":
            with _valkey_container() as url:
                yield url
        case "local":
            server = ValkeyServer(folder, port=pick_port(), password=secrets.token_urlsafe(16))
            with started(server):
                yield server.url


@contextmanager
def kafka(folder: Path) -> Iterator[str]:
    """The bootstrap servers of one broker without access rules."""
    match source("KAFKA_BOOTSTRAP_SERVERS"):
        case "given":
            yield os.environ["KAFKA_BOOTSTRAP_SERVERS"]
        case "docker":
            with _kafka_container() as bootstrap:
                yield bootstrap
        case "local":
            with started(kafka_server(folder)) as server:
                yield server.url


def kafka_server(folder: Path) -> KafkaServer:
    """A local broker, not started yet, that starts as quickly as it can."""
    port = pick_port()
    return QuickKafkaServer(folder, port=port, controller_port=pick_port(avoid=(port,)), note=print)


@contextmanager
def model(folder: Path) -> Iterator[LlmEndpoint]:
    """The endpoint of the demo's model, which has no image of its own."""
    if base_url := os.environ.get("LLM_BASE_URL"):
        key, name = os.environ.get("LLM_API_KEY", ""), os.environ.get("LLM_MODEL", MODEL)
        yield LlmEndpoint(base_url, key, name)
        return
    key = secrets.token_urlsafe(16)
    with started(ModelServer(folder, port=pick_port(), api_key=key)) as server:
        yield LlmEndpoint(server.url, key, MODEL)


# Databases


@dataclass(frozen=True)
class TestDatabase:
    """One database of a test, and how each role reaches it."""

    __test__ = False  # pytest would take the name for a test class

    admin_url: str

    def url_of(self, service: str) -> str:
        """URL for the role of one service (the folder's name) or ``ops``."""
        return with_login(
            self.admin_url, f"turnwire_{service}", ROLE_PASSWORDS[f"turnwire_{service}"]
        )


@contextmanager
def fresh_database(server_url: str, *, template: str = "template0") -> Iterator[TestDatabase]:
    """A database with a name of its own; dropped at the end, with whoever still uses it."""
    name = f"test_{secrets.token_hex(6)}"
    _execute(server_url, "CREATE DATABASE {} TEMPLATE {}", name, template)
    try:
        yield TestDatabase(with_database(server_url, name))
    finally:
        _execute(server_url, "DROP DATABASE {} WITH (FORCE)", name)


@contextmanager
def migrated_template(server_url: str) -> Iterator[str]:
    """The name of a database with all migrations applied, to be copied for each test."""
    with fresh_database(server_url) as database:
        run(migrate(database.admin_url, passwords=ROLE_PASSWORDS))
        yield urlsplit(database.admin_url).path.lstrip("/")


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _execute(url: str, statement: str, *names: str) -> None:
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


# Containers


@contextmanager
def _container(image: str, prepare: Callable[[Any], Any]) -> Iterator[Any]:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 -- so is this

    with prepare(DockerContainer(image)) as container:
        yield container


@contextmanager
def _postgres_container() -> Iterator[str]:
    password = secrets.token_urlsafe(16)

    def prepare(container: Any) -> Any:
        command = "postgres -c max_connections=200"
        return (
            container.with_env("POSTGRES_PASSWORD", password)
            .with_command(command)
            .with_exposed_ports(5432)
        )

    with _container(POSTGRES_IMAGE, prepare) as container:
        address = f"{container.get_container_host_ip()}:{container.get_exposed_port(5432)}"
        url = f"postgresql://postgres:{password}@{address}/postgres"
        # The image starts once without TCP to prepare itself, so the first answer is the real one.
        _await(lambda: _answers_sql(url), POSTGRES_IMAGE)
        yield url


@contextmanager
def _valkey_container() -> Iterator[str]:
    password = secrets.token_urlsafe(16)

    def prepare(container: Any) -> Any:
        command = f"valkey-server --requirepass {password} --databases 64 --appendonly no"
        return container.with_command(command).with_exposed_ports(6379)

    with _container(VALKEY_IMAGE, prepare) as container:
        address = f"{container.get_container_host_ip()}:{container.get_exposed_port(6379)}"
        _await(lambda: "Ready to accept connections" in _output(container), VALKEY_IMAGE)
        yield f"redis://:{password}@{address}/0"


@contextmanager
def _kafka_container() -> Iterator[str]:
    port = pick_port()
    # One variable replaces all of the image's defaults, so the whole set is given. Clients get
    # the advertised address, so the outer port is chosen before the container runs.
    settings = {
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@127.0.0.1:9093",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
        "KAFKA_MESSAGE_MAX_BYTES": "1048588",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "4",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_SHARE_COORDINATOR_STATE_TOPIC_MIN_ISR": "1",
    }

    def prepare(container: Any) -> Any:
        return container.with_envs(**settings).with_bind_ports(9092, port)

    with _container(KAFKA_IMAGE, prepare) as container:
        _await(lambda: "Kafka Server started" in _output(container), KAFKA_IMAGE)
        yield f"127.0.0.1:{port}"


def _output(container: Any) -> str:
    return b"".join(container.get_logs()).decode(errors="replace")


def _answers_sql(url: str) -> bool:
    try:
        _execute(url, "SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def _await(condition: Callable[[], bool], image: str) -> None:
    deadline = monotonic() + CONTAINER_BOUND_S
    while not condition():
        if monotonic() >= deadline:
            msg = f"the container of {image} was not ready after {CONTAINER_BOUND_S:.0f} s"
            raise TimeoutError(msg)
        sleep(CONTAINER_POLL_S)
