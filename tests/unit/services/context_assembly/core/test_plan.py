import json
from dataclasses import replace
from uuid import uuid5

import pytest

from libs.tokens import count
from schemas.prompt_plan import SECTIONS
from services.context_assembly.core.budget import ModelLimits, Sampling, prompt_budget, sampling_of
from services.context_assembly.core.document import to_document
from services.context_assembly.core.instructions import SystemPolicy
from services.context_assembly.core.payload import HistoryChanged, fingerprint, seal
from services.context_assembly.core.plan import ASSEMBLY_REVISION, MAX_EXCLUDED_IDS, PromptPlan
from services.context_assembly.core.planner import Planner, PromptTooLarge
from tests.unit.services.context_assembly.core.builders import (
    CURRENT,
    NO_POLICY,
    PLAIN,
    ROOT,
    message,
    messages,
    planner,
    text_of,
    turn_after,
)

ALTERNATING = replace(PLAIN, alternate_roles=True)


def shown(plan: PromptPlan) -> list[int]:
    """Seqs of the history in a plan."""
    return [block.seq for block in plan.blocks if block.kind == "message" and block.seq is not None]


def rendered(plan: PromptPlan) -> list[dict[str, str]]:
    texts = {block.id: text_of(block.id) for block in plan.blocks}
    _, payload = seal(plan, texts)
    body = json.loads(payload)
    found: list[dict[str, str]] = body["messages"]
    return found


def test_the_reply_reserve_is_subtracted_exactly_once() -> None:
    policy = SystemPolicy("word " * 200, "1")
    system_tokens = count(policy.text, PLAIN.tokenizer)
    rows = messages(50, 50, 50, 50)
    turn = turn_after(rows, current_tokens=50)

    def plan(total: int) -> PromptPlan:
        limits = replace(PLAIN, window=total)
        return Planner(limits, policy, Sampling(100)).plan(turn, rows)

    fits = system_tokens + 50 + 100 + 200
    exact, short = plan(fits), plan(fits - 1)

    assert shown(exact) == [1, 2, 3, 4]
    assert exact.tokens + exact.sampling.max_tokens == fits
    assert shown(short) == [2, 3, 4]
    assert [gone.id for gone in short.excluded] == [str(rows[0].message_id)]
    assert [gone.reason for gone in short.excluded] == ["budget"]


def test_the_walk_stops_at_a_huge_message_and_leaves_no_hole() -> None:
    rows = messages(10, 10, 20_000, 10, 10)
    plan = planner(window=4_000 + 10 + 100).plan(turn_after(rows), rows)

    assert shown(plan) == [4, 5]
    assert [gone.id for gone in plan.excluded] == [str(rows[i].message_id) for i in (2, 1, 0)]
    assert {gone.reason for gone in plan.excluded} == {"budget"}
    assert plan.excluded_up_to_seq == 3
    assert (plan.loaded, plan.kept, plan.trimmed) == (5, 2, 3)


def test_history_that_fits_is_untouched_and_nothing_is_excluded() -> None:
    rows = messages(15, 15, 15, 15)
    plan = planner(window=100_000).plan(turn_after(rows), rows)

    assert plan.excluded == ()
    assert plan.excluded_up_to_seq is None
    assert [entry["content"] for entry in rendered(plan)] == [
        *(text_of(str(row.message_id)) for row in rows),
        text_of(str(CURRENT)),
    ]


def test_an_empty_conversation_gives_the_current_message_alone() -> None:
    plan = planner().plan(turn_after([]), [])

    assert [block.kind for block in plan.blocks] == ["current"]
    assert plan.message_ids == (str(CURRENT),)
    assert plan.seq_range == (1, 1)


def test_the_current_message_never_enters_through_history() -> None:
    rows = messages(10, 10)
    turn = turn_after(rows)
    again = message(turn.base_seq, 10, role="user")._replace(message_id=CURRENT)
    before = again._replace(seq=2)

    plan = planner().plan(turn, [*rows, again, before])

    assert plan.message_ids.count(str(CURRENT)) == 1
    assert plan.blocks[-1].id == str(CURRENT)


def test_messages_at_or_after_the_boundary_are_not_history() -> None:
    rows = messages(10, 10, 10, 10)
    turn = replace(turn_after(rows), base_seq=3)

    assert shown(planner().plan(turn, rows)) == [1, 2]


def test_an_empty_placeholder_is_never_shown() -> None:
    rows = messages(10, 0, 10, 10)
    rows[1] = rows[1]._replace(length=0, status="failed")
    plan = planner().plan(turn_after(rows), rows)

    assert shown(plan) == [1, 3, 4]
    assert all(entry["content"] for entry in rendered(plan))


def test_order_comes_from_seq_not_from_ids_or_times() -> None:
    rows = [
        message(1, 5)._replace(message_id=uuid5(ROOT, "zz"), observed_at="2026-01-01T00:00:00Z"),
        message(2, 5)._replace(message_id=uuid5(ROOT, "aa"), observed_at="2026-01-01T00:00:00Z"),
    ]
    turn = turn_after(rows)

    for arrival in (rows, rows[::-1]):
        roles = [block.role for block in planner().plan(turn, arrival).blocks]
        assert roles == ["user", "assistant", "user"]


def test_a_message_that_cannot_fit_alone_is_refused() -> None:
    rows = messages(10, 10)
    exact = planner(window=600).plan(turn_after(rows, current_tokens=500), rows)
    assert shown(exact) == []

    with pytest.raises(PromptTooLarge) as caught:
        planner(window=600).plan(turn_after(rows, current_tokens=501), rows)
    assert (caught.value.required_tokens, caught.value.budget_tokens) == (501, 500)


def test_a_full_budget_asks_for_no_older_message() -> None:
    rows = messages(10, 10)

    def wanted(current_tokens: int) -> int:
        turn = turn_after(rows, current_tokens=current_tokens)
        return planner(window=600).older_rows_wanted(turn, rows)

    assert wanted(501) == 0  # the current message alone does not fit
    assert wanted(481) == 0
    assert wanted(480) == 1
    assert wanted(400) == 1 + 80 // 10  # as many as would fit at the average so far


def test_the_safety_factor_covers_text_and_overheads() -> None:
    limits = replace(PLAIN, window=1_600, safety_factor=1.5, reply_overhead=30)

    assert prompt_budget(limits, 100) == 1_500 / 1.5 - 30
    assert prompt_budget(limits, 1_600) == 0


def test_every_message_carries_its_overhead() -> None:
    limits = replace(PLAIN, per_message_overhead=7)
    rows = messages(10, 10)
    plan = planner(limits).plan(turn_after(rows), rows)

    assert [block.tokens for block in plan.blocks] == [17, 17, 17]
    assert [block.token_offset for block in plan.blocks] == [0, 17, 34]


def test_a_failed_turn_keeps_roles_alternating_with_a_counted_block() -> None:
    rows = [message(1, 10), message(3, 10), message(4, 10)]
    plan = planner(ALTERNATING).plan(turn_after(rows), rows)

    kinds = [block.kind for block in plan.blocks]
    assert kinds == ["message", "no_answer", "message", "message", "current"]
    assert plan.blocks[1].tokens == count("[no answer]", PLAIN.tokenizer)
    roles = [entry["role"] for entry in rendered(plan)]
    assert roles == ["user", "assistant", "user", "assistant", "user"]
    assert rendered(plan)[1]["content"] == "[no answer]"


def test_a_failed_last_turn_is_closed_before_the_current_message() -> None:
    rows = [message(1, 10), message(2, 10), message(3, 10)]
    plan = planner(ALTERNATING).plan(turn_after(rows), rows)

    assert [entry["role"] for entry in rendered(plan)] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]


def test_models_that_take_two_user_messages_in_a_row_get_no_inserted_block() -> None:
    rows = [message(1, 10), message(3, 10)]
    plan = planner().plan(turn_after(rows), rows)

    assert [block.kind for block in plan.blocks] == ["message", "message", "current"]


def test_where_roles_alternate_a_question_and_its_answer_are_trimmed_together() -> None:
    rows = messages(50, 50, 50, 50)
    turn = turn_after(rows, current_tokens=50)

    assert shown(planner(ALTERNATING, window=300).plan(turn, rows)) == [3, 4]
    assert shown(planner(PLAIN, window=300).plan(turn, rows)) == [2, 3, 4]


@pytest.mark.parametrize("status", ["partial", "cancelled"])
def test_an_answer_that_was_cut_off_is_marked(status: str) -> None:
    rows = [message(1, 10), message(2, 10, status=status)]
    plan = planner().plan(turn_after(rows), rows)

    assert [block.kind for block in plan.blocks] == ["message", "message", "interrupted", "current"]
    assert plan.blocks[2].tokens > 0
    answer = rendered(plan)[1]
    assert answer["role"] == "assistant"
    assert answer["content"] == text_of(str(rows[1].message_id)) + "\n\n[interrupted]"


def test_a_mark_that_does_not_fit_takes_its_answer_with_it() -> None:
    rows = [message(1, 10), message(2, 10, status="partial")]
    mark = planner().plan(turn_after(rows), rows).blocks[2].tokens

    exact = planner(window=100 + 10 + 10 + mark).plan(turn_after(rows), rows)
    short = planner(window=100 + 10 + 10 + mark - 1).plan(turn_after(rows), rows)

    assert shown(exact) == [2]
    assert shown(short) == []


def test_the_policy_text_heads_the_prompt_and_is_never_trimmed() -> None:
    rows = messages(400, 400)
    policy = SystemPolicy("Answer briefly.", "2026-03")
    plan = Planner(replace(PLAIN, window=130), policy, Sampling(100)).plan(turn_after(rows), rows)

    assert [block.kind for block in plan.blocks] == ["system", "current"]
    assert (plan.blocks[0].id, plan.blocks[0].version) == ("policy:2026-03", "2026-03")
    assert rendered(plan)[0] == {"role": "system", "content": "Answer briefly."}


def test_a_plan_lists_the_nearest_exclusions_and_tells_the_rest_by_a_boundary() -> None:
    rows = messages(*[50] * 200)
    plan = planner(window=100 + 10 + 100).plan(turn_after(rows), rows)

    assert shown(plan) == [199, 200]
    assert len(plan.excluded) == MAX_EXCLUDED_IDS
    assert plan.excluded[0].id == str(rows[197].message_id)
    assert plan.excluded_up_to_seq == 198
    assert plan.trimmed == 198


def test_the_document_says_what_was_planned_without_a_text() -> None:
    rows = messages(50, 50, 50, 50)
    unsealed = planner(window=310).plan(turn_after(rows), rows)
    plan, payload = seal(unsealed, {block.id: text_of(block.id) for block in unsealed.blocks})
    document = to_document(plan)

    assert document["fingerprint"] == fingerprint(payload)
    assert document["assembly_revision"] == ASSEMBLY_REVISION
    assert document["message_ids"] == [str(row.message_id) for row in rows] + [str(CURRENT)]
    assert document["seq_range"] == [1, 5]
    assert document["count"] == 5
    assert document["history"] == {"base_seq": 5, "loaded": 4, "kept": 4, "trimmed": 0}
    assert document["budget"]["used"] == 210
    sections = {part["section"]: part for part in document["budget"]["sections"]}
    assert list(sections) == list(SECTIONS)
    assert {
        name: (part["before"], part["used"], part["after"]) for name, part in sections.items()
    } == {
        "system": (210, 0, 210),
        "workspace": (210, 0, 210),
        "summary": (200, 0, 200),
        "memory": (200, 0, 200),
        "retrieved": (200, 0, 200),
        "tools": (200, 0, 200),
        "history": (200, 200, 0),
        "current": (210, 10, 200),
    }
    assert "text of" not in json.dumps(document)


def test_the_payload_is_canonical_json_of_what_the_provider_gets() -> None:
    plan = Planner(PLAIN, NO_POLICY, Sampling(20, temperature=0.5, top_p=1.0)).plan(
        turn_after([]), []
    )
    sealed, payload = seal(plan, {str(CURRENT): 'é "quoted" 漢 <|endoftext|>'})

    assert payload.decode() == (
        '{"max_tokens":20,"messages":[{"content":"é \\"quoted\\" 漢 <|endoftext|>",'
        '"role":"user"}],"model":"plain","temperature":0.5,"top_p":1.0}'
    )
    assert sealed.fingerprint == fingerprint(payload)


def test_a_chosen_message_without_a_text_is_not_sent_as_nothing() -> None:
    rows = messages(5)
    plan = planner().plan(turn_after(rows), rows)

    with pytest.raises(HistoryChanged):
        seal(plan, {str(CURRENT): "hello"})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, Sampling(100)),
        ({}, Sampling(100)),
        ({"max_tokens": 7}, Sampling(7)),
        ({"max_tokens": 101}, Sampling(100)),
        ({"max_tokens": 0}, Sampling(100)),
        ({"max_tokens": True}, Sampling(100)),
        ({"max_tokens": "7"}, Sampling(100)),
        ({"temperature": 0, "top_p": 1}, Sampling(100, temperature=0, top_p=1)),
        ({"temperature": 2.5, "top_p": -0.1}, Sampling(100)),
        ({"temperature": False}, Sampling(100)),
        ({"cancel_after_s": 5, "stream": False, "messages": []}, Sampling(100)),
    ],
)
def test_only_bounded_options_of_the_model_reach_the_payload(
    options: dict[str, object] | None, expected: Sampling
) -> None:
    limits: ModelLimits = PLAIN
    assert sampling_of(options, limits) == expected
