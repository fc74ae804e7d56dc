"""The gateway as a process of its own: without queue and bells it is degraded and still reads."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import psycopg
import pytest

from deploy.local.ports import pick_port
from libs.postgres import Database
from services.frontend_gateway.store import PostgresStore
from tests.contract.frontend_gateway.worlds import PostgresWorld, Said
from tests.rig.gateway import MASTER_KEY
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

START_S = 30


@contextlib.asynccontextmanager
async def running(
    database: TestDatabase,
) -> AsyncIterator[tuple[str, str, asyncio.subprocess.Process]]:
    """Address of the interface, address of health and metrics, and the process."""
    port, ops_port = pick_port(), pick_port()
    prefix = "TURNWIRE_FRONTEND_GATEWAY__"
    nowhere = f"127.0.0.1:{pick_port()}"
    environment = {
        **os.environ,
        f"{prefix}DATABASE_URL": database.url_of("frontend_gateway"),
        f"{prefix}PORT": str(port),
        f"{prefix}OPS_PORT": str(ops_port),
        f"{prefix}DRAIN_S": "0.2",
        f"{prefix}ACCEPTANCE_WAIT_S": "1",
        "TURNWIRE_DOOR_MASTER_KEY": MASTER_KEY,
        "KAFKA_BOOTSTRAP_SERVERS": nowhere,
        "REDIS_URL": f"redis://{nowhere}/0",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.frontend_gateway", env=environment
    )
    try:
        yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{ops_port}", process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def answered(client: httpx.AsyncClient, url: str) -> httpx.Response:
    """The first answer of a process that is starting."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                return await client.get(url)
            except httpx.TransportError:
                await asyncio.sleep(0.05)


async def test_without_kafka_and_redis_it_reads_and_ends_in_order(database: TestDatabase) -> None:
    opened = await Database.open(
        database.url_of("frontend_gateway"), schema="frontend_gateway", size=2
    )
    tenant, principal = uuid4(), uuid4()
    async with (
        await psycopg.AsyncConnection.connect(database.admin_url, autocommit=True) as admin,
        running(database) as (url, ops_url, process),
        httpx.AsyncClient(timeout=START_S) as client,
    ):
        world = PostgresWorld(PostgresStore(opened), admin)
        key, _ = await world.key(tenant, principal)
        client.headers["Authorization"] = f"Bearer {key}"
        conversation, turn = await world.conversation(tenant, principal, [Said(answer="Aye")])

        listed = await answered(client, f"{url}/v1/conversations/{conversation}/messages")
        assert [row["content"] for row in listed.json()["data"]] == ["Hello?", "Aye"]
        stream = await client.get(f"{url}/v1/turns/{turn}/events")
        assert [line for line in stream.text.split("\n") if line.startswith("event")] == [
            "event: snapshot",
            "event: usage",
            "event: done",
        ]
        ready = await client.get(f"{ops_url}/readyz?verbose")
        assert ready.status_code == 200
        for line in ("[+]postgres ok", "[!]kafka degraded", "[!]doorbell degraded"):
            assert line in ready.text
        metrics = (await client.get(f"{ops_url}/metrics")).text
        assert 'route="/v1/turns/{turn_id}/events"' in metrics
        posted = await client.post(
            f"{url}/v1/conversations/{conversation}/messages",
            json={"content": "Hi"},
            headers={"Idempotency-Key": "k"},
        )
        assert (posted.status_code, posted.json()["code"]) == (503, "dependency-unavailable")

        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), START_S) == 0
    await opened.close()
