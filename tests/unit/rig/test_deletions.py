"""What shows a deleted message is found, wherever it stands and however it is written."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from libs.ids import message_id
from tests.rig.checked_world import CheckedWorld
from tests.rig.checker import check
from tests.rig.deletions import look_again
from tests.rig.ledger import Act, Ledger, Post, Reply


def deletes(world: CheckedWorld, which: str) -> Act:
    """A message of the first turn that was deleted, as its client was told."""
    target = world.turns[0].values[which]
    act = Act("delete_message", world.conversation, target, [Reply(204, {}, {})])
    world.ledger.acts.append(act)
    world.execute(
        "update ingestion.messages set deleted_at = now() where id = %(id)s", {"id": target}
    )
    return act


SHOWN: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "its row in a list": lambda id_, _: {"object": "list", "data": [{"id": id_, "content": ""}]},
    "its words in a field": lambda _, text: {"id": "x", "title": f"about {text}"},
    "its words deep inside": lambda _, text: {"steps": [{"plan": {"blocks": [{"text": text}]}}]},
}


@pytest.mark.postgres
@pytest.mark.parametrize("shown", [None, *SHOWN])
async def test_what_shows_a_deleted_message_is_found(
    world: CheckedWorld, shown: str | None
) -> None:
    act = deletes(world, "asked_id")
    asked: list[str] = []

    async def ask(method: str, path: str, _body: Any) -> Reply:
        asked.append(f"{method} {path}")
        told: dict[str, Any] = {"object": "list", "data": [{"id": str(uuid4())}]}
        if shown is not None and path.endswith("/plan"):
            told = SHOWN[shown](str(act.target), world.turns[0].asked)
        return Reply(200, told, {})

    await look_again(ask, world.ledger)

    assert act.looks == len(asked) - 1  # the branches are asked for once more, to know them
    plans = [f"GET /v1/turns/{turn.id}/plan" for turn in world.turns]
    assert act.shown_after == ([] if shown is None else plans)
    verdict = check(world.admin_url, [world.ledger], evidence=world.evidence)
    assert verdict.checked["deleted_is_gone"] > act.looks
    assert bool(verdict.broken) == (shown is not None)


@pytest.mark.postgres
async def test_the_stream_of_a_deleted_answer_must_be_refused(world: CheckedWorld) -> None:
    act = deletes(world, "answer_id")

    async def ask(method: str, _path: str, _body: Any) -> Reply:
        return Reply(200 if method == "HEAD" else 404, {}, {})

    await look_again(ask, world.ledger)

    assert act.shown_after == [f"HEAD /v1/turns/{world.turns[0].id}/events"]


def test_words_that_two_messages_have_are_no_canary() -> None:
    ledger = Ledger(uuid4())
    texts = ("alike-alike-alike only-once-only-once", "alike-alike-alike", "short")
    for text in texts:
        reply = Reply(202, {"turn_id": str(uuid4())}, {})
        ledger.posts.append(Post(uuid4(), text, text, [reply]))
    messages = [message_id(post.turn_id, "user") for post in ledger.posts if post.turn_id]

    found = [ledger.canary_of_message(message) for message in messages]

    assert found == ["only-once-only-once", None, None]
    assert ledger.canary_of_message(uuid4()) is None
