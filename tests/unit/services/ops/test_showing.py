"""A turn and its plan read from top to bottom: the answer first, then the details."""

from services.ops.screen import Screen
from services.ops.showing import plan_lines, turn_lines

TURN = {
    "id": "t1",
    "status": "partial",
    "reason": "provider_cut",
    "conversation_id": "c1",
    "user_message_id": "m1",
    "assistant_message_id": "m2",
    "seq": 1,
    "policy": "serialize",
    "model": "small",
    "length": 31,
    "usage": {"input": 1_042, "output": 8, "estimated": True},
    "created_at": "2026-01-01T10:00:00Z",
    "ended_at": "2026-01-01T10:00:01.500Z",
}
BLOCK = {
    "kind": "message",
    "layer": "history",
    "role": "user",
    "trust": "user",
    "seq": 1,
    "tokens": 1_018,
    "id": "m1",
}
PLAN = {
    "steps": [
        {
            "step_no": 1,
            "plan": {
                "model": "small",
                "fingerprint": "f00",
                "assembly_revision": "1",
                "seq_range": [1, 1],
                "count": 1,
                "history": {"loaded": 3},
                "budget": {
                    "used": 1_018,
                    "tokens": 5_088,
                    "sections": [
                        {"section": "history", "before": 5_070, "used": 1_018, "after": 4_052}
                    ],
                },
                "blocks": [BLOCK],
                "excluded": [{"id": "m0", "reason": "budget"}],
            },
        }
    ]
}


def test_a_turn_begins_with_its_state() -> None:
    lines = list(turn_lines(Screen(), TURN))
    assert lines[0] == "Turn t1 is partial (provider_cut) after 1.5 s"
    assert "  tokens        1,042 in, 8 out, estimated" in lines


def test_a_turn_that_runs_has_no_duration_and_no_empty_fact() -> None:
    running = {**TURN, "status": "generating", "reason": None, "ended_at": None, "usage": None}
    lines = list(turn_lines(Screen(), running))
    assert lines[0] == "Turn t1 is generating"
    assert not any("None" in line for line in lines)


def test_a_plan_that_was_never_sent_says_so_first() -> None:
    broken = {"steps": [{**PLAN["steps"][0], "invariant": "history_contiguous"}]}
    assert "never sent: it breaks history_contiguous" in list(plan_lines(Screen(), broken))[1]


def test_a_plan_shows_what_was_given_and_what_was_left_out_and_why() -> None:
    lines = list(plan_lines(Screen(), PLAN))
    assert lines[0] == "Step 1 uses 1 of 4 messages, 1,018 of 5,088 tokens, for small"
    assert "history   5,070  1,018  4,052" in lines
    assert lines[-2].split() == [
        "included",
        "message",
        "history",
        "user",
        "user",
        "1",
        "1,018",
        "m1",
    ]
    assert lines[-1].split() == ["budget", "m0"]
