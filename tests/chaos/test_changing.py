"""Clients that change what was asked, before scripted gateways: what they send, do and report."""

from typing import Any

import pytest

from libs.ids import message_id
from tests.chaos import changing
from tests.chaos.caller import LoadTurn
from tests.chaos.changing import HABITS, changes_in
from tests.chaos.clients import HABITS as ALL_HABITS
from tests.chaos.door import Door, play, problem, serving
from tests.rig.ledger import Ledger

SEEDS = range(6)


async def played(door: Door, habit: str, seed: int = 0) -> tuple[LoadTurn, Ledger, list[str]]:
    """One turn by one habit, its ledger, and what the load complains of."""
    async with serving(door) as load:
        turn = await play(load, habit, seed=seed)
        return turn, door.ledgers[0], load.complaints


def asked_for(door: Door, end: str) -> list[tuple[str, str, dict[str, Any]]]:
    """What was asked whose path ends so."""
    return [one for one in door.asked if one[1].endswith(end)]


def test_six_of_a_hundred_turns_are_cancelled_and_six_more_are_changed_otherwise() -> None:
    assert sum(ALL_HABITS.values()) == 100
    assert HABITS["cancelling"] == 6
    assert sum(HABITS.values()) == 12


@pytest.mark.parametrize("habit", sorted(HABITS))
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_changing_client_sees_the_end_of_all_its_turns(habit: str, seed: int) -> None:
    door = Door(pace_s=0.01)
    turn, ledger, complaints = await played(door, habit, seed)

    assert complaints == []
    assert turn.ended_s is not None
    assert all(post.turn_id is not None for post in ledger.posts)
    for post in ledger.posts:
        assert post.stream is not None
        assert post.stream.faults() == []
        assert post.stream.done is not None or habit == "forgetting"


async def test_a_turn_is_cancelled_while_its_stream_is_read_and_keeps_what_was_shown() -> None:
    before: set[bool] = set()
    for seed in range(12):
        door = Door(pace_s=0.1)
        turn, ledger, complaints = await played(door, "cancelling", seed)
        assert complaints == []
        (act,) = ledger.acts
        assert (act.kind, act.target) == ("cancel", turn.post.turn_id)
        assert turn.status == ("cancelled" if act.is_done else "completed")
        assert (act.done_at is not None) == act.is_done
        assert turn.post.stream is not None
        assert turn.post.stream.text.startswith(act.shown_before)
        before.add(bool(act.shown_before))
    assert before == {True, False}


async def test_a_cancel_whose_answer_was_lost_is_repeated_and_may_find_the_end() -> None:
    terminal = (409, problem("turn-already-terminal"))
    door = Door(answers={"cancel": [(503, {}), terminal]})
    _, ledger, complaints = await played(door, "cancelling")

    assert complaints == []
    assert [reply.status for reply in ledger.acts[0].replies] == [503, 409]
    assert not ledger.acts[0].is_done


async def test_a_cancelled_turn_that_is_not_found_is_a_complaint() -> None:
    door = Door(answers={"cancel": [(404, problem("not-found"))]})
    _, _, complaints = await played(door, "cancelling")

    (complaint,) = complaints
    assert "cancel of" in complaint
    assert "404" in complaint


async def test_a_message_is_edited_by_its_id_with_another_text_and_key() -> None:
    door = Door()
    turn, ledger, _ = await played(door, "editing")

    ((method, path, body),) = door.asked
    first, edit = ledger.posts
    assert method == "PATCH"
    assert turn.post.turn_id is not None
    assert path.endswith(f"/messages/{message_id(turn.post.turn_id, 'user')}")
    assert body == {"content": edit.text}
    assert edit.text != first.text
    assert edit.key != first.key
    assert edit.kind == "edit"


@pytest.mark.parametrize(
    ("habit", "kind"), [("regenerating", "regenerate"), ("continuing", "continue")]
)
async def test_an_answer_is_asked_for_again_or_gone_on_with_by_its_turn(
    habit: str, kind: str
) -> None:
    door = Door(pace_s=0.01)
    turn, ledger, _ = await played(door, habit)

    ((method, _, body),) = asked_for(door, f"/v1/turns/{turn.post.turn_id}/{kind}")
    assert (method, body) == ("POST", {})
    again = ledger.posts[-1]
    assert (again.kind, again.target, again.text) == (kind, turn.post.turn_id, "")


async def test_an_answer_that_cannot_be_continued_is_no_complaint() -> None:
    door = Door(answers={"continue": [(409, problem("not-continuable"))]})
    _, ledger, complaints = await played(door, "continuing")

    assert complaints == []
    assert ledger.posts[-1].accepted is None


async def test_a_deleted_message_that_still_shows_is_noted() -> None:
    for hides_nothing in (False, True):
        door = Door(hides_nothing=hides_nothing)
        _, ledger, complaints = await played(door, "forgetting")
        (act,) = ledger.acts
        assert complaints == []
        assert act.kind == "delete_message"
        assert act.is_done
        assert bool(act.shown_after) == hides_nothing


async def test_a_deletion_that_was_refused_while_the_turn_ran_is_done_after_its_end() -> None:
    door = Door(answers={"delete": [(409, problem("turn-in-progress"))]})
    _, ledger, complaints = await played(door, "forgetting")

    refused, done = ledger.acts
    assert complaints == []
    assert (refused.is_done, done.is_done) == (False, True)
    assert refused.target == done.target


async def test_a_conversation_of_its_own_is_deleted_and_taken_back() -> None:
    door = Door(pace_s=0.05)
    turn, ledger, complaints = await played(door, "restoring")

    assert complaints == []
    delete, restore = ledger.acts
    assert (delete.kind, restore.kind) == ("delete", "restore")
    assert delete.target == restore.target == turn.post.conversation_id
    assert delete.shown_after == []
    assert [post.conversation_id for post in ledger.posts] == [turn.post.conversation_id] * 2
    assert changes_in([ledger]) == {"delete": 1, "restore": 1}


async def test_messages_are_sent_under_two_other_policies_at_once() -> None:
    seen: set[str] = set()
    for seed in range(12):
        door = Door()
        _, ledger, _ = await played(door, "choosing", seed)
        _, *others = ledger.posts
        policies = [post.policy for post in others if post.policy is not None]
        assert len(set(policies)) == changing.POLICIES_AT_ONCE
        assert sorted(policies) == sorted(body["policy"] for _, _, body in door.asked)
        seen.update(policies)
    assert seen == {"queue", "reject", "replace", "branch"}


@pytest.mark.parametrize(
    ("policy", "status", "slug"),
    [("reject", 409, "turn-in-progress"), ("queue", 429, "quota-exceeded")],
)
async def test_what_a_policy_promises_to_refuse_is_a_proper_answer(
    policy: str, status: int, slug: str
) -> None:
    refusal = (status, problem(slug, turn_id="a turn"))
    for seed in range(12):
        door = Door(answers={policy: [refusal]})
        async with serving(door) as load:
            await play(load, "choosing", seed=seed)
            refused = [post for post in door.ledgers[0].posts if post.policy == policy]
        if refused:
            (post,) = refused
            assert load.complaints == []
            assert [reply.status for reply in post.replies] == [status]
            assert all(one.ok for one in load.operations)
            assert load.changes[policy] == (policy == "reject")
            return
    pytest.fail(f"no seed chose {policy}")


async def test_what_another_policy_promises_is_asked_for_again() -> None:
    answers = {policy: [(429, problem("quota-exceeded"))] for policy in ("replace", "branch")}
    door = Door(answers=answers)
    async with serving(door) as load:
        for seed in SEEDS:
            await play(load, "choosing", seed=seed)

    sent = [post for post in door.ledgers[0].posts if post.policy in answers]
    assert {reply.status for post in sent for reply in post.replies} == {202, 429}
    assert all(post.accepted is not None for post in sent)
    assert not all(one.ok for one in load.operations)


async def test_a_refusal_that_names_no_running_turn_is_a_complaint() -> None:
    for seed in range(12):
        door = Door(answers={"reject": [(409, problem("turn-in-progress"))]})
        _, ledger, complaints = await played(door, "choosing", seed)
        if any(post.policy == "reject" for post in ledger.posts):
            (complaint,) = complaints
            assert "no name" in complaint
            return
    pytest.fail("no seed chose reject")
