"""The stream that tells a second window what goes on in a conversation."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from libs.api_keys import hash_api_key
from services.frontend_gateway.hub import Pace
from tests.rig.gateway import GatewayRig, gateway_rig

WITHIN_S = 30.0


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with gateway_rig() as rig:
        yield rig


async def events_of(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    event = ""
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)
        elif line.startswith(":"):
            yield "comment", None


def path(conversation: str) -> str:
    return f"/v1/conversations/{conversation}/events"


async def test_a_second_window_hears_of_turns_that_begin_and_end(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    async with asyncio.timeout(WITHIN_S), rig.client.stream("GET", path(conversation)) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer)
        name, state = await anext(events)
        assert name == "state"
        assert state == {"branch_id": conversation, "open": [], "last_turn_id": None}
        posted = (await rig.post(conversation, "Hi")).json()
        name, began = await anext(events)
        assert (name, began["turn_id"]) == ("turn_began", posted["turn_id"])
        rig.end(rig.store.turn_rows[UUID(posted["turn_id"])], "Hi.", None)
        assert await anext(events) == (
            "turn_ended",
            {
                "turn_id": posted["turn_id"],
                "branch_id": conversation,
                "status": "completed",
                "reason": None,
            },
        )


async def test_a_reconnect_begins_with_the_state(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    posted = (await rig.post(conversation, "Hi")).json()
    for _ in range(2):
        async with rig.client.stream("GET", path(conversation)) as answer:
            name, state = await anext(events_of(answer))
            assert name == "state"
            assert [one["turn_id"] for one in state["open"]] == [posted["turn_id"]]


async def test_deleting_the_conversation_ends_the_stream(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    async with asyncio.timeout(WITHIN_S), rig.client.stream("GET", path(conversation)) as answer:
        events = events_of(answer)
        await anext(events)
        await rig.client.delete(f"/v1/conversations/{conversation}")
        rest = [event async for event in events]
    assert rest == [("conversation_deleted", {})]


async def test_many_windows_cost_one_query_a_look(rig: GatewayRig) -> None:
    conversations = [await rig.conversation() for _ in range(3)]

    async def watched(conversation: str) -> None:
        async with rig.client.stream("GET", path(conversation)) as answer:
            events = events_of(answer)
            await anext(events)
            await done.wait()

    done = asyncio.Event()
    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        for conversation in conversations * 4:
            group.create_task(watched(conversation))
        while ("activity", 3) not in rig.store.asked:
            await asyncio.sleep(0.01)
        done.set()
    looks = {count for kind, count in rig.store.asked if kind == "activity"}
    assert max(looks) == 3


async def test_who_has_left_is_asked_for_no_more(rig: GatewayRig) -> None:
    left, stayed = await rig.conversation(), await rig.conversation()
    async with asyncio.timeout(WITHIN_S), rig.client.stream("GET", path(stayed)) as answer:
        events = events_of(answer)  # held: whoever drops it closes the stream
        await anext(events)
        async with rig.client.stream("GET", path(left)) as other:
            others = events_of(other)
            await anext(others)
            await looks(rig, ("activity", 2))
        while rig.gateway.watchers.stream_count > 1:
            await asyncio.sleep(0.01)
        rig.store.asked.clear()
        await looks(rig, *[("activity", 1)] * 3)
    assert set(rig.store.asked) == {("activity", 1)}


async def looks(rig: GatewayRig, *wanted: tuple[str, int]) -> None:
    """Wait until the store was asked like this, so often."""
    while rig.store.asked.count(wanted[0]) < len(wanted):
        await asyncio.sleep(0.01)


async def test_a_revoked_key_loses_the_stream(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    async with asyncio.timeout(WITHIN_S), rig.client.stream("GET", path(conversation)) as answer:
        events = events_of(answer)
        await anext(events)
        del rig.store.keys[hash_api_key(rig.key)]
        assert [name async for name, _ in events if name != "comment"] == []


async def test_a_database_that_is_away_ends_no_stream(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    async with asyncio.timeout(WITHIN_S), rig.client.stream("GET", path(conversation)) as answer:
        events = events_of(answer)
        await anext(events)
        posted = (await rig.post(conversation, "Hi")).json()
        assert (await anext(events))[0] == "turn_began"
        rig.store.is_away = True
        turn = rig.store.turn_rows[UUID(posted["turn_id"])]
        rig.store.turn_rows[turn.id] = replace(turn, status="completed")
        rig.store.asked.clear()
        await looks(rig, *[("activity", 1)] * 3)
        rig.store.is_away = False
        assert (await anext(events))[0] == "turn_ended"


async def test_silence_is_filled_with_comments() -> None:
    quick = Pace(tick_s=0.05, idle_s=0.1, recheck_s=0.1, ping_s=0.1)
    async with gateway_rig(pace=quick) as rig:
        conversation = await rig.conversation()
        async with asyncio.timeout(WITHIN_S):
            async with rig.client.stream("GET", path(conversation)) as answer:
                events = events_of(answer)
                await anext(events)
                assert (await anext(events))[0] == "comment"


async def test_conversation_streams_count_for_the_keys_limit() -> None:
    async with gateway_rig(max_streams_per_key=1) as rig:
        conversation = await rig.conversation()
        async with rig.client.stream("GET", path(conversation)) as answer:
            events = events_of(answer)
            await anext(events)
            refused = await rig.client.get(path(conversation))
            assert (refused.status_code, refused.json()["code"]) == (429, "quota-exceeded")


async def test_draining_ends_conversation_streams(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    async with asyncio.timeout(WITHIN_S), rig.client.stream("GET", path(conversation)) as answer:
        events = events_of(answer)
        await anext(events)
        await rig.gateway.drain()
        assert [event async for event in events] == []
    refused = await rig.client.get(path(conversation))
    assert refused.status_code == 503


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_the_events_of_nothing_are_not_found(rig: GatewayRig, method: str) -> None:
    answer = await rig.client.request(method, path(str(uuid4())))
    assert answer.status_code == 404


async def test_head_tells_the_type_alone(rig: GatewayRig) -> None:
    answer = await rig.client.head(path(await rig.conversation()))
    assert answer.headers["content-type"].startswith("text/event-stream")
