"""The load before scripted gateways: what clients of each habit send, and what they report."""

import asyncio
from collections import Counter

import pytest

from tests.chaos import changing, clients
from tests.chaos.caller import STORM
from tests.chaos.door import Door, play, serving
from tests.rig.ledger import canary_of


@pytest.mark.parametrize("habit", sorted(set(clients.HABITS) - set(changing.HABITS)))
async def test_every_habit_sees_the_end_of_its_turn(habit: str) -> None:
    door = Door()
    async with serving(door) as load:
        turn = await play(load, habit)
    assert load.complaints == []
    assert (turn.status, turn.post.turn_id) == ("completed", *door.turns.values())
    assert turn.accepted_s is not None
    assert turn.ended_s is not None
    assert {key for _, key, _ in door.posts} == {turn.post.key}
    assert all(canary_of(door.ledgers[0].tenant_id) in said for _, _, said in door.posts)
    if turn.post.stream is not None:
        assert turn.post.stream.text == "It is late."
        assert turn.post.stream.faults() == []


async def test_a_refused_message_is_sent_again_with_its_key_at_the_other_gateway() -> None:
    door = Door(refusals=[503, 429, 500, 409])
    async with serving(door) as load:
        turn = await play(load, "json")
    gateways = [number for number, _, _ in door.posts]
    assert len({key for _, key, _ in door.posts}) == 1
    assert gateways in ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1])
    assert [reply.status for reply in turn.post.replies] == [503, 429, 500, 409, 202]
    posts = [one.ok for one in load.operations if one.kind == "post"]
    assert posts == [False, False, False, True, True]


@pytest.mark.parametrize("habit", ["sse", "resuming", "slow"])
async def test_a_broken_stream_goes_on_at_the_other_gateway_after_its_last_event(
    habit: str,
) -> None:
    door = Door(cut_after=[2, 1])
    async with serving(door) as load:
        turn = await play(load, habit)
    assert turn.post.stream is not None
    assert turn.post.stream.text == "It is late."
    assert turn.post.stream.faults() == []
    assert turn.post.stream.reconnects >= 2
    assert len({number for number, _ in door.reads}) == 2
    lasts = [last for _, last in door.reads if last is not None]
    assert lasts == sorted(lasts)
    assert lasts[0] in ("1-0", "1-1")


async def test_a_storm_sends_one_key_at_once() -> None:
    door = Door()
    async with serving(door) as load:
        turn = await play(load, "storm")
    assert len(door.posts) == STORM
    assert len(turn.post.replies) == STORM
    assert len(door.turns) == 1


async def test_a_duplicate_is_sent_at_once_or_after_a_lost_reply_and_when_all_is_over() -> None:
    counts: Counter[int] = Counter()
    for seed in range(8):
        door = Door()
        async with serving(door) as load:
            turn = await play(load, "duplicate", seed=seed)
        assert {key for _, key, _ in door.posts} == {turn.post.key}
        counts[sum(reply.is_accepted for reply in turn.post.replies)] += 1
        assert len(door.turns) == 1
    assert max(counts) == 3
    assert min(counts) >= 2


async def test_an_accepted_turn_that_is_not_found_is_a_complaint() -> None:
    door = Door(hidden=True)
    async with serving(door) as load:
        turn = await play(load, "json")
    assert turn.ended_s is None
    (complaint,) = load.complaints
    assert "404" in complaint


async def test_a_message_that_is_refused_for_good_is_a_complaint() -> None:
    door = Door(refusals=[422])
    async with serving(door) as load:
        await play(load, "sse")
    (complaint,) = load.complaints
    assert "422" in complaint
    assert load.accepted == 0


async def test_a_turn_without_an_end_is_a_complaint() -> None:
    door = Door(refusals=[503] * 10_000)
    async with serving(door, patience_s=0.5) as load:
        await play(load, "json")
    (complaint,) = load.complaints
    assert "no end" in complaint
    assert load.statuses[503] >= 2


async def test_turns_begin_on_schedule_though_none_has_ended() -> None:
    door = Door(refusals=[503] * 10_000)
    until = asyncio.Event()
    async with serving(door) as load:
        running = asyncio.create_task(load.run(until))
        async with asyncio.timeout(30):
            while len(load.turns) < 40:
                await asyncio.sleep(0.01)
        assert load.accepted == 0
        door.refusals.clear()
        until.set()
        await asyncio.wait_for(running, 60)
    assert load.accepted == load.ended == len(load.turns)
    assert sum(load.habits.values()) == len(load.turns)
    assert load.complaints == []


async def test_a_gateway_that_left_the_rotation_gets_no_request() -> None:
    door = Door()
    async with serving(door) as load:
        door.ports.pop(1)
        for seed in range(4):
            await play(load, "resuming", seed=seed)
    assert {number for number, _, _ in door.posts} == {0}
    assert {number for number, _ in door.reads} == {0}


async def test_the_same_dice_begin_the_same_turns() -> None:
    texts = []
    for _ in range(2):
        door = Door()
        async with serving(door) as load:
            for _ in range(5):
                caller, conversation = load._places[0]
                load._begin(caller, conversation, 0.0)
            texts.append([(turn.habit, turn.post.key) for turn in load.turns])
            await asyncio.gather(*load._open)
    assert texts[0] == texts[1]
