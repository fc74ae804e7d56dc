"""Every part of the local stack keeps the promises of ``deploy.local.part.Part``."""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg
import pytest
import redis.asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from deploy.local.errors import PartFailed, PortBusy
from deploy.local.identity import ProcessIdentity, children_of
from deploy.local.kafka import KafkaServer
from deploy.local.kafka_settings import KafkaAccess
from deploy.local.model import MODEL, ModelServer
from deploy.local.part import Part, Server
from deploy.local.ports import pick_port
from deploy.local.postgres import PostgresServer
from deploy.local.valkey import ValkeyServer
from deploy.local.waiting import until
from tests.rig import parts

BOUND_S = 20.0
_T = TypeVar("_T")


async def within(work: Awaitable[_T]) -> _T:
    return await asyncio.wait_for(work, BOUND_S)


# What a client does with each part


async def put_row(server: Any, word: str) -> None:
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS words (word text)")
        await connection.execute("INSERT INTO words VALUES (%s)", (word,))


async def rows(server: Any) -> list[str]:
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        cursor = await connection.execute("SELECT word FROM words")
        return [row[0] for row in await cursor.fetchall()]


async def put_key(server: Any, word: str) -> None:
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.set(word, word)


async def keys(server: Any) -> list[str]:
    async with redis.asyncio.Redis.from_url(server.url) as client:
        return [key.decode() for key in await client.keys()]


async def make_topic(server: KafkaServer, topic: str) -> None:
    admin = AIOKafkaAdminClient(**server.client_settings())
    await within(admin.start())
    try:
        await within(admin.create_topics([NewTopic(topic, 1, 1)]))
    finally:
        await admin.close()


async def send(server: KafkaServer, topic: str, word: str, *, user: str | None = None) -> None:
    producer = AIOKafkaProducer(**server.client_settings(user), acks="all")
    await within(producer.start())
    try:
        await within(producer.send_and_wait(topic, word.encode()))
    finally:
        await within(producer.stop())


async def put_record(server: Any, word: str) -> None:
    await make_topic(server, "words")
    await send(server, "words", word)


async def records(server: Any) -> list[str]:
    consumer = AIOKafkaConsumer(**server.client_settings(), auto_offset_reset="earliest")
    await within(consumer.start())
    try:
        partition = TopicPartition("words", 0)
        consumer.assign([partition])
        end = (await within(consumer.end_offsets([partition])))[partition]
        consumer.seek(partition, 0)
        found = [await within(consumer.getone()) for _ in range(end)]
    finally:
        await within(consumer.stop())
    return [record.value.decode() for record in found]


async def ask(server: Any, _word: str) -> None:
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.post(
            f"{server.url}/chat/completions",
            headers={"Authorization": "Bearer key"},
            json={"max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]},
        )
        answer.raise_for_status()


async def nothing(_server: Any) -> list[str]:
    return []


# The parts, each with what must be left after a crash


@dataclass(frozen=True)
class Case:
    make: Callable[[Path], Server]
    put: Callable[[Any, str], Awaitable[None]]
    read: Callable[[Any], Awaitable[list[str]]]
    after_crash: list[str] = field(default_factory=list)


CASES = {
    "postgres": Case(
        lambda folder: PostgresServer(folder, port=pick_port(), password=secrets.token_hex(8)),
        put_row,
        rows,
        ["kept"],
    ),
    "valkey": Case(
        lambda folder: ValkeyServer(folder, port=pick_port(), password=secrets.token_hex(8)),
        put_key,
        keys,
    ),
    "kafka": Case(parts.kafka_server, put_record, records, ["kept"]),
    "model": Case(
        lambda folder: ModelServer(folder, port=pick_port(), api_key="key"), ask, nothing
    ),
}
MARKS = {"postgres": "postgres", "valkey": "redis", "kafka": "kafka", "model": "model"}


@pytest.fixture(
    params=[pytest.param(name, marks=getattr(pytest.mark, MARKS[name])) for name in CASES]
)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def server(case: Case, tmp_path: Path) -> Iterator[Server]:
    server = case.make(tmp_path / "part")
    yield server
    parts.run(server.kill())


def family(server: Server) -> list[ProcessIdentity]:
    assert server.pid is not None
    found = [ProcessIdentity.of(pid) for pid in (server.pid, *children_of(server.pid))]
    return [identity for identity in found if identity is not None]


async def test_a_part_serves_when_start_returns_and_nothing_runs_after_stop(
    case: Case, server: Server
) -> None:
    part: Part = server
    assert await part.start() == part.url
    await case.put(server, "kept")
    processes = family(server)

    await part.stop()

    assert part.pid is None
    assert await until(lambda: not any(p.is_running() for p in processes), timeout_s=BOUND_S)
    assert server.log_path.stat().st_mode & 0o777 == 0o600


async def test_a_killed_part_comes_back_on_its_port_with_what_it_must_keep(
    case: Case, server: Server
) -> None:
    await server.start()
    await case.put(server, "kept")
    url, processes = server.url, family(server)

    await server.kill()
    assert await until(lambda: not any(p.is_running() for p in processes), timeout_s=BOUND_S)

    assert await server.start() == url
    assert await case.read(server) == case.after_crash
    await case.put(server, "more")


async def test_a_part_refuses_a_port_that_somebody_has(case: Case, tmp_path: Path) -> None:
    first = case.make(tmp_path / "first")
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", first.port):
        with pytest.raises(PortBusy, match=rf"Port {first.port} .* taken by .*\(process"):
            await first.start()
    assert first.pid is None


# What only one of them promises


@pytest.mark.postgres
async def test_postgres_keeps_a_commit_through_an_immediate_stop(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path, port=pick_port(), password="p")
    try:
        await server.start()
        await put_row(server, "kept")
        await server.stop_immediately()
        await server.start()
        assert await rows(server) == ["kept"]
    finally:
        await server.stop()


@pytest.mark.postgres
async def test_postgres_cannot_be_made_to_forget_and_listens_on_tcp_loopback_alone(
    tmp_path: Path,
) -> None:
    server = PostgresServer(
        tmp_path, port=pick_port(), password="p", settings={"fsync": "off", "work_mem": "8MB"}
    )
    names = (
        "fsync",
        "synchronous_commit",
        "listen_addresses",
        "unix_socket_directories",
        "work_mem",
    )
    try:
        await server.start()
        async with await psycopg.AsyncConnection.connect(server.url) as connection:
            found = [(await (await connection.execute(f"SHOW {n}")).fetchone()) for n in names]
    finally:
        await server.stop()
    assert [row[0] for row in found if row] == ["on", "on", "127.0.0.1", "", "8MB"]


@pytest.mark.postgres
async def test_postgres_with_another_password_than_its_datas_says_what_to_do(
    tmp_path: Path,
) -> None:
    first = PostgresServer(tmp_path, port=pick_port(), password="old")
    await first.start()
    await first.stop()
    server = PostgresServer(tmp_path, port=first.port, password="new")
    try:
        await server.start()
        with pytest.raises(PartFailed, match="put the old file back"):
            await server.create_database("turnwire")
    finally:
        await server.stop()


@pytest.mark.redis
async def test_valkey_refuses_a_client_without_the_password(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path, port=pick_port(), password="p")
    try:
        await server.start()
        async with redis.asyncio.Redis(port=server.port) as client:
            with pytest.raises(redis.AuthenticationError):
                await client.ping()
    finally:
        await server.stop()


@pytest.mark.kafka
async def test_a_wiped_kafka_starts_empty(tmp_path: Path) -> None:
    server = parts.kafka_server(tmp_path)
    try:
        await server.start()
        await put_record(server, "lost")
        await server.wipe()
        await server.start()
        await make_topic(server, "words")
        assert await records(server) == []
    finally:
        await server.stop()


@pytest.mark.kafka
async def test_kafka_with_access_rules_lets_only_named_users_do_what_was_granted(
    tmp_path: Path,
) -> None:
    access = KafkaAccess({"root": "r", "ana": "a"}, ("root",))
    port = pick_port()
    server = KafkaServer(
        tmp_path, port=port, controller_port=pick_port(avoid=(port,)), access=access
    )
    try:
        await server.start()
        await make_topic(server, "words")
        await send(server, "words", "by root")
        with pytest.raises(TopicAuthorizationFailedError):
            await send(server, "words", "by ana", user="ana")
        nobody = AIOKafkaProducer(bootstrap_servers=server.url, request_timeout_ms=2_000)
        try:
            with pytest.raises(KafkaError):
                await within(nobody.start())
        finally:
            await within(nobody.stop())
        assert await records(server) == ["by root"]
    finally:
        await server.stop()


@pytest.mark.kafka
async def test_kafka_starts_with_a_damaged_start_up_cache(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.aot"
    damaged.write_bytes(b"not a cache")
    port = pick_port()
    server = KafkaServer(
        tmp_path / "part",
        port=port,
        controller_port=pick_port(avoid=(port,)),
        jvm_flags=(f"-XX:AOTCache={damaged}",),
    )
    try:
        await server.start()
        await put_record(server, "kept")
    finally:
        await server.stop()


@pytest.mark.model
async def test_the_model_streams_its_answer_and_reports_usage(
    model_endpoint: Any,
) -> None:
    body = {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 16,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    headers = {"Authorization": f"Bearer {model_endpoint.api_key}"}
    url = f"{model_endpoint.base_url}/chat/completions"
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.post(url, json=body)).status_code == 401
        async with client.stream("POST", url, json=body, headers=headers) as answer:
            data = [line[6:] async for line in answer.aiter_lines() if line.startswith("data: ")]

    assert data[-1] == "[DONE]"
    chunks = [json.loads(item) for item in data[:-1]]
    deltas = [chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"]]
    assert "".join(filter(None, deltas)).strip()
    assert chunks[-1]["usage"]["completion_tokens"] <= 16
    assert {chunk["model"] for chunk in chunks} == {MODEL}
