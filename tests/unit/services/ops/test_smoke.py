"""The smoke run fails for each thing it is there to notice."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from services.ops.answer import Answer
from services.ops.smoke import Answered, wrongs_of
from services.ops.sse import StreamEvent


def answered(name: str, text: str, *, planned: tuple[str, ...]) -> Answered:
    answer = Answer()
    raw = text.encode()
    digest = hashlib.sha256(raw).hexdigest()
    done = {"status": "completed", "reason": None, "length": len(raw), "sha256": digest}
    for event, data in (("content_delta", {"text": text}), ("done", done)):
        answer.take(StreamEvent("1-1", event, json.dumps(data)))
    turn = {
        "id": name,
        "status": "completed",
        "reason": None,
        "user_message_id": f"{name}-user",
        "assistant_message_id": f"{name}-assistant",
    }
    return Answered(answer, turn, {"steps": [{"plan": {"message_ids": list(planned)}}]}, text)


FIRST = answered("one", "Paris.", planned=("one-user",))
SECOND = answered("two", "Rome.", planned=("one-user", "one-assistant", "two-user"))


def test_two_good_turns_are_good() -> None:
    assert wrongs_of(FIRST, SECOND) == []


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"stored": "Rome"}, "turn two: what was streamed is not what is stored"),
        (
            {"turn": {**SECOND.turn, "status": "partial", "reason": "deadline"}},
            "turn two: the turn is partial (deadline)",
        ),
        (
            {"plan": {"steps": [{"plan": {"message_ids": ["one-user", "two-user"]}}]}},
            "the second plan lacks messages of the first turn: one-assistant",
        ),
    ],
)
def test_what_is_not_as_promised_is_named(changed: dict[str, Any], wrong: str) -> None:
    assert wrongs_of(FIRST, replace(SECOND, **changed)) == [wrong]


def test_an_empty_answer_is_no_answer() -> None:
    assert "turn one: the answer is empty" in wrongs_of(
        answered("one", " \n", planned=("one-user",)), SECOND
    )
