"""Turns without a fault, over real processes: order, idempotency, streams, traces."""

import asyncio
from itertools import pairwise
from uuid import uuid4

import aiohttp
import pytest

from schemas.registry import EVENTS_OF_TOPIC
from tests.rig.house import House
from tests.rig.ledger import Post, StreamLog
from tests.rig.provider import Rule, fast_text

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

STORM = 20
CONVERSATIONS = 200
TURNS_EACH = 5
AT_ONCE = 64
"""Clients that work at the same time; more would only queue on a machine of two cores."""


async def test_a_message_is_answered_and_the_next_plan_holds_it(house: House) -> None:
    began = await house.moment()
    client = await house.client()
    conversation = await client.conversation()

    first = await client.say(conversation, "What is the first?")
    second = await client.say(conversation, "And the second?")

    (await house.verdict(since=began)).require(
        one_turn_per_key=8,
        one_terminal_per_turn=8,
        stream_equals_store=10,
        current_turn_once_in_plan=2,
        superseded_excluded=2,
        plan_within_budget=2,
        plan_deterministic=4,
        tenant_isolation=16,
        canary_seen=2,
        at_rest=11,
    )
    assert first.stream is not None
    assert first.stream.text == fast_text()
    messages = (await client.get(f"/v1/conversations/{conversation}/messages"))["data"]
    assert [m["role"] for m in messages] == ["user", "assistant"] * 2
    assert [m["seq"] for m in messages] == [1, 2, 3, 4]
    plan = await client.get(f"/v1/turns/{second.turn_id}/plan")
    shown = str(plan)
    assert all(m["id"] in shown for m in messages[:3])


async def test_twenty_posts_of_one_key_over_two_gateways_are_one_turn(house: House) -> None:
    client = await house.client()
    conversation = await client.conversation()
    post = client.note(conversation, f"storm-{uuid4().hex[:8]} at once")

    await asyncio.gather(*(client.send_once(post, gateway=n) for n in range(STORM)))
    await client.follow(post)

    assert {reply.status for reply in post.replies} <= {200, 202}
    assert len({reply.body["turn_id"] for reply in post.replies}) == 1
    assert [reply.status for reply in post.replies].count(202) == 1
    calls = [r for r in house.provider.requests if r.last_user_message == post.text]
    assert len(calls) == 1
    (await house.verdict()).require(one_turn_per_key=3, stream_equals_store=3)


@pytest.mark.timeout(300)
async def test_two_hundred_conversations_keep_order_inside_each(house: House) -> None:
    clients = [await house.client(f"tenant-{n}") for n in range(20)]
    places = asyncio.Semaphore(AT_ONCE)
    marker = uuid4().hex[:8]

    async def talk(number: int) -> None:
        client = clients[number % len(clients)]
        async with places:
            conversation = await client.conversation()
            posts = [
                client.note(conversation, f"{marker} {number}.{turn}") for turn in range(TURNS_EACH)
            ]
            # All are sent before the first is answered: the house has to keep their order.
            for post in posts:
                await client.send(post, gateway=number)
            await asyncio.gather(*(client.follow(post, gateway=number) for post in posts))

    async with asyncio.timeout(90):
        await asyncio.gather(*(talk(number) for number in range(CONVERSATIONS)))

    total = CONVERSATIONS * TURNS_EACH
    (await house.verdict()).require(
        one_turn_per_key=total,
        no_accepted_turn_lost=total,
        one_terminal_per_turn=total,
        stream_equals_store=3 * total,
        serial_per_conversation=CONVERSATIONS,
    )
    seen = [r for r in house.provider.requests if marker in r.last_user_message]
    assert len(seen) == total
    for number in range(CONVERSATIONS):
        mine = [r for r in seen if r.last_user_message.startswith(f"{marker} {number}.")]
        said = [request.last_user_message.partition(" canary")[0] for request in mine]
        assert said == [f"{marker} {number}.{turn}" for turn in range(TURNS_EACH)]
        for earlier, later in pairwise(mine):
            assert earlier.ended_at is not None
            assert later.received_at >= earlier.ended_at


async def test_a_second_question_is_planned_after_the_first_answer(house: House) -> None:
    """Two devices ask 5 ms apart; the second prompt must hold the first question and answer."""
    client = await house.client()
    conversation = await client.conversation()
    marker = uuid4().hex[:8]
    house.provider.script(
        Rule(match=f"{marker} My cat is Nilo", deltas=("Noted", "."), first_delay_ms=200)
    )
    first = client.note(conversation, f"{marker} My cat is Nilo")
    second = client.note(conversation, f"{marker} What is my cat called?")

    await client.send(first)
    await client.send(second, gateway=1)
    await asyncio.gather(client.follow(first), client.follow(second))

    request = next(r for r in house.provider.requests if r.last_user_message == second.text)
    spoken = [m["content"] for m in request.json["messages"] if m["role"] != "system"]
    assert spoken == [first.text, "Noted.", second.text]
    (await house.verdict()).require(one_terminal_per_turn=2, serial_per_conversation=1)


async def test_a_stream_cut_at_every_event_is_the_same_on_another_gateway(house: House) -> None:
    client = await house.client()
    marker = uuid4().hex[:8]
    house.provider.script(
        Rule(match=marker, deltas=[f"{n}🛶\n\r\n " for n in range(30)], delay_ms=45)
    )
    post = await client.send(client.note(await client.conversation(), f"{marker} count"))
    assert post.turn_id is not None
    whole = asyncio.create_task(client.follow(post))
    cut = StreamLog(post.turn_id)
    connections = 0
    async with asyncio.timeout(60):
        while cut.done is None:
            await client.read(cut, gateway=connections, at_most=1)
            connections += 1
    full = await whole

    again = StreamLog(post.turn_id)
    await client.read(again, gateway=1)

    # The words that come while a busy machine sleeps are one event.
    assert connections >= len(full.events) > 5
    assert cut.faults() == []
    assert cut.text == full.text == again.text
    assert [(e.id, e.data) for e in cut.events] == [(e.id, e.data) for e in full.events]
    (await house.verdict()).require(stream_equals_store=3)


async def test_posting_for_a_stream_gives_the_stream_in_the_same_response(house: House) -> None:
    client = await house.client()
    conversation = await client.conversation()
    post: Post = client.note(conversation, "Answer me right here")
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{house.gateway_url()}/v1/conversations/{conversation}/messages",
            json={"content": post.text},
            headers={
                **client._headers,
                "Idempotency-Key": post.key,
                "Accept": "text/event-stream",
            },
        ) as response,
    ):
        body = (await response.read()).decode()

    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert response.headers["Cache-Control"] == "no-store"
    assert body.count("retry:") == 1
    assert body.count("event: done") == 1
    await client.send(post)
    assert post.replies[-1].headers["idempotent-replayed"] == "true"
    log = await client.follow(post)
    assert log.text == fast_text()


async def test_a_turn_leaves_one_trace_through_all_services(house: House) -> None:
    client = await house.client()
    post = await client.say(await client.conversation(), "Trace me")

    records = [
        record
        for topic in EVENTS_OF_TOPIC
        for record in await house.records(topic)
        if record["correlation_id"] == str(post.turn_id)
    ]
    sources = {record["source"] for record in records}
    assert len({record["traceparent"].split("-")[1] for record in records}) == 1
    assert sources == {"frontend_gateway", "ingestion", "context_assembly", "llm_gateway"}
