"""Each assertion holds for a sound plan, and fails for every way of breaking it."""

import copy
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from schemas.prompt_plan import EXAMPLES_PATH
from turnwire.testing import (
    assert_current_turn_once,
    assert_deterministic,
    assert_one_answer,
    assert_superseded_excluded,
    assert_within_budget,
)

Json: TypeAlias = dict[str, Any]


def block(id_: str, kind: str, tokens: int, offset: int) -> Json:
    return {"id": id_, "kind": kind, "tokens": tokens, "token_offset": offset}


PLAN: Json = {
    "step_id": "s1",
    "fingerprint": "f00",
    "blocks": [
        block("system", "system", 10, 0),
        block("m1", "message", 5, 10),
        block("m2", "message", 6, 15),
        block("m3", "current", 4, 21),
    ],
    "excluded": [{"id": "m0", "reason": "budget"}],
    "budget": {
        "window": 100,
        "reply_reserve": 20,
        "tokens": 80,
        "used": 25,
        "sections": [
            {"section": "system", "before": 80, "used": 10, "after": 70, "ceiling": None},
            {"section": "history", "before": 66, "used": 11, "after": 55, "ceiling": 40},
        ],
    },
}


def broken(change: Callable[[Json], object]) -> Json:
    plan = copy.deepcopy(PLAN)
    change(plan)
    return plan


def continued(plan: Json) -> None:
    plan["blocks"].append(block("m4", "continuation", 3, 25))


def test_a_sound_plan_passes_in_every_form() -> None:
    for plan in (PLAN, {"steps": [{"plan": PLAN}, {"plan": PLAN}]}, broken(continued)):
        assert_current_turn_once(plan, message_id="m3")
        assert_superseded_excluded(plan, ["m9"])
    assert_within_budget(PLAN)
    assert_deterministic([PLAN, {**PLAN, "step_id": "s2"}])


@pytest.mark.parametrize("plan", json.loads(EXAMPLES_PATH.read_text(encoding="utf-8")))
def test_the_published_examples_pass(plan: Json) -> None:
    assert_current_turn_once(plan)
    assert_superseded_excluded(plan)
    assert_within_budget(plan)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: p["blocks"].pop(), "0 current blocks"),
        (lambda p: p["blocks"].append(block("m5", "current", 1, 25)), "2 current blocks"),
        (lambda p: p["blocks"][1].update(id="m3"), "stands also in blocks"),
        (lambda p: p["blocks"].append(block("m5", "message", 1, 25)), "behind the current"),
        (lambda p: p["blocks"][3].update(id="m7"), "is m7, not m3"),
    ],
)
def test_a_current_message_that_is_not_there_once_is_noticed(
    change: Callable[[Json], object], told: str
) -> None:
    with pytest.raises(AssertionError, match=told):
        assert_current_turn_once(broken(change), message_id="m3")


def test_what_was_replaced_or_left_out_must_not_be_shown() -> None:
    with pytest.raises(AssertionError, match="block 1 shows m1, which was replaced"):
        assert_superseded_excluded(PLAN, ["m1"])
    with pytest.raises(AssertionError, match=r"block 2 shows m0, which was left out \(budget\)"):
        assert_superseded_excluded(broken(lambda p: p["blocks"][2].update(id="m0")))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: p["blocks"][0].update(tokens=11), "26 tokens, not 25"),
        (lambda p: p["budget"].update(tokens=24), "over the budget of 24"),
        (lambda p: p["budget"].update(reply_reserve=21), "of a window of 100"),
        (lambda p: p["blocks"][2].update(token_offset=14), "block 2 begins at token 14, not at 15"),
        (lambda p: p["budget"]["sections"][1].update(before=10), "uses 11 tokens of 10"),
        (lambda p: p["budget"]["sections"][1].update(after=56), "leaves 56"),
        (lambda p: p["budget"]["sections"][1].update(ceiling=10), "uses 11 tokens of 10"),
    ],
)
def test_numbers_that_do_not_fit_are_noticed(change: Callable[[Json], object], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        assert_within_budget(broken(change))


def test_plans_that_differ_are_noticed() -> None:
    other = broken(lambda p: p.update(fingerprint="f01"))
    with pytest.raises(AssertionError, match=r"plan 2 differs from the first in \['fingerprint'\]"):
        assert_deterministic([PLAN, other])
    with pytest.raises(AssertionError, match="at least two"):
        assert_deterministic([PLAN])


def message(id_: str, role: str, status: str = "completed", turn: str = "t1") -> Json:
    return {"id": id_, "turn_id": turn, "role": role, "status": status}


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([message("q", "user")], "0 answers"),
        ([message("a", "assistant"), message("b", "assistant")], "2 answers"),
        ([message("a", "assistant"), message("a", "assistant")], "listed twice"),
        ([message("a", "assistant", "generating")], "no final state"),
        ([message("a", "assistant", turn="t2")], "0 answers"),
    ],
)
def test_a_turn_without_its_one_final_answer_is_noticed(rows: list[Json], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        assert_one_answer(rows, "t1")
    assert_one_answer([message("q", "user"), message("a", "assistant", "cancelled")], "t1")


def test_a_turn_without_a_plan_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no plan"):
        assert_within_budget({"steps": []})
