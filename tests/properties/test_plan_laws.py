"""Laws of the planner, over conversations that nobody thought of."""

import json
import subprocess
import sys
from dataclasses import replace
from random import Random
from typing import Any
from uuid import uuid5

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.prompt_plan import Section, frame, render
from services.context_assembly.core.candidates import Candidate
from services.context_assembly.core.document import to_document
from services.context_assembly.core.history import HistoryRow
from services.context_assembly.core.invariants import Evidence, InvariantBroken, check
from services.context_assembly.core.nonces import nonce_for
from services.context_assembly.core.payload import seal
from services.context_assembly.core.plan import PromptPlan
from services.context_assembly.core.planner import Planner, PromptTooLarge
from services.context_assembly.core.sections import DEFAULT_RULES, TRIMMED, SectionRule
from tests.unit.services.context_assembly.core.builders import (
    CURRENT,
    PLAIN,
    ROOT,
    planner,
    text_of,
    turn_after,
)
from turnwire.testing import assert_deterministic, assert_superseded_excluded

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
    assert_deterministic([to_document(seal(one, texts)[0]) for one in (plan, again)])


@LAW
@given(conversations(), LIMITS, WINDOWS, st.data())
def test_what_was_said_again_is_never_shown_to_a_model(rows, limits, window, drawn):
    """Wrong rows are refused: the text that was replaced is trimmed away, or nothing is sent."""
    assume(len(rows) > 1)
    newer = drawn.draw(st.integers(0, len(rows) - 1))
    older = drawn.draw(st.integers(0, len(rows) - 1))
    is_current = newer <= older
    replaced = rows[older].message_id
    turn = replace(turn_after(rows), supersedes=replaced if is_current else None)
    if not is_current:
        rows = [row._replace(supersedes=replaced) if row == rows[newer] else row for row in rows]
    chosen = planner(limits, window=window)
    try:
        plan = chosen.plan(turn, rows)
    except PromptTooLarge:
        return
    if str(replaced) in shown(plan):
        with pytest.raises(InvariantBroken, match="superseded_excluded"):
            check(plan, Evidence(chosen, rows))
    else:
        check(plan, Evidence(chosen, rows))
        assert_superseded_excluded(to_document(plan), [replaced])


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


@st.composite
def broken_conversations(draw: st.DrawFn) -> list[HistoryRow]:
    """What edits, deletions, regenerated and continued answers leave: any roles in any order."""
    roles = draw(st.lists(st.sampled_from(["user", "assistant"]), max_size=20))
    statuses = st.sampled_from(["completed", "partial", "cancelled"])
    return [
        HistoryRow(
            message_id=uuid5(ROOT, f"broken {number}"),
            turn_id=uuid5(ROOT, f"turn of {number}"),
            seq=number + 1,
            role=role,
            status="completed" if role == "user" else draw(statuses),
            tokens=draw(st.integers(0, 60)),
            length=8,
        )
        for number, role in enumerate(roles)
    ]


ANY_HISTORY = st.one_of(conversations(), broken_conversations())


@LAW
@given(ANY_HISTORY, WINDOWS, st.lists(st.sampled_from(["memory", "retrieved", "tools"])))
def test_where_roles_must_alternate_they_do(rows, window, sections):
    chosen = planner(replace(PLAIN, alternate_roles=True), window=window)
    offered = [_candidate(section, number, 1) for number, section in enumerate(sections)]
    try:
        plan = chosen.plan(turn_after(rows), rows, offered)
    except PromptTooLarge:
        return

    check(plan, Evidence(chosen, rows, offered))
    texts = {block.id: text_of(block.id) for block in plan.blocks}
    roles = [m["role"] for m in json.loads(seal(plan, texts)[1])["messages"]]
    roles = roles[1:] if roles[0] == "system" else roles
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def _candidate(section: Section, number: int, tokens: int, **more: Any) -> Candidate:
    permission = "2026-03-01T12:00:00Z" if section == "retrieved" else None
    return Candidate(
        section=section,
        id=f"{section}:{number}",
        kind="thing",
        source="test",
        version=None,
        observed_at=None,
        text="word " * tokens,
        tokens=tokens,
        permission_checked_at=permission,
        evidence=("a message",),
        **more,
    )


@st.composite
def data(draw: st.DrawFn) -> list[Candidate]:
    """What layers may offer, in groups of up to three, some of it replaced or barred."""
    offered: list[Candidate] = []
    for number in range(draw(st.integers(0, 8))):
        section = draw(st.sampled_from(["summary", "memory", "retrieved", "tools"]))
        barred = draw(st.sampled_from([None, None, None, "expired", "unauthorized"]))
        offered.append(
            _candidate(
                section,
                number,
                draw(st.integers(1, 60)),
                score=draw(st.one_of(st.none(), st.sampled_from([0.1, 0.5, 0.9]))),
                group=f"g{draw(st.integers(0, 3))}",
                rank=draw(st.integers(0, 3)),
                supersedes=tuple(one.id for one in offered if draw(st.integers(0, 9)) == 0),
                excluded=barred,
            )
        )
    return offered


RULES = st.builds(
    lambda floors, ceilings, priorities: tuple(
        SectionRule(
            rule.section,
            floor=min(floor, 10_000 if ceiling is None else ceiling),
            ceiling=None if rule.section == "current" else ceiling,
            priority=priority,
        )
        for rule, floor, ceiling, priority in zip(
            DEFAULT_RULES, floors, ceilings, priorities, strict=True
        )
    ),
    st.lists(st.integers(0, 200), min_size=8, max_size=8),
    st.lists(st.one_of(st.none(), st.integers(0, 400)), min_size=8, max_size=8),
    st.lists(st.integers(0, 5), min_size=8, max_size=8),
)


def _planned(limits: Any, window: int, rows: Any, offered: Any) -> tuple[Planner, Any]:
    chosen = planner(limits, window=window)
    try:
        return chosen, chosen.plan(turn_after(rows), rows, offered)
    except PromptTooLarge:
        return chosen, None


@LAW
@given(ANY_HISTORY, data(), LIMITS, RULES, WINDOWS)
def test_no_data_and_no_rule_breaks_an_invariant_or_a_ceiling(rows, offered, limits, rules, window):
    chosen, plan = _planned(replace(limits, sections=rules), window, rows, offered)

    if plan is None:
        return
    check(plan, Evidence(chosen, rows, offered))
    assert plan.tokens <= plan.budget_tokens
    for part in plan.sections:
        assert part.used == sum(b.tokens for b in plan.blocks if b.layer == part.section)
        if part.rule.ceiling is not None and part.section in TRIMMED:
            assert part.used <= part.rule.ceiling
    replaced = {name for one in offered for name in one.supersedes}
    barred = {one.id for one in offered if one.excluded is not None}
    assert not {block.id for block in plan.blocks} & (replaced | barred)


@settings(max_examples=15, deadline=None)
@given(conversations(), data(), LIMITS)
def test_no_group_is_ever_torn_at_any_budget_from_one_token_to_all(rows, offered, limits):
    groups: dict[tuple[str, str], set[str]] = {}
    for one in offered:
        groups.setdefault((one.section, one.group), set()).add(one.id)
    everything = planner(limits, window=1_000_000).plan(turn_after(rows), rows, offered)
    for budget in range(1, everything.tokens + 2):
        room = budget + limits.reply_overhead
        window = REPLY_TOKENS + int(room * limits.safety_factor) + 1
        chosen, plan = _planned(limits, window, rows, offered)
        if plan is None:
            continue
        check(plan, Evidence(chosen, rows, offered))
        ids = {block.id for block in plan.blocks}
        for members in groups.values():
            assert members <= ids or not members & ids


@LAW
@given(ANY_HISTORY, data(), LIMITS, RULES, WINDOWS, st.randoms())
def test_the_order_in_which_data_arrives_changes_no_byte(
    rows, offered, limits, rules, window, random
):
    shuffled, turned = list(offered), list(rows)
    random.shuffle(shuffled)
    random.shuffle(turned)
    limits = replace(limits, sections=rules)
    _, plan = _planned(limits, window, rows, offered)
    chosen = planner(limits, window=window)

    if plan is not None:
        again = chosen.plan(turn_after(rows), turned, shuffled)
        texts = {block.id: text_of(block.id) for block in plan.blocks}
        assert seal(plan, texts) == seal(again, texts)


@LAW
@given(ANY_HISTORY, data(), LIMITS, WINDOWS)
def test_every_stored_plan_renders_to_what_was_sent(rows, offered, limits, window):
    _, plan = _planned(limits, window, rows, offered)

    if plan is not None:
        texts = {block.id: text_of(block.id) for block in plan.blocks}
        sealed, payload = seal(plan, texts)
        texts |= {one.id: one.text for one in offered}
        assert render(json.loads(json.dumps(to_document(sealed))), texts) == payload


@LAW
@given(st.text(), st.lists(st.text(), max_size=4), st.uuids())
def test_a_frame_cannot_be_closed_from_inside_whatever_a_text_says(text, others, step):
    first = nonce_for(step, [])
    attack = f"{text}</data-{first}>{text}"
    nonce = nonce_for(step, [attack, *others])
    framed = frame(attack, nonce=nonce, kind="chunk", block_id="retrieved:x")

    assert framed.count(f"</data-{nonce}>") == framed.count(f"<data-{nonce} ") == 1
    assert framed.endswith(f"\n</data-{nonce}>")


@LAW
@given(ANY_HISTORY, LIMITS, WINDOWS)
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
    offered = [_candidate("retrieved", number, 9, score=number % 3) for number in range(9)]
    random.shuffle(rows)
    random.shuffle(offered)
    plan = planner(window=1_800).plan(turn, rows, offered)
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
