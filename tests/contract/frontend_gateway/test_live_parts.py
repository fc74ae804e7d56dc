"""The gateway over a real Valkey: rings, bells, replays, and a server that lost everything."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
import redis.asyncio
from prometheus_client import CollectorRegistry

from libs.api_keys import hash_api_key
from libs.clock import SystemClock
from libs.redis.doorbell import RedisDoorbell
from libs.redis.live_stream import RedisLiveStream
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from schemas.streams import EntryId, content_delta, generating
from services.frontend_gateway.app import Adapters, build_app
from services.frontend_gateway.core.turns import Checkpoint
from services.frontend_gateway.memory import MemoryStore
from services.frontend_gateway.operators import MemoryOperators
from tests.rig.gateway import QUICK, Ingestion, ending_of, made_key, serving, settings, started
from tests.rig.sse import Copy, follow

pytestmark = pytest.mark.redis

WORDS = [f"word{i} " for i in range(200)]


class Rig:
    """A gateway on a real live stream; rows stay in memory."""

    def __init__(
        self, client: httpx.AsyncClient, store: MemoryStore, live: RedisLiveStream
    ) -> None:
        self.client = client
        self.store = store
        self.live = live


@pytest.fixture
async def rig(redis_url: str) -> AsyncIterator[Rig]:
    async with contextlib.AsyncExitStack() as stack:
        live = await stack.enter_async_context(RedisLiveStream.open(redis_url))
        bell = await stack.enter_async_context(RedisDoorbell.open(redis_url))
        store = MemoryStore()
        key, caller = made_key()
        store.keys[hash_api_key(key)] = caller
        adapters = Adapters(
            store=store,
            publisher=Ingestion(store, live),
            live=live,
            bell=bell,
            clock=SystemClock(),
            metrics=Metrics(CollectorRegistry()),
            tracing=Tracing(),
            operators=MemoryOperators().operators(),
            pace=QUICK,
        )
        url = await stack.enter_async_context(serving(build_app(settings(), adapters)))
        headers = {"Authorization": f"Bearer {key}"}
        client = httpx.AsyncClient(base_url=url, headers=headers, timeout=20)
        await stack.enter_async_context(client)
        yield Rig(client, store, live)


async def ask(rig: Rig) -> str:
    """Post a first message; its turn's id. The outcome is told by a real ring."""
    answer = await rig.client.post(
        "/v1/conversations",
        json={"message": {"content": "Hi"}},
        headers={"Idempotency-Key": "k"},
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["turn"]["turn_id"])


async def test_a_ring_answers_and_bells_carry_the_answer(rig: Rig) -> None:
    turn_id = await ask(rig)
    (turn,) = rig.store.turn_rows.values()
    following = asyncio.create_task(follow(rig.client, turn_id))
    await rig.live.append(turn.id, [started(turn), generating(1)])
    for i, word in enumerate(WORDS):
        await rig.live.append(turn.id, [content_delta(EntryId(1, 2 + i), word)])
    text = "".join(WORDS)
    ended = replace(turn, status="completed", length=len(text), upto=EntryId(1, 201))
    rig.store.turn_rows[turn.id] = ended
    await rig.live.append(turn.id, ending_of(ended))
    copy = await asyncio.wait_for(following, 20)
    assert copy.text == text
    assert copy.names == ["message_started", "status", *["content_delta"] * 200, "done"]


async def test_a_stream_survives_that_everything_in_it_is_lost(rig: Rig, redis_url: str) -> None:
    await ask(rig)
    (turn,) = rig.store.turn_rows.values()
    await rig.live.append(turn.id, [started(turn), generating(1)])
    await rig.live.append(turn.id, [content_delta(EntryId(1, 2), WORDS[0])])
    copy = Copy()
    following = asyncio.create_task(follow(rig.client, turn.id, copy))
    async with asyncio.timeout(10):
        while copy.text != WORDS[0]:
            await asyncio.sleep(0.01)
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await admin.flushdb()
    rig.store.checkpoint_rows[turn.id] = Checkpoint("".join(WORDS[:5]), EntryId(1, 6))
    await rig.live.append(turn.id, [content_delta(EntryId(1, 7), WORDS[5])])
    text = "".join(WORDS[:6])
    ended = replace(turn, status="completed", length=len(text), upto=EntryId(1, 7))
    async with asyncio.timeout(10):
        while copy.text != text:
            await asyncio.sleep(0.01)
    rig.store.turn_rows[turn.id] = ended
    await rig.live.append(turn.id, ending_of(ended))
    await asyncio.wait_for(following, 20)
    assert copy.text == text
    assert copy.names.count("snapshot") == 1
