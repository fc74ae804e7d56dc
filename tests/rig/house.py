"""The whole house on this machine: real parts, the services as processes, a scripted provider."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import aiohttp
import orjson
import psycopg
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from psycopg.rows import dict_row

from deploy.local.kafka_settings import SideDoor
from deploy.local.ports import pick_port
from deploy.local.processes import ServiceProcess, ServiceSpec, Supervisor
from deploy.local.stack import LocalStack, environment
from libs import api_keys
from libs.clock import SystemClock
from libs.kafka.topics import apply_topics, topic_specs
from schemas.topic_files import load_topics
from services.ops.migrations import migrate
from tests.rig.checker import Verdict, check
from tests.rig.client import Client
from tests.rig.evidence import Ends, Evidence, read_streams, read_topics, topic_ends
from tests.rig.provider import ScriptedProvider
from tests.rig.waiting import until

WORKERS = ("ingestion", "context_assembly", "llm_gateway")
REST_WITHIN_S = 45.0
"""Longest wait for the house to come to rest after the last fault was healed."""


@dataclass(frozen=True, slots=True)
class Size:
    """How many processes of each service run."""

    gateways: int = 1
    workers: int = 1


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key of the HTTP interface, and whose it is."""

    key: str
    key_id: UUID
    tenant_id: UUID
    principal_id: UUID


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What a house had seen at some time.

    Attributes:
        ends: Of the inner topics.
        turns: All that there were.
        request: Number of the provider's last request.
    """

    ends: Ends
    turns: frozenset[UUID]
    request: int


class House:
    """Started once per lane; its services can be killed and brought back one by one."""

    def __init__(self, data_dir: Path, *, size: Size | None = None) -> None:
        self._data_dir = data_dir
        self._size = size or Size()
        self._gateway_ports = [pick_port() for _ in range(self._size.gateways)]
        self._http: aiohttp.ClientSession | None = None
        self._keys: dict[tuple[str, str], ApiKey] = {}
        self._dead_on_purpose: set[UUID] = set()
        self._readable_from: dict[tuple[str, int], int] = {}
        self._clients: list[Client] = []
        self.provider = ScriptedProvider()
        self.stack = LocalStack(data_dir, parts=("postgres", "valkey", "kafka"), external={})
        self.supervisor = Supervisor(data_dir / "services", keep_alive=False)

    async def __aenter__(self) -> Self:
        await self.provider.__aenter__()
        self.stack = LocalStack(
            self._data_dir,
            parts=("postgres", "valkey", "kafka", "model"),
            external={
                "LLM_BASE_URL": self.provider.base_url,
                "LLM_API_KEY": "scripted",
                "LLM_MODEL": "scripted",
            },
            kafka_side_doors=await self.open_side_doors(),
        )
        await self.stack.start()
        try:
            await self.before_services()
            await migrate(self.stack.database_url, passwords=self.stack.role_passwords)
            await self.apply_topics()
            await self.supervisor.start(self.specs())
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._http is not None:
            await self._http.close()
        await self.supervisor.stop()
        await self.stack.stop()
        await self.provider.__aexit__(None, None, None)

    async def open_side_doors(self) -> Sequence[SideDoor]:
        """Kafka's listeners for clients behind a proxy; runs before any part starts."""
        return ()

    async def before_services(self) -> None:
        """What a house of another kind sets up once its parts run."""

    async def apply_topics(self) -> None:
        """Create the topics, as ``turnwire topics apply`` does."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.stack.kafka_bootstrap_servers)
        await admin.start()
        try:
            await apply_topics(admin, topic_specs(load_topics(), profile="local"))
        finally:
            await admin.close()

    # The processes

    def environment(self, name: str, index: int = 0) -> dict[str, str]:
        """The settings of one process, as ``turnwire up`` gives them."""
        prefix = f"TURNWIRE_{name.upper()}__"
        wanted = {k: v for k, v in environment(self.stack).items() if "__" not in k}
        wanted.pop("DATABASE_URL")
        wanted[prefix + "DATABASE_URL"] = self.stack.service_database_url(name)
        wanted[prefix + "PROFILE"] = "local"
        wanted[prefix + "TOPICS_PROFILE"] = "local"
        wanted[prefix + "LOG_LEVEL"] = os.environ.get("TURNWIRE_TEST_LOG_LEVEL", "INFO")
        if name == "frontend_gateway":
            wanted[prefix + "PORT"] = str(self._gateway_ports[index])
        return wanted

    def spec(self, name: str, index: int = 0) -> ServiceSpec:
        """One process of the house, for the supervisor."""
        return ServiceSpec(name, self.environment(name, index), index)

    def specs(self) -> list[ServiceSpec]:
        """All processes of the house."""
        gateways = [self.spec("frontend_gateway", n) for n in range(self._size.gateways)]
        workers = [self.spec(name, n) for name in WORKERS for n in range(self._size.workers)]
        return [*gateways, *workers]

    def process(self, name: str, index: int = 0) -> ServiceProcess:
        """One running service process."""
        return self.supervisor.process(name, index)

    async def arm(self, name: str, fail_point: str, *, index: int = 0) -> ServiceProcess:
        """Restart a process with one fail point armed, such as ``llm.after_delta:3:exit``."""
        process = self.process(name, index)
        await process.restart(
            env={**self.environment(name, index), "TURNWIRE_FAILPOINT": fail_point}
        )
        return process

    async def revive(self, process: ServiceProcess) -> None:
        """Wait for an armed process to die at its point, and start it again without one."""

        async def is_dead() -> bool:
            return process.pid is None

        await until(is_dead, within_s=30)
        await process.restart(env=self.environment(process.spec.name, process.spec.index))

    async def records(self, topic: str) -> list[dict[str, Any]]:
        """Every event that a topic holds now, decoded, in no order across partitions.

        What tests put there to be unreadable is left out.
        """
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.stack.kafka_bootstrap_servers, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            file = next(file for file in load_topics() if file.topic == topic)
            numbers = range(file.partitions.of("local"))
            partitions = [TopicPartition(topic, number) for number in numbers]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            for partition in partitions:
                first = self._readable_from.get((topic, partition.partition), 0)
                consumer.seek(partition, first if first <= ends[partition] else 0)
            found: list[dict[str, Any]] = []
            for partition in partitions:
                while await consumer.position(partition) < ends[partition]:
                    batch = await consumer.getmany(partition, timeout_ms=500)
                    found += filter(None, (_event(r.value) for r in batch.get(partition, [])))
            return found
        finally:
            await consumer.stop()

    async def all_ready(self) -> None:
        """Wait until every process says it is ready."""

        async def are_ready() -> bool:
            for process in self.supervisor.processes:
                if process.pid is None or not await process.is_ready():
                    return False
            return True

        await until(are_ready, within_s=60)

    # Clients and checks

    async def client(
        self,
        tenant: str = "acme",
        *,
        principal: str = "tester",
        gateways: Sequence[int] | None = None,
    ) -> Client:
        """A client with a key of its own tenant, over the given gateways (all of them)."""
        assert self._http is not None
        if (tenant, principal) not in self._keys:
            self._keys[tenant, principal] = await self.make_key(tenant, principal)
        known = self._keys[tenant, principal]
        urls = [self.gateway_url(n) for n in gateways or range(self._size.gateways)]
        client = Client(self._http, urls, key=known.key, tenant_id=known.tenant_id)
        self._clients.append(client)
        return client

    def gateway_url(self, index: int = 0) -> str:
        """Address of one gateway's HTTP interface."""
        return f"http://127.0.0.1:{self._gateway_ports[index]}"

    async def make_key(
        self, tenant: str, principal: str = "tester", *, scopes: Sequence[str] = ("chat", "read")
    ) -> ApiKey:
        """A new API key, made as an operator makes it."""
        clock = SystemClock()
        key = api_keys.new_api_key(os.urandom(api_keys.SECRET_BYTES))
        (row,) = await self.operate(
            "select * from frontend_gateway.op_create_key(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            clock.new_id(),
            tenant,
            clock.new_id(),
            principal,
            clock.new_id(),
            list(scopes),
            api_keys.visible_prefix(key),
            api_keys.hash_api_key(key),
            "tests",
        )
        return ApiKey(key, row["key_id"], row["tenant_id"], row["principal_id"])

    async def operate(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """Rows of an operator's function, called with an operator's rights."""
        return await _rows(self.stack.service_database_url("ops"), sql, values)

    async def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """Rows as the superuser sees them."""
        return await _rows(self.stack.database_url, sql, values)

    def note_unreadable(self, place: Place) -> None:
        """Remember a record that the client library itself cannot read; readers start after it."""
        self._readable_from[place.topic, place.partition] = place.offset + 1

    async def dead_letter(
        self, schema: str, place: Place, *, within_s: float = 20.0
    ) -> dict[str, Any]:
        """The dead letter of a record that a test spoiled; no verdict complains of it."""
        found: list[dict[str, Any]] = []

        async def is_parked() -> bool:
            found[:] = await self.rows(
                f"select * from {schema}.dead_letters where topic = %s and partition = %s "  # noqa: S608
                'and "offset" = %s order by at desc limit 1',
                place.topic,
                place.partition,
                place.offset,
            )
            return bool(found)

        await until(is_parked, within_s=within_s)
        self._dead_on_purpose.add(found[0]["id"])
        return found[0]

    async def come_to_rest(self) -> None:
        """Wait until no turn is open and every outbox is empty."""

        async def is_at_rest() -> bool:
            try:
                found = await self.rows(
                    "select (select count(*) from ingestion.open_turns) + "
                    "(select count(*) from ingestion.outbox) + "
                    "(select count(*) from context_assembly.outbox) + "
                    "(select count(*) from llm_gateway.outbox) + "
                    "(select count(*) from llm_gateway.work where state in ('ready', 'running')) n"
                )
            except psycopg.OperationalError:
                return False
            return bool(found[0]["n"] == 0)

        await until(is_at_rest, within_s=REST_WITHIN_S)

    async def verdict(self, *, since: "Moment | None" = None) -> Verdict:
        """Come to rest, look for what was deleted, then compare all ledgers with the database.

        Args:
            since: Topics, live streams and prompts of the time after it are compared too; before
                it, other tests may have put wrong things there.
        """
        await self.come_to_rest()
        for client in self._clients:
            await client.look_again()
        ledgers = [client.ledger for client in self._clients]
        known = frozenset(self._dead_on_purpose)
        evidence = await self.evidence(since) if since is not None else None
        return await asyncio.to_thread(
            check, self.stack.database_url, ledgers, dead_letters=known, evidence=evidence
        )

    async def moment(self) -> "Moment":
        """Now, as ``verdict`` wants it."""
        turns = await self.rows("select id from ingestion.turns")
        return Moment(
            await topic_ends(self.stack.kafka_bootstrap_servers),
            frozenset(turn["id"] for turn in turns),
            max((request.n for request in self.provider.requests), default=-1),
        )

    async def evidence(self, since: "Moment") -> Evidence:
        """What the parts of the house were told after a moment."""
        rows = await self.rows("select id from ingestion.turns order by id")
        turns = [row["id"] for row in rows if row["id"] not in since.turns]
        return Evidence(
            topics=await read_topics(self.stack.kafka_bootstrap_servers, after=since.ends),
            streams=await read_streams(self.stack.redis_url, turns),
            prompts=[one.body for one in self.provider.requests if one.n > since.request],
            open_calls=orjson.loads(self.provider.control("GET", "/stats", b"")[1])["running"],
            logs=sorted((self._data_dir / "services").rglob("*.log")),
        )


def _event(value: bytes | None) -> dict[str, Any] | None:
    try:
        event = orjson.loads(value or b"null")
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None


async def _rows(url: str, sql: str, values: Sequence[object]) -> list[dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(
        url, autocommit=True, row_factory=dict_row
    ) as connection:
        cursor = await connection.execute(sql, values)
        rows: list[dict[str, Any]] = await cursor.fetchall()
        return rows


@asynccontextmanager
async def running_house(data_dir: Path, *, size: Size | None = None) -> AsyncIterator[House]:
    """A house for as long as the block runs."""
    async with House(data_dir, size=size) as house:
        yield house
