"""Which pattern the difference of two plans shows, one by one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest

from services.frontend_gateway.core.differences import Difference, differences
from services.frontend_gateway.core.evidence import Branches, BranchView, MessageFacts
from tests.rig.stored_plans import Shown, plan

SPACE = uuid4()
TALK = uuid4()
TURNS = [uuid5(SPACE, f"turn {number}") for number in range(8)]


def id_of(seq: int) -> UUID:
    return uuid5(SPACE, str(seq))


def message(seq: int) -> Shown:
    return str(id_of(seq)), "user" if seq % 2 else "assistant", f"text {seq}", seq


def fact(seq: int, **changes: Any) -> MessageFacts:
    role = "user" if seq % 2 else "assistant"
    one = MessageFacts(id_of(seq), TALK, TALK, TURNS[(seq - 1) // 2], seq, role, "completed")
    return replace(one, **changes)


FACTS: Mapping[UUID, MessageFacts] = {id_of(seq): fact(seq) for seq in range(1, 12)}
BEFORE = plan([message(1), message(2), message(3)], turn_id=TURNS[1])
AFTER_SEQS = (1, 2, 3, 4, 5)


def after(*seqs: int, **more: Any) -> dict[str, Any]:
    return plan([message(seq) for seq in seqs], turn_id=TURNS[2], **more)


def compare(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    facts: Mapping[UUID, MessageFacts] = FACTS,
    branch: UUID = TALK,
) -> Difference:
    return differences(
        before,
        now,
        facts,
        conversation=TALK,
        is_on_path=lambda known: known.branch_id == branch,
    )


def test_two_new_messages_are_healthy() -> None:
    found = compare(BEFORE, after(1, 2, 3, 4, 5))
    assert (found.pattern, found.added, found.vanished) == (
        "two_new",
        (id_of(4), id_of(5)),
        (),
    )
    assert "Healthy" in found.line


def test_one_new_message_is_healthy_after_a_turn_without_answer() -> None:
    assert compare(BEFORE, after(1, 2, 3, 5)).pattern == "one_new"


def test_plans_further_apart_differ_by_more() -> None:
    assert compare(BEFORE, after(1, 2, 3, 4, 5, 6, 7)).pattern == "several_new"
    assert compare(plan([message(1)], turn_id=uuid4()), after(1, 2, 3)).pattern == "several_new"


def test_the_same_plan_is_unchanged() -> None:
    assert compare(BEFORE, BEFORE).pattern == "unchanged"


@pytest.mark.parametrize("times", [2, 3])
def test_a_message_that_stands_twice_is_seen(times: int) -> None:
    found = compare(BEFORE, after(1, *[2] * times, 3, 4, 5))
    assert (found.pattern, found.twice) == ("twice", (id_of(2),))


def test_one_turn_with_two_answers_is_a_double_write() -> None:
    facts = {**FACTS, id_of(6): fact(6, turn_id=TURNS[1])}
    found = compare(BEFORE, after(1, 2, 3, 4, 6, 7), facts)
    assert found.pattern == "twice"
    assert set(found.twice) == {id_of(4), id_of(6)}


def test_a_message_of_another_conversation_is_foreign() -> None:
    facts = {**FACTS, id_of(4): fact(4, conversation_id=uuid4())}
    found = compare(BEFORE, after(1, 2, 3, 4, 5), facts)
    assert (found.pattern, found.foreign) == ("foreign", (id_of(4),))


def test_a_message_that_nobody_knows_is_foreign() -> None:
    facts = {id_: known for id_, known in FACTS.items() if id_ != id_of(4)}
    assert compare(BEFORE, after(1, 2, 3, 4, 5), facts).foreign == (id_of(4),)


@pytest.mark.parametrize("order", [(2, 1, 3, 4, 5), (1, 3, 2, 4, 5), (1, 2, 4, 3, 5)])
def test_swapped_messages_are_seen(order: tuple[int, ...]) -> None:
    found = compare(BEFORE, after(*order))
    assert found.pattern == "swapped"
    assert found.swapped


def test_a_range_that_starts_later_without_a_word_is_clipped() -> None:
    found = compare(BEFORE, after(3, 4, 5))
    assert found.pattern == "clipped"
    assert [id_ for id_, _ in found.vanished] == [id_of(1), id_of(2)]


def test_a_hole_in_the_middle_has_vanished_and_is_not_clipped() -> None:
    found = compare(BEFORE, after(1, 3, 4, 5))
    assert (found.pattern, found.vanished) == ("vanished", ((id_of(2), "not_found"),))
    assert not found.is_healthy


@pytest.mark.parametrize(
    ("changes", "more", "reason"),
    [
        ({"is_deleted": True}, {}, "deleted"),
        ({"superseded_by": id_of(5)}, {}, "superseded"),
        ({"branch_id": uuid4()}, {}, "other_branch"),
        ({}, {"up_to": 2}, "budget"),
        ({}, {"excluded": [(str(id_of(1)), "duplicate")]}, "duplicate"),
    ],
)
def test_what_vanished_has_its_reason(
    changes: Mapping[str, Any], more: Mapping[str, Any], reason: str
) -> None:
    facts = {**FACTS, id_of(1): fact(1, **changes)}
    found = compare(BEFORE, after(2, 3, 4, 5, **more), facts)
    assert (found.pattern, found.vanished) == ("vanished", ((id_of(1), reason),))
    assert reason in found.line
    assert found.is_healthy == (reason != "duplicate")


def test_an_edited_message_beside_its_edit_is_stale() -> None:
    facts = {**FACTS, id_of(1): fact(1, superseded_by=id_of(5))}
    found = compare(BEFORE, after(1, 2, 3, 4, 5), facts)
    assert (found.pattern, found.stale) == ("stale_revision", (str(id_of(1)),))


def test_what_stands_on_a_branch_that_was_left_is_stale_although_nothing_newer_is_shown() -> None:
    here = uuid4()
    facts = {
        id_: replace(known, branch_id=TALK if known.seq in (2, 3) else here)
        for id_, known in FACTS.items()
    } | {id_of(3): fact(3, superseded_by=id_of(7))}
    found = compare(BEFORE, after(1, 2, 3, 5), facts, branch=here)
    assert (found.pattern, found.stale) == ("stale_revision", (str(id_of(2)), str(id_of(3))))
    assert not found.is_healthy
    assert compare(BEFORE, after(1, 5), facts, branch=here).is_healthy


def test_older_instructions_than_before_are_stale() -> None:
    def told(version: str) -> dict[str, Any]:
        name = f"workspace:tenant:{version}"
        one = {"id": name, "kind": "workspace", "scope": "tenant", "version": version}
        return {"instructions": [one], "heads": {name: "Be brief."}}

    before = plan([message(1), message(2), message(3)], turn_id=TURNS[1], **told("10"))
    assert compare(before, after(*AFTER_SEQS, **told("9"))).pattern == "stale_revision"
    assert compare(before, after(*AFTER_SEQS, **told("11"))).pattern == "two_new"


def test_the_worst_pattern_names_the_difference() -> None:
    facts = {**FACTS, id_of(4): fact(4, conversation_id=uuid4())}
    found = compare(BEFORE, after(3, 3, 4, 5), facts)
    assert found.pattern == "foreign"
    assert set(found.patterns) == {"foreign", "twice", "clipped"}


def test_paths_of_branches_end_where_they_fork() -> None:
    first, second = uuid4(), uuid4()

    def branch(id_: UUID, parent: UUID | None, fork_seq: int | None) -> BranchView:
        return BranchView(id_, "sibling", parent, fork_seq, False, None, None, None)  # type: ignore[arg-type]

    path = Branches([branch(TALK, None, None), branch(first, TALK, 5), branch(second, first, 9)])
    assert path.shows(second, of=TALK, seq=4)
    assert not path.shows(second, of=TALK, seq=5)
    assert path.shows(second, of=first, seq=8)
    assert not path.shows(second, of=first, seq=9)
    assert path.shows(second, of=second, seq=99)
    assert not path.shows(TALK, of=first, seq=1)
    assert not path.shows(uuid4(), of=TALK, seq=1)
