from dataclasses import replace
from uuid import uuid5

import pytest

from services.context_assembly.core.history import HistoryRow
from services.context_assembly.core.invariants import (
    INVARIANTS,
    Evidence,
    InvariantBroken,
    check,
)
from services.context_assembly.core.plan import PromptPlan
from services.context_assembly.core.planner import Planner
from tests.unit.services.context_assembly.core.builders import (
    ROOT,
    messages,
    planner,
    turn_after,
)

ROWS = messages(10, 10, 10, 10)
PLANNER = planner()


def plan_of(rows: list[HistoryRow]) -> PromptPlan:
    return PLANNER.plan(turn_after(ROWS), rows)


def broken(plan: PromptPlan, evidence: Evidence) -> str:
    with pytest.raises(InvariantBroken) as caught:
        check(plan, evidence)
    assert caught.value.invariant in INVARIANTS
    return caught.value.invariant


def test_a_plan_made_by_the_planner_breaks_nothing() -> None:
    check(plan_of(ROWS), Evidence(PLANNER, ROWS))


def test_the_current_message_twice_is_noticed() -> None:
    plan = plan_of(ROWS)
    again = plan.blocks[-1]._replace(kind="message")

    twice = replace(plan, blocks=(again, *plan.blocks))
    assert broken(twice, Evidence(PLANNER, ROWS)) == "current_turn_once_in_plan"


def test_a_missing_current_message_is_noticed() -> None:
    plan = plan_of(ROWS)

    without = replace(plan, blocks=plan.blocks[:-1])
    assert broken(without, Evidence(PLANNER, ROWS)) == "current_turn_once_in_plan"


def test_a_replaced_message_in_a_plan_is_noticed() -> None:
    gone = frozenset({ROWS[1].message_id})

    assert broken(plan_of(ROWS), Evidence(PLANNER, ROWS, superseded=gone)) == "superseded_excluded"


def test_a_plan_over_its_budget_is_noticed() -> None:
    plan = plan_of(ROWS)

    smaller = replace(plan, budget_tokens=plan.tokens - 1)
    assert broken(smaller, Evidence(PLANNER, ROWS)) == "plan_within_budget"


def test_offsets_that_do_not_add_up_are_noticed() -> None:
    plan = plan_of(ROWS)
    shifted = plan.blocks[1]._replace(token_offset=plan.blocks[1].token_offset + 1)

    wrong = replace(plan, blocks=(plan.blocks[0], shifted, *plan.blocks[2:]))
    assert broken(wrong, Evidence(PLANNER, ROWS)) == "plan_within_budget"


def test_a_hole_in_the_history_is_noticed() -> None:
    holed = plan_of([ROWS[0], ROWS[2], ROWS[3]])

    assert broken(holed, Evidence(PLANNER, ROWS)) == "history_contiguous"


def test_a_message_that_was_stored_twice_is_noticed() -> None:
    rows = [*ROWS, ROWS[3]._replace(message_id=uuid5(ROOT, "double write"))]

    assert broken(plan_of(rows), Evidence(PLANNER, rows)) == "history_contiguous"


def test_swapped_messages_are_noticed() -> None:
    plan = plan_of(ROWS)
    first, second, *rest = plan.blocks
    swapped = (
        second._replace(token_offset=0),
        first._replace(token_offset=second.tokens),
        *rest,
    )

    assert broken(replace(plan, blocks=swapped), Evidence(PLANNER, ROWS)) == "history_contiguous"


def test_a_message_of_somewhere_else_is_noticed() -> None:
    foreign = [*ROWS[:3], ROWS[3]._replace(message_id=uuid5(ROOT, "elsewhere"))]

    assert broken(plan_of(foreign), Evidence(PLANNER, ROWS)) == "history_contiguous"


def test_a_planner_that_decides_differently_the_second_time_is_noticed() -> None:
    other: Planner = planner(window=100 + 10 + 20)

    assert broken(plan_of(ROWS), Evidence(other, ROWS)) == "plan_deterministic"
