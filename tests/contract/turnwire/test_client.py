"""The client against a real gateway over HTTP, on a line that breaks wherever it hurts."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID, uuid4

import pytest

from schemas.streams import EntryId
from services.frontend_gateway.core.turns import TurnView
from tests.contract.turnwire.faulty_line import FaultyLine, faulty_line
from tests.rig.gateway import GatewayRig, gateway_rig
from turnwire import Ask, AsyncClient, Client, Patience, ProblemError, StreamEvent

QUICK = Patience(away_s=10, first_pause_s=0.01, longest_pause_s=0.05)
TEXTS = ["The ", "fer", "ry\n\r\n", "leaves 🛶", "\u2028", "at 7."]


@dataclass
class World:
    """A gateway, a line to it that can break, and a client at the other end."""

    rig: GatewayRig
    line: FaultyLine
    client: AsyncClient


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with (
        gateway_rig() as rig,
        faulty_line(rig.url) as line,
        AsyncClient(line.url, rig.key, patience=QUICK) as client,
    ):
        yield World(rig, line, client)


async def answered(rig: GatewayRig, turn_id: UUID) -> TurnView:
    """Play a whole answer for an accepted turn."""
    turn = rig.store.turn_rows[turn_id]
    await rig.write(turn, TEXTS)
    return await rig.finish(turn, "".join(TEXTS), str(EntryId(1, 1 + len(TEXTS))))


async def test_a_question_is_asked_and_its_answer_read_to_the_end(world: World) -> None:
    conversation = await world.client.create_conversation(title="Harbours")
    turn = await world.client.post(conversation.id, "When?")
    await answered(world.rig, turn.turn_id)

    answer = await world.client.follow(turn.turn_id).result()

    assert answer.text == "".join(TEXTS)
    assert (answer.status, answer.reason, answer.is_complete) == ("completed", None, True)
    assert answer.usage is not None
    assert answer.usage.output == 4
    messages = [message async for message in world.client.messages(conversation.id)]
    assert [(m.role, m.content) for m in messages] == [
        ("user", "When?"),
        ("assistant", answer.text),
    ]
    assert (await world.client.turn(turn.turn_id)).has_ended


@pytest.mark.parametrize("events_each", [1, 2, 3])
async def test_a_connection_that_breaks_after_every_event_costs_nothing(
    world: World, events_each: int
) -> None:
    conversation = await world.client.create_conversation()
    turn = await world.client.post(conversation.id, "When?")
    world.line.events_each = events_each
    whole: list[StreamEvent] = []
    async with AsyncClient(world.rig.url, world.rig.key, patience=QUICK) as undisturbed:

        async def read_whole() -> None:
            whole.extend([event async for event in undisturbed.follow(turn.turn_id)])

        reading = asyncio.create_task(read_whole())
        stream = world.client.follow(turn.turn_id)
        playing = asyncio.create_task(answered(world.rig, turn.turn_id))
        cut = [event async for event in stream]
        await asyncio.gather(reading, playing)

    deltas = [e.text for e in cut if e.name == "content_delta"]
    snapshots = [e for e in cut if e.name == "snapshot"]
    assert snapshots or deltas == TEXTS
    assert len({event.id for event in cut}) == len(cut)
    assert stream.text == "".join(TEXTS)
    assert (await stream.result()).text == "".join(e.text for e in whole if e.text)
    assert world.line.connections > len(cut) // (events_each + 1)


async def test_a_post_whose_answer_is_lost_is_the_same_turn_again(world: World) -> None:
    conversation = await world.client.create_conversation()
    world.line.replies_to_lose = 2

    turn = await world.client.post(conversation.id, "When?")

    assert turn.is_replay
    assert len(world.rig.store.turn_rows) == 1
    again = await world.client.post(conversation.id, "When?", ask=Ask(key=turn.key))
    assert (again.turn_id, again.is_replay) == (turn.turn_id, True)


async def test_a_conversation_whose_answer_is_lost_is_made_once(world: World) -> None:
    world.line.replies_to_lose = 1

    conversation = await world.client.create_conversation(title="Once")

    found = [one async for one in world.client.conversations()]
    assert [one.id for one in found] == [conversation.id]


async def test_a_key_with_quotes_and_backslashes_stays_one_key(world: World) -> None:
    conversation = await world.client.create_conversation()
    key = 'say "yes" \\ now'

    first = await world.client.post(conversation.id, "When?", ask=Ask(key=key))
    second = await world.client.post(conversation.id, "When?", ask=Ask(key=key))

    assert (first.turn_id, first.key) == (second.turn_id, key)


async def test_a_refusal_is_told_with_its_slug_and_what_to_do(world: World) -> None:
    with pytest.raises(ProblemError) as caught:
        await world.client.conversation(uuid4())

    assert (caught.value.slug, caught.value.status) == ("not-found", 404)
    assert caught.value.request_id
    assert "Check the id" in str(caught.value)


async def test_wrong_content_names_its_field(world: World) -> None:
    conversation = await world.client.create_conversation()

    with pytest.raises(ProblemError) as caught:
        await world.client.post(conversation.id, "")

    assert caught.value.slug == "validation-error"
    assert [error.where for error in caught.value.errors] == ["/content"]
    assert caught.value.key is not None


async def test_reading_goes_on_behind_what_is_known(world: World) -> None:
    conversation = await world.client.create_conversation()
    turn = await world.client.post(conversation.id, "When?")
    await answered(world.rig, turn.turn_id)

    rest = [event async for event in world.client.follow(turn.turn_id, after="1-4")]

    assert "".join(event.text for event in rest) == "".join(TEXTS[3:])
    after_done = [e async for e in world.client.follow(turn.turn_id, after=rest[-1].id)]
    assert after_done == []


async def test_lists_come_whole_over_many_pages(world: World) -> None:
    made = [(await world.client.create_conversation(title=f"n{n}")).id for n in range(103)]

    found = [one.id async for one in world.client.conversations()]

    assert sorted(found) == sorted(made)


async def test_the_blocking_client_reads_the_same(world: World) -> None:
    def talk() -> tuple[str, str]:
        with Client(world.line.url, world.rig.key, patience=QUICK) as client:
            conversation = client.create_conversation()
            turn = client.post(conversation.id, "When?")
            asyncio.run_coroutine_threadsafe(answered(world.rig, turn.turn_id), loop).result(10)
            answer = client.follow(turn.turn_id).result()
            return answer.text, [m.content for m in client.messages(conversation.id)][1]

    loop = asyncio.get_running_loop()
    world.line.events_each = 2

    streamed, stored = await asyncio.to_thread(talk)

    assert streamed == stored == "".join(TEXTS)
