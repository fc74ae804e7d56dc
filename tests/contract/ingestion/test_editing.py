"""Messages said again, questions answered again, answers gone on with, on a real Postgres."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from libs import ids
from schemas.streams import BEFORE_ALL
from tests.contract.ingestion.rig import (
    TENANT,
    Rig,
    answer_again,
    cancel,
    create,
    delete_message,
    edit,
    post,
)
from tests.contract.ingestion.stages import (
    answer,
    answered,
    complete,
    cut,
    history,
    opened,
    outcome,
    question,
    state,
    waiting,
)

pytestmark = pytest.mark.postgres

ACCEPTED = ("accepted", None)
GONE = ("not_found", "not-found")
IN_PROGRESS = ("rejected", "turn-in-progress")
NOT_CONTINUABLE = ("rejected", "not-continuable")


def row_of(rig: Rig, turn: UUID) -> dict[str, Any]:
    (row,) = rig.rows("select * from ingestion.turns where id = %s", turn)
    return row


def branch_of(rig: Rig, turn: UUID) -> dict[str, Any]:
    (row,) = rig.rows("select * from ingestion.branches where id = %s", ids.branch_id(turn))
    return row


def active(rig: Rig) -> UUID:
    value: UUID = rig.one("select coalesce(branch_id, id) from ingestion.conversations")
    return value


def numbers(rig: Rig) -> list[int]:
    return [row["seq"] for row in rig.rows("select seq from ingestion.messages order by seq")]


# Edits. -----------------------------------------------------------------------------------------


async def test_an_edit_is_a_new_turn_on_a_branch_that_parts_before_the_old_message(
    rig: Rig,
) -> None:
    conversation, (first, second, _) = await answered(rig, "a", "b", "c")
    request = edit(conversation, "x", question(second), "again")
    turn = ids.turn_id(TENANT, conversation, "x")

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ACCEPTED
    accepted, started = rig.ingestion.relay.events
    assert (accepted.data.kind, accepted.data.seq, accepted.data.parent_turn_id) == (
        "edit",
        7,
        first,
    )
    assert (started.data.kind, started.data.base_seq) == ("edit", 7)
    assert (started.data.supersedes, started.data.user_message_id) == (
        question(second),
        question(turn),
    )
    branch = branch_of(rig, turn)
    assert (branch["segments"], branch["below"]) == (
        [branch["id"], conversation],
        [9223372036854775807, 3],
    )
    assert active(rig) == branch["id"]
    old = rig.one("select last_turn_id from ingestion.branches where kind = 'main'")
    assert old == ids.turn_id(TENANT, conversation, "c")
    (message,) = rig.rows("select * from ingestion.messages where seq = 7")
    assert (message["text"], message["supersedes"]) == ("again", question(second))
    assert (
        rig.one("select count(*) from ingestion.messages where branch_id = %s", conversation) == 6
    )


async def test_an_edit_of_an_edit_shows_neither_of_the_two_before(rig: Rig) -> None:
    conversation, (_, second) = await answered(rig, "a", "b")
    edited = ids.turn_id(TENANT, conversation, "x")
    await rig.ingestion.requests.handle([edit(conversation, "x", question(second))])
    await complete(rig, conversation, edited)

    await rig.ingestion.requests.handle([edit(conversation, "y", question(edited))])

    branch = branch_of(rig, ids.turn_id(TENANT, conversation, "y"))
    assert branch["segments"] == [branch["id"], ids.branch_id(edited), conversation]
    assert branch["below"] == [9223372036854775807, 5, 3]


async def test_a_message_after_an_edit_goes_on_from_the_edit(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    edited = ids.turn_id(TENANT, conversation, "x")
    await rig.ingestion.requests.handle(
        [edit(conversation, "x", question(turn)), post(conversation, "b")]
    )

    row = row_of(rig, ids.turn_id(TENANT, conversation, "b"))
    assert (row["branch_id"], row["parent_turn_id"]) == (ids.branch_id(edited), edited)
    assert numbers(rig) == list(range(1, 7))


async def test_an_edit_is_told_again_with_what_it_supersedes(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    await rig.ingestion.requests.handle([edit(conversation, "x", question(turn))])
    first = rig.ingestion.relay.events[-1]
    rig.rows("update ingestion.open_turns set progressed_at = now() - interval '11 seconds'")

    assert await rig.second.retelling.sweep() == 1

    assert rig.second.relay.events == [first]


async def test_edit_policies_look_at_the_branch_that_is_left(rig: Rig) -> None:
    conversation, (first,) = await answered(rig, "a")
    running = ids.turn_id(TENANT, conversation, "b")
    await rig.ingestion.requests.handle([post(conversation, "b")])
    refused = edit(conversation, "x", question(first), policy="reject")
    beside = edit(conversation, "y", question(first), policy="serialize")
    instead = edit(conversation, "z", question(first), policy="replace")

    await rig.ingestion.requests.handle([refused, beside, instead])

    assert outcome(rig, refused) == IN_PROGRESS
    assert outcome(rig, beside) == outcome(rig, instead) == ACCEPTED
    assert [row[1:] for row in waiting(rig, conversation)] == [(0, True)] * 3
    marked = rig.rows(
        "select turn_id, cancel_reason from ingestion.open_turns where cancel_at is not null"
    )
    assert marked == [{"turn_id": running, "cancel_reason": "replaced"}]


@pytest.mark.parametrize("policy", ["serialize", "replace"])
async def test_a_question_is_said_or_answered_again_only_when_the_turn_before_it_has_ended(
    rig: Rig, policy: str
) -> None:
    """It starts at once on a branch of its own: the words of an open turn would be missing."""
    conversation, (before, waited) = await opened(rig, "a", "b")
    await rig.ingestion.requests.handle([cancel(conversation, waited)])
    assert await rig.ingestion.canceller.sweep() == 1
    early = [
        edit(conversation, "x", question(waited), policy=policy),
        answer_again(conversation, "y", waited, policy=policy),
    ]
    await rig.ingestion.requests.handle(early)
    assert [outcome(rig, request) for request in early] == [IN_PROGRESS, IN_PROGRESS]
    await complete(rig, conversation, before)

    late = [
        edit(conversation, "x2", question(waited), policy=policy),
        answer_again(conversation, "y2", waited, policy=policy),
    ]
    await rig.ingestion.requests.handle(late)

    assert [outcome(rig, request) for request in late] == [ACCEPTED, ACCEPTED]
    for key in ("x2", "y2"):
        assert history(rig, ids.turn_id(TENANT, conversation, key)) == [1, 2]


@pytest.mark.parametrize("target", ["assistant", "running", "unknown", "foreign", "deleted"])
async def test_what_cannot_be_edited_says_why_and_nothing_changes(rig: Rig, target: str) -> None:
    conversation, (turn,) = await answered(rig, "a")
    request = edit(conversation, "x", question(turn))
    expected: tuple[str, str | None] = GONE
    match target:
        case "assistant":
            request = edit(conversation, "x", answer(turn))
            expected = ("rejected", "not-editable")
        case "running":
            await rig.ingestion.requests.handle([post(conversation, "b")])
            request = edit(conversation, "x", question(ids.turn_id(TENANT, conversation, "b")))
            expected = IN_PROGRESS
        case "unknown":
            request = edit(conversation, "x", uuid4())
        case "foreign":
            elsewhere, _ = await opened(rig)
            request = edit(elsewhere, "x", question(turn))
        case _:
            await rig.ingestion.requests.handle([delete_message(conversation, question(turn))])
    before = rig.rows("select id, next_seq, branch_count from ingestion.conversations order by id")

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == expected
    after = rig.rows("select id, next_seq, branch_count from ingestion.conversations order by id")
    assert after == before
    assert rig.one("select count(*) from ingestion.branches where kind = 'sibling'") == 0


async def test_an_edit_has_its_key_like_a_message(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    said_at = datetime.now(UTC) - timedelta(minutes=1)
    one, again, other = (
        edit(conversation, "x", question(turn), text, said_at=said_at)
        for text in ("red", "red", "blue")
    )
    clash = edit(conversation, "a", question(turn))

    for request in (one, again, other, clash):
        await rig.ingestion.requests.handle([request])

    assert [outcome(rig, request)[0] for request in (one, again, other, clash)] == [
        *("accepted", "replayed", "conflict", "conflict")
    ]
    assert rig.one("select said_at from ingestion.messages where supersedes is not null") == said_at


# Other answers. ---------------------------------------------------------------------------------


async def test_a_regenerated_answer_takes_one_number_and_stands_behind_the_same_question(
    rig: Rig,
) -> None:
    conversation, (first, second, _) = await answered(rig, "a", "b", "c")
    request = answer_again(conversation, "x", second, model="scripted", options={"a": 1})
    turn = ids.turn_id(TENANT, conversation, "x")

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ACCEPTED
    started = rig.ingestion.relay.events[-1]
    assert (started.data.kind, started.data.base_seq, started.data.user_message_id) == (
        "regenerate",
        3,
        question(second),
    )
    assert (started.data.model, started.data.options) == ("scripted", {"a": 1})
    row = row_of(rig, turn)
    assert (row["seq"], row["base_seq"], row["parent_turn_id"]) == (6, 3, first)
    assert numbers(rig) == list(range(1, 8))
    (entry,) = await rig.ingestion.live.read(turn, BEFORE_ALL, 5)
    assert b'"seq":7' in entry.data
    assert branch_of(rig, turn)["below"] == [9223372036854775807, 4]
    assert active(rig) == ids.branch_id(turn)
    await complete(rig, conversation, turn, "another answer")
    assert state(rig, turn) == ("completed", None)
    assert rig.one("select text from ingestion.messages where seq = 7") == "another answer"
    assert rig.one("select text from ingestion.messages where seq = 4") == "answer b"


async def test_an_answer_of_an_answer_again_is_behind_the_question_too(rig: Rig) -> None:
    conversation, (first, second) = await answered(rig, "a", "b")
    again = ids.turn_id(TENANT, conversation, "x")
    await rig.ingestion.requests.handle([answer_again(conversation, "x", second, model="scripted")])
    await cut(rig, conversation, again)
    await rig.ingestion.requests.handle([answer_again(conversation, "y", again, "continue")])
    more = ids.turn_id(TENANT, conversation, "y")
    await complete(rig, conversation, more)

    await rig.ingestion.requests.handle([answer_again(conversation, "z", more)])

    row = row_of(rig, ids.turn_id(TENANT, conversation, "z"))
    assert (row["kind"], row["parent_turn_id"], row["base_seq"]) == ("regenerate", first, 3)
    assert branch_of(rig, ids.turn_id(TENANT, conversation, "z"))["segments"][1:] == [conversation]


async def test_a_continuation_follows_its_answer_where_nothing_else_does(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "a", model="scripted")
    await cut(rig, conversation, turn)
    request = answer_again(conversation, "x", turn, "continue")
    more = ids.turn_id(TENANT, conversation, "x")
    rig.ingestion.relay.messages.clear()

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ACCEPTED
    started = rig.ingestion.relay.events[-1]
    assert (started.data.kind, started.data.base_seq) == ("continue", 1)
    assert started.data.continues == (answer(turn),)
    assert started.data.branch_id == conversation
    row = row_of(rig, more)
    assert (row["seq"], row["parent_turn_id"], row["continues"]) == (2, turn, [answer(turn)])
    assert row["model"] == "scripted"
    assert numbers(rig) == [1, 2, 3]
    assert rig.one("select count(*) from ingestion.branches") == 1


async def test_a_continuation_of_an_earlier_answer_is_a_branch_behind_it(rig: Rig) -> None:
    conversation, (first, _) = await opened(rig, "a", "b", model="scripted")
    await cut(rig, conversation, first)
    request = answer_again(conversation, "x", first, "continue")
    more = ids.turn_id(TENANT, conversation, "x")

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ACCEPTED
    assert branch_of(rig, more)["below"] == [9223372036854775807, 3]
    assert row_of(rig, more)["parent_turn_id"] == first
    assert active(rig) == ids.branch_id(more)


async def test_a_message_beside_a_continuation_stands_behind_the_unfinished_answer(
    rig: Rig,
) -> None:
    conversation, (turn,) = await opened(rig, "a", model="scripted")
    await cut(rig, conversation, turn)
    await rig.ingestion.requests.handle([answer_again(conversation, "x", turn, "continue")])

    await rig.ingestion.requests.handle([post(conversation, "y", policy="branch")])

    beside = ids.turn_id(TENANT, conversation, "y")
    assert branch_of(rig, beside)["below"] == [9223372036854775807, 3]
    assert row_of(rig, beside)["parent_turn_id"] == turn


async def test_a_chain_of_continuations_has_an_end(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "0", model="scripted")
    await cut(rig, conversation, turn)
    for number in range(1, 9):
        request = answer_again(conversation, str(number), turn, "continue")
        await rig.ingestion.requests.handle([request])
        assert outcome(rig, request) == ACCEPTED
        turn = ids.turn_id(TENANT, conversation, str(number))
        await cut(rig, conversation, turn)
    too_many = answer_again(conversation, "9", turn, "continue")

    await rig.ingestion.requests.handle([too_many])

    assert outcome(rig, too_many) == NOT_CONTINUABLE
    assert len(row_of(rig, turn)["continues"]) == 8


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("completed", NOT_CONTINUABLE),
        ("empty", NOT_CONTINUABLE),
        ("model", NOT_CONTINUABLE),
        ("running", IN_PROGRESS),
        ("answer deleted", GONE),
        ("question deleted", GONE),
        ("link deleted", GONE),
        ("unknown", GONE),
    ],
)
async def test_what_cannot_be_continued_says_why_and_nothing_changes(
    rig: Rig, case: str, expected: tuple[str, str]
) -> None:
    conversation, (turn,) = await opened(rig, "a", model="scripted")
    model = "gpt-4o" if case == "model" else None
    if case == "completed":
        await complete(rig, conversation, turn)
    elif case == "empty":
        await rig.ingestion.requests.handle([cancel(conversation, turn)])
        rig.rows("update ingestion.open_turns set cancel_at = now() - interval '5 seconds'")
        await rig.ingestion.canceller.sweep()
    elif case != "running":
        await cut(rig, conversation, turn)
    if case == "link deleted":
        await rig.ingestion.requests.handle([answer_again(conversation, "l", turn, "continue")])
        link, turn = turn, ids.turn_id(TENANT, conversation, "l")
        await cut(rig, conversation, turn)
        await rig.ingestion.requests.handle([delete_message(conversation, answer(link))])
    if case in ("answer deleted", "question deleted"):
        gone = answer(turn) if case == "answer deleted" else question(turn)
        await rig.ingestion.requests.handle([delete_message(conversation, gone)])
    target = uuid4() if case == "unknown" else turn
    request = answer_again(conversation, "x", target, "continue", model=model)
    before = rig.one("select count(*) from ingestion.turns")

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == expected
    assert rig.one("select count(*) from ingestion.turns") == before


async def test_another_answer_is_refused_while_the_turn_runs_or_its_question_is_gone(
    rig: Rig,
) -> None:
    conversation, (turn,) = await opened(rig, "a")
    early = answer_again(conversation, "x", turn)
    await rig.ingestion.requests.handle([early])
    await complete(rig, conversation, turn)
    await rig.ingestion.requests.handle([delete_message(conversation, question(turn))])
    late = answer_again(conversation, "y", turn)

    await rig.ingestion.requests.handle([late])

    assert (outcome(rig, early), outcome(rig, late)) == (IN_PROGRESS, GONE)


async def test_everything_of_one_batch_is_decided_as_if_it_came_alone(rig: Rig) -> None:
    conversation, other = uuid4(), uuid4()
    turn = ids.turn_id(TENANT, conversation, "a")
    batch = [
        create(conversation),
        post(conversation, "a"),
        edit(conversation, "x", question(turn)),
        answer_again(conversation, "y", turn),
        delete_message(conversation, question(turn)),
        create(other),
        edit(other, "x", question(turn)),
    ]

    await rig.ingestion.requests.handle(batch)

    assert [outcome(rig, request) for request in batch[2:5]] == [IN_PROGRESS] * 3
    assert outcome(rig, batch[-1]) == GONE


async def test_every_turn_is_planned_with_what_stands_on_its_own_branch(rig: Rig) -> None:
    conversation, (_, second, _) = await answered(rig, "a", "b", "c")  # 1-2, 3-4, 5-6
    edited, after, again, beside = (
        ids.turn_id(TENANT, conversation, key) for key in ("x", "d", "y", "z")
    )

    await rig.ingestion.requests.handle([edit(conversation, "x", question(second))])  # 7-8
    assert history(rig, edited) == [1, 2]
    await complete(rig, conversation, edited)
    await rig.ingestion.requests.handle([post(conversation, "d")])  # 9-10
    assert history(rig, after) == [1, 2, 7, 8]
    await rig.ingestion.requests.handle([post(conversation, "z", policy="branch")])  # 11-12
    assert history(rig, beside) == [1, 2, 7, 8]
    await cut(rig, conversation, after)
    await rig.ingestion.requests.handle([answer_again(conversation, "y", after)])  # 13
    assert history(rig, again) == [1, 2, 7, 8]
    await complete(rig, conversation, again)
    await rig.ingestion.requests.handle([delete_message(conversation, question(edited))])
    await rig.ingestion.requests.handle([post(conversation, "e")])
    assert history(rig, ids.turn_id(TENANT, conversation, "e")) == [1, 2, 8, 9, 13]
