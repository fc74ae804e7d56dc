"""Stories of turns from their rows: order, words, and whose dead letters they are."""

from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.ids import caused_id
from libs.operating.documents import health_of, leases_of
from libs.operating.reasons import INVARIANTS, MEANINGS, meaning_of
from libs.operating.story import Facts, story, trace_of
from services.context_assembly.core import invariants
from tests.rig.told_turns import facts_of, later, letter_row, turn_row


def test_a_turn_that_waits_can_only_be_ended() -> None:
    row = turn_row(
        "waits", status="pending", reason=None, is_open=True, started_at=None, deadline_at=None,
        ended_at=None, queued_at_position=2, length=None,
    )  # fmt: skip
    told = story(Facts(turn=row), now=later(90))
    assert told["turn"]["status"] == "queued"
    assert told["sentence"] == "Queued for 90 s."
    assert told["may"] == ["end"]
    assert [line["what"] for line in told["lines"]] == ["request accepted", "queued at place 2"]
    assert told["lines"][0]["gap_s"] is None


def test_an_overdue_turn_says_so_and_may_be_reaped() -> None:
    row = turn_row(
        "late", status="generating", reason=None, is_open=True, is_overdue=True, ended_at=None
    )
    told = story(facts_of("late", row=row), now=later(400))
    assert told["sentence"] == "Generating for 6 min 40 s; its deadline has passed."
    assert told["may"] == ["end", "reap"]


def test_what_an_operator_did_stands_in_the_reason() -> None:
    act = {
        "action": "turn.ended", "target_id": uuid4(), "actor": "key:1", "details": {},
        "at": later(11),
    }  # fmt: skip
    facts = replace(facts_of("ended"), acts=[act])
    told = story(facts, now=later(20))
    assert told["why"].endswith("An operator did it: turn.ended by key:1.")
    assert "operator: turn.ended" in [line["what"] for line in told["lines"]]


@pytest.mark.parametrize(
    ("at", "event", "topic", "is_own"),
    [
        (6.0, None, "context.events", True),
        (-1.0, None, "context.events", False),
        (60.0, None, "context.events", False),
        (60.0, "turn.started", "turn.events", True),
        (6.0, "foreign", "turn.requests", False),
    ],
)
def test_a_dead_letter_is_a_turns_by_its_event_or_by_its_time(
    at: float, event: str | None, topic: str, *, is_own: bool
) -> None:
    facts = facts_of("own")
    named = caused_id(facts.turn["turn_id"], event) if event == "turn.started" else uuid4()
    letter = {
        **letter_row("any"), "at": later(at), "topic": topic,
        "event_id": None if event is None else named,
    }  # fmt: skip
    told = story(replace(facts, dead_letters=[letter]), now=later(90))
    assert bool(told["dead_letters"]) is is_own


@given(st.permutations(range(6)), st.floats(0.1, 20.0))
def test_lines_go_down_in_time_whatever_the_order_of_the_rows(
    order: list[int], ended: float
) -> None:
    facts = facts_of("mixed", ended_at=later(ended))
    deliveries = [{**facts.deliveries[n % 2], "at": later(n * ended / 6)} for n in order]
    told = story(replace(facts, deliveries=deliveries), now=later(30))
    times = [line["at"] for line in told["lines"]]
    assert times == sorted(times)
    assert all(line["gap_s"] is None or line["gap_s"] >= 0 for line in told["lines"])


def test_every_reason_has_its_words() -> None:
    for reason, meaning in MEANINGS.items():
        assert meaning.why.endswith("."), reason
        assert meaning.next_step.endswith("."), reason
    assert meaning_of("failed", "of another release", is_open=False).why
    assert meaning_of("completed", None, is_open=False).why == "The answer is complete."


def test_every_rule_of_plans_that_can_be_broken_has_its_words() -> None:
    assert set(INVARIANTS) == set(invariants.INVARIANTS)
    facts = facts_of("broken", row=turn_row("broken", reason="invariant"))
    refused = {**facts.steps[0], "reason": "invariant", "invariant": "trust_framed"}
    told = story(replace(facts, steps=[refused]), now=later(20))
    assert told["why"].endswith("It is trust_framed: data was not set apart from instructions.")


def test_a_strange_trace_context_is_no_trace() -> None:
    assert trace_of("00-abc-def-01") == "abc"
    assert trace_of("x") is None
    assert trace_of(None) is None


def test_the_health_of_a_process_is_its_worst_check_and_silence_is_worse() -> None:
    def told(state: str, silent_s: float = 1.0) -> str:
        return health_of({"silent_s": silent_s, "checks": {"a": {"state": state}}})

    assert [told(s) for s in ("ok", "degraded", "failed")] == ["ready", "degraded", "not ready"]
    assert told("ok", 60.0) == "silent"
    assert leases_of([{"left_s": 1.0, "running": 2}, {"left_s": 0.0, "running": 3}]) == {
        "held": 1, "run_out": 1, "running": 2, "orphaned": 3,
    }  # fmt: skip
