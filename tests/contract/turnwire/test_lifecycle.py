"""What a client can do with turns and conversations beside posting, against a real gateway."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from schemas.streams import EntryId
from tests.rig.gateway import GatewayRig, gateway_rig
from turnwire import AcceptedTurn, Ask, AsyncClient, Patience, ProblemError

QUICK = Patience(away_s=10, first_pause_s=0.01, longest_pause_s=0.05)


@dataclass
class World:
    """A gateway and a client with a conversation."""

    rig: GatewayRig
    client: AsyncClient

    async def answered(self, text: str = "All of it.") -> AcceptedTurn:
        """A turn whose answer is complete."""
        made = await self.client.create_conversation()
        turn = await self.client.post(made.id, "When?")
        row = self.rig.store.turn_rows[turn.turn_id]
        await self.rig.write(row, [text])
        await self.rig.finish(row, text, str(EntryId(1, 2)))
        return turn


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with (
        gateway_rig() as rig,
        AsyncClient(rig.url, rig.key, patience=QUICK) as client,
    ):
        yield World(rig, client)


async def test_a_running_turn_is_cancelled_and_an_ended_one_not(world: World) -> None:
    made = await world.client.create_conversation()
    turn = await world.client.post(made.id, "When?")

    cancelled = await world.client.cancel(turn.turn_id)

    assert cancelled.cancel_requested or cancelled.has_ended
    done = await world.answered()
    with pytest.raises(ProblemError) as caught:
        await world.client.cancel(done.turn_id)
    assert caught.value.slug == "turn-already-terminal"


async def test_an_edit_is_a_turn_with_a_key_of_its_own(world: World) -> None:
    turn = await world.answered()

    ask = Ask(key="edit-1")
    first = await world.client.edit(turn.conversation_id, turn.user_message_id, "Where?", ask=ask)
    again = await world.client.edit(turn.conversation_id, turn.user_message_id, "Where?", ask=ask)

    assert (first.kind, first.is_replay, first.key) == ("edit", False, "edit-1")
    assert (again.turn_id, again.is_replay) == (first.turn_id, True)
    assert first.branch_id != turn.branch_id


async def test_an_answer_is_made_again_under_the_same_question(world: World) -> None:
    turn = await world.answered()

    again = await world.client.regenerate(turn.turn_id)

    assert again.kind == "regenerate"
    assert again.user_message_id == turn.user_message_id
    assert again.assistant_message_id != turn.assistant_message_id


async def test_a_whole_answer_cannot_be_continued(world: World) -> None:
    turn = await world.answered()

    with pytest.raises(ProblemError) as caught:
        await world.client.continue_turn(turn.turn_id)

    assert caught.value.slug == "not-continuable"


async def test_a_conversation_is_renamed_found_deleted_and_restored(world: World) -> None:
    made = await world.client.create_conversation(title="Harbours")
    await world.client.create_conversation(title="Trains")

    renamed = await world.client.update_conversation(made.id, title="Ports", policy="queue")
    assert (renamed.title, renamed.policy) == ("Ports", "queue")
    found = [one.id async for one in world.client.conversations(query="port")]
    assert found == [made.id]
    await world.client.delete_conversation(made.id)
    assert [one.title async for one in world.client.conversations()] == ["Trains"]
    assert (await world.client.restore_conversation(made.id)).title == "Ports"


async def test_a_deleted_message_is_listed_no_more(world: World) -> None:
    turn = await world.answered()

    await world.client.delete_message(turn.conversation_id, turn.assistant_message_id)

    left = [message.id async for message in world.client.messages(turn.conversation_id)]
    assert left == [turn.user_message_id]
    with pytest.raises(ProblemError) as caught:
        await world.client.follow(turn.turn_id).result()
    assert caught.value.slug == "stream-expired"


async def test_a_second_view_hears_of_a_turn_and_of_the_deletion(world: World) -> None:
    made = await world.client.create_conversation()
    names: list[str] = []
    is_watching = asyncio.Event()

    async def watch() -> None:
        async for event in world.client.watch(made.id):
            names.append(event.name)
            is_watching.set()

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(20):
        await is_watching.wait()
        await world.client.delete_conversation(made.id)
        await watching

    assert names == ["state", "conversation_deleted"]


async def test_what_has_no_plan_yet_is_not_found(world: World) -> None:
    made = await world.client.create_conversation()
    turn = await world.client.post(made.id, "When?")

    for asked in (world.client.plan, world.client.replay, world.client.diff):
        with pytest.raises(ProblemError) as caught:
            await asked(turn.turn_id)
        assert caught.value.slug == "not-found"
