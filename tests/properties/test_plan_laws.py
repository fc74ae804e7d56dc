"""Laws of the planner, over conversations that nobody thought of."""

import json
import subprocess
import sys
from dataclasses import replace
from random import Random
from uuid import uuid5

from hypothesis import given, settings
from hypothesis import strategies as st

from services.context_assembly.core.history import HistoryRow
from services.context_assembly.core.invariants import Evidence, check
from services.context_assembly.core.payload import seal
from services.context_assembly.core.plan import Planner, PromptPlan, PromptTooLarge
from tests.unit.services.context_assembly.core.builders import (
    CURRENT,
    PLAIN,
    ROOT,
    planner,
    text_of,
    turn_after,
)

REPLY_TOKENS = 100

# How long one example takes depends on what else the machine does; the suite has a time-out.
LAW = settings(deadline=None)


@st.composite
def conversations(draw: st.DrawFn) -> list[HistoryRow]:
    """Turns that completed, were cut off or failed, in the order of their seq."""
    rows: list[HistoryRow] = []
    for number in range(draw(st.integers(0, 12))):
        turn = uuid5(ROOT, f"turn {number}")
        ending = draw(st.sampled_from(["completed", "partial", "cancelled", "failed", "empty"]))
        for role in ("user", "assistant"):
            if role == "assistant" and ending == "failed":
                continue
            tokens = draw(st.integers(0, 60))
            rows.append(
                HistoryRow(
                    message_id=uuid5(turn, role),
                    turn_id=turn,
                    seq=2 * number + (1 if role == "user" else 2),
                    role=role,
                    status="completed" if role == "user" else ending,
                    tokens=tokens,
                    length=0 if role == "assistant" and ending == "empty" else tokens * 4 + 1,
                )
            )
    return rows


LIMITS = st.builds(
    replace,
    st.just(PLAIN),
    per_message_overhead=st.integers(0, 5),
    reply_overhead=st.integers(0, 10),
    safety_factor=st.sampled_from([1.0, 1.5, 2.0]),
    alternate_roles=st.booleans(),
)
WINDOWS = st.integers(REPLY_TOKENS + 1, 2_500)


def plan_or_none(chosen: Planner, rows: list[HistoryRow]) -> PromptPlan | None:
    try:
        return chosen.plan(turn_after(rows), rows)
    except PromptTooLarge:
        return None


def shown(plan: PromptPlan) -> list[str]:
    return [block.id for block in plan.blocks if block.kind == "message"]


@LAW
@given(conversations(), LIMITS, WINDOWS)
def test_a_plan_fits_its_budget_and_breaks_no_invariant(rows, limits, window):
    chosen = planner(limits, window=window)
    plan = plan_or_none(chosen, rows)

    if plan is not None:
        check(plan, Evidence(chosen, rows))
        room = (window - REPLY_TOKENS) / limits.safety_factor - limits.reply_overhead
        assert plan.tokens <= room
        assert plan.message_ids.count(str(CURRENT)) == 1


@settings(max_examples=20, deadline=None)
@given(conversations(), LIMITS)
def test_no_budget_from_one_token_to_all_breaks_a_law(rows, limits):
    everything = planner(limits, window=1_000_000).plan(turn_after(rows), rows)
    for budget in range(1, everything.tokens + 2):
        room = budget + limits.reply_overhead
        window = REPLY_TOKENS + int(room * limits.safety_factor) + 1
        chosen = planner(limits, window=window)
        plan = plan_or_none(chosen, rows)
        if plan is not None:
            check(plan, Evidence(chosen, rows))
            assert shown(plan) == shown(everything)[len(shown(everything)) - len(shown(plan)) :]


@LAW
@given(conversations(), LIMITS, WINDOWS, st.integers(0, 500))
def test_more_budget_keeps_all_that_less_budget_kept(rows, limits, window, extra):
    small = plan_or_none(planner(limits, window=window), rows)
    large = plan_or_none(planner(limits, window=window + extra), rows)

    if small is not None:
        assert large is not None
        assert shown(large)[len(shown(large)) - len(shown(small)) :] == shown(small)


@LAW
@given(conversations(), LIMITS, WINDOWS, st.randoms())
def test_the_order_in_which_rows_arrive_changes_no_byte(rows, limits, window, random):
    chosen = planner(limits, window=window)
    shuffled = list(rows)
    random.shuffle(shuffled)
    plan, again = plan_or_none(chosen, rows), None
    try:
        again = chosen.plan(turn_after(rows), shuffled)
    except PromptTooLarge:
        assert plan is None
        return

    assert plan is not None
    texts = {block.id: text_of(block.id) for block in plan.blocks}
    assert seal(plan, texts) == seal(again, texts)


@LAW
@given(conversations(), LIMITS)
def test_history_that_fits_passes_unchanged(rows, limits):
    plan = planner(limits, window=1_000_000).plan(turn_after(rows), rows)
    spoken = [row for row in rows if row.length > 0 or row.role == "user"]

    assert shown(plan) == [str(row.message_id) for row in spoken]
    assert plan.excluded == ()
    texts = {block.id: text_of(block.id) for block in plan.blocks}
    contents = [m["content"] for m in json.loads(seal(plan, texts)[1])["messages"]]
    said = [text for text in contents if text != "[no answer]"]
    assert [text.removesuffix("\n\n[interrupted]") for text in said] == [
        *(text_of(str(row.message_id)) for row in spoken),
        text_of(str(CURRENT)),
    ]


@LAW
@given(conversations(), WINDOWS)
def test_where_roles_must_alternate_they_do(rows, window):
    plan = plan_or_none(planner(replace(PLAIN, alternate_roles=True), window=window), rows)

    if plan is not None:
        texts = {block.id: text_of(block.id) for block in plan.blocks}
        roles = [m["role"] for m in json.loads(seal(plan, texts)[1])["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


@LAW
@given(conversations(), LIMITS, WINDOWS)
def test_pages_are_read_until_the_plan_cannot_change(rows, limits, window):
    """Stopping where ``older_rows_wanted`` says gives the same plan as reading everything."""
    chosen = planner(limits, window=window)
    turn = turn_after(rows)
    newest_first = sorted(rows, key=lambda row: -row.seq)
    read: list[HistoryRow] = []
    while len(read) < len(rows) and chosen.older_rows_wanted(turn, read):
        read = newest_first[: len(read) + 3]

    whole = plan_or_none(chosen, rows)
    if whole is not None:
        assert chosen.plan(turn, read).blocks == whole.blocks


PROGRAM = """
import sys
from random import Random
sys.path.insert(0, "")
from tests.properties.test_plan_laws import bytes_of_a_large_plan
sys.stdout.buffer.write(bytes_of_a_large_plan(Random(int(sys.argv[1]))))
"""


def bytes_of_a_large_plan(random: Random) -> bytes:
    """The document and payload of one fixed conversation, its rows in a random order."""
    turn_ids = [uuid5(ROOT, f"turn {number}") for number in range(100)]
    rows = [
        HistoryRow(uuid5(turn, role), turn, 2 * number + at, role, "completed", 7, 28)
        for number, turn in enumerate(turn_ids)
        for at, role in ((1, "user"), (2, "assistant"))
    ]
    turn = turn_after(rows)
    random.shuffle(rows)
    plan = planner(window=800).plan(turn, rows)
    sealed, payload = seal(plan, {block.id: text_of(block.id) for block in plan.blocks})
    return payload + sealed.fingerprint.encode() + repr(sealed).encode()


def test_other_processes_with_other_hash_seeds_make_the_same_bytes() -> None:
    results = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM, seed],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "4294967295")
    }

    assert results == {bytes_of_a_large_plan(Random(7))}
