"""Two connections at one conversation, in either order: one outcome each, and one end per turn."""

from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import psycopg
import pytest

from libs import ids
from libs.kafka import Delivery
from tests.contract.ingestion.rig import (
    TENANT,
    Rig,
    answer_again,
    cancel,
    delete,
    delete_message,
    edit,
    generated,
    post,
    restore,
)
from tests.contract.ingestion.stages import (
    answered,
    complete,
    ends,
    in_order,
    opened,
    outcome,
    question,
    state,
    waiting,
)

pytestmark = pytest.mark.postgres

Act = Callable[[], Coroutine[Any, Any, Any]]

ACCEPTED = ("accepted", None)
either_order = pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])


def asks(rig: Rig, request: Delivery) -> Act:
    """A request that the first process decides."""
    return lambda: rig.ingestion.requests.handle([request])


def ends_by_itself(rig: Rig, conversation: UUID, turn: UUID) -> Act:
    """The whole answer of a turn, told to the second process."""
    event = generated(conversation, turn, rig.result(turn, "an answer"))
    return lambda: rig.second.generation.handle([event])


async def race(rig: Rig, conversation: UUID, one: Act, other: Act, *, is_first: bool) -> None:
    """``one`` takes the conversation first, or second."""
    acts = (one, other) if is_first else (other, one)
    await in_order(rig, conversation, *acts)


@either_order
async def test_a_cancel_and_the_whole_answer_make_one_end(rig: Rig, is_first: bool) -> None:
    conversation, (turn,) = await opened(rig, "k")
    request = cancel(conversation, turn)

    await race(
        rig,
        conversation,
        asks(rig, request),
        ends_by_itself(rig, conversation, turn),
        is_first=is_first,
    )
    rig.rows("update ingestion.open_turns set cancel_at = now() - interval '5 seconds'")
    await rig.ingestion.canceller.sweep()

    # A cancel is a wish: the end that is committed first stands, whoever was in line before.
    assert state(rig, turn) == ("completed", None)
    assert ends(rig, turn) == 1
    expected = ACCEPTED if is_first else ("rejected", "turn-already-terminal")
    assert outcome(rig, request) == expected


@either_order
async def test_the_end_of_a_cancelled_turn_and_its_answer_make_one_end(
    rig: Rig, is_first: bool
) -> None:
    conversation, (turn,) = await opened(rig, "k")
    await rig.ingestion.requests.handle([cancel(conversation, turn)])
    rig.rows("update ingestion.open_turns set cancel_at = now() - interval '5 seconds'")

    await race(
        rig,
        conversation,
        rig.ingestion.canceller.sweep,
        ends_by_itself(rig, conversation, turn),
        is_first=is_first,
    )

    assert state(rig, turn) == (("cancelled", "user") if is_first else ("completed", None))
    assert ends(rig, turn) == 1
    text = rig.one("select text from ingestion.messages where role = 'assistant'")
    assert text == (None if is_first else "an answer")


async def test_two_processes_that_end_a_cancelled_turn_end_it_once(rig: Rig) -> None:
    conversation, (_, turn) = await opened(rig, "a", "b")
    await rig.ingestion.requests.handle([cancel(conversation, turn)])

    await in_order(rig, conversation, rig.ingestion.canceller.sweep, rig.second.canceller.sweep)

    assert state(rig, turn) == ("cancelled", "user")
    assert ends(rig, turn) == 1


@either_order
async def test_a_waiting_turn_is_cancelled_or_starts_but_never_both(
    rig: Rig, is_first: bool
) -> None:
    conversation, (first, second) = await opened(rig, "a", "b")
    request = cancel(conversation, second)

    await race(
        rig,
        conversation,
        asks(rig, request),
        ends_by_itself(rig, conversation, first),
        is_first=is_first,
    )

    assert outcome(rig, request) == ACCEPTED
    started = rig.one("select started_at is not null from ingestion.turns where id = %s", second)
    assert started != is_first, "a turn that is to stop never starts"
    await rig.second.canceller.sweep()
    expected = ("cancelled", "user") if is_first else ("pending", None)
    assert state(rig, second) == expected, "what has started is its worker's to end, for a while"


@either_order
async def test_a_turn_that_has_waited_too_long_fails_or_starts_but_never_both(
    rig: Rig, is_first: bool
) -> None:
    conversation, (first, second) = await opened(rig, "a", "b", policy="queue")
    rig.rows("update ingestion.open_turns set wait_until = now() - interval '1 second'")

    await race(
        rig,
        conversation,
        rig.ingestion.canceller.sweep,
        ends_by_itself(rig, conversation, first),
        is_first=is_first,
    )

    expected = ("failed", "queue_timeout") if is_first else ("pending", None)
    assert state(rig, second) == expected
    left = waiting(rig, conversation)
    assert left == ([] if is_first else [(second, 0, True)])


@either_order
async def test_a_replacing_message_starts_once_whenever_the_running_turn_ends(
    rig: Rig, is_first: bool
) -> None:
    conversation, (running,) = await opened(rig, "a")
    request = post(conversation, "b", policy="replace")
    new = ids.turn_id(TENANT, conversation, "b")

    await race(
        rig,
        conversation,
        asks(rig, request),
        ends_by_itself(rig, conversation, running),
        is_first=is_first,
    )

    assert outcome(rig, request) == ACCEPTED
    assert waiting(rig, conversation) == [(new, 0, True)]
    told = rig.one("select count(*) from ingestion.outbox where type = 'turn.cancel_requested'")
    assert told == int(is_first)
    assert ends(rig, running) == 1
    starts = rig.one("select count(*) from ingestion.outbox where type = 'turn.started'")
    assert starts == 2


@either_order
async def test_a_message_is_rejected_only_while_the_other_turn_runs(
    rig: Rig, is_first: bool
) -> None:
    conversation, (running,) = await opened(rig, "a")
    request = post(conversation, "b", policy="reject")

    await race(
        rig,
        conversation,
        asks(rig, request),
        ends_by_itself(rig, conversation, running),
        is_first=is_first,
    )

    expected = ("rejected", "turn-in-progress") if is_first else ACCEPTED
    assert outcome(rig, request) == expected
    assert len(waiting(rig, conversation)) == int(not is_first)


async def test_two_edits_of_one_message_are_two_branches(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    one = edit(conversation, "x", question(turn), "first words")
    other = edit(conversation, "y", question(turn), "second words")

    await in_order(rig, conversation, asks(rig, one), lambda: rig.second.requests.handle([other]))

    assert outcome(rig, one) == outcome(rig, other) == ACCEPTED
    branches = rig.rows(
        "select id, parent_branch_id, below from ingestion.branches where kind = 'sibling'"
    )
    assert {row["parent_branch_id"] for row in branches} == {conversation}
    assert [row["below"][1] for row in branches] == [1, 1]
    made = rig.rows(
        "select branch_id, seq, supersedes from ingestion.messages where seq > 2 order by seq"
    )
    assert [row["seq"] for row in made] == [3, 4, 5, 6]
    assert made[0]["branch_id"] != made[2]["branch_id"]
    last = ids.branch_id(ids.turn_id(TENANT, conversation, "y"))
    assert rig.one("select branch_id from ingestion.conversations") == last


@either_order
async def test_an_edit_finds_its_message_or_it_was_deleted_before(rig: Rig, is_first: bool) -> None:
    conversation, (turn,) = await answered(rig, "a")
    request = edit(conversation, "x", question(turn))
    gone = delete_message(conversation, question(turn))

    await race(
        rig,
        conversation,
        asks(rig, request),
        lambda: rig.second.requests.handle([gone]),
        is_first=is_first,
    )

    assert outcome(rig, request) == (ACCEPTED if is_first else ("not_found", "not-found"))
    assert outcome(rig, gone) == ACCEPTED


@either_order
async def test_a_question_that_is_being_answered_again_is_not_deleted(
    rig: Rig, is_first: bool
) -> None:
    conversation, (turn,) = await answered(rig, "a")
    request = answer_again(conversation, "x", turn)
    gone = delete_message(conversation, question(turn))

    await race(
        rig,
        conversation,
        asks(rig, request),
        lambda: rig.second.requests.handle([gone]),
        is_first=is_first,
    )

    if is_first:
        assert outcome(rig, request) == ACCEPTED
        assert outcome(rig, gone) == ("rejected", "turn-in-progress")
    else:
        assert outcome(rig, request) == ("not_found", "not-found")
        assert outcome(rig, gone) == ACCEPTED


@either_order
async def test_nothing_is_posted_to_a_deleted_conversation(rig: Rig, is_first: bool) -> None:
    conversation, _ = await opened(rig)
    request = post(conversation, "k")
    turn = ids.turn_id(TENANT, conversation, "k")

    await race(
        rig,
        conversation,
        lambda: rig.second.requests.handle([delete(conversation)]),
        asks(rig, request),
        is_first=is_first,
    )

    assert outcome(rig, request) == (("not_found", "not-found") if is_first else ACCEPTED)
    if not is_first:
        marked = rig.one("select cancel_reason from ingestion.open_turns where turn_id = %s", turn)
        assert marked == "conversation_deleted"


@either_order
async def test_a_deleted_conversation_and_its_last_answer_make_one_end(
    rig: Rig, is_first: bool
) -> None:
    conversation, (turn,) = await opened(rig, "k")

    await race(
        rig,
        conversation,
        asks(rig, delete(conversation)),
        ends_by_itself(rig, conversation, turn),
        is_first=is_first,
    )
    await rig.ingestion.canceller.sweep()

    assert ends(rig, turn) == 1
    assert rig.one("select deleted_at is not null from ingestion.conversations")
    assert waiting(rig, conversation) == []


@either_order
async def test_an_answer_is_deleted_once_it_is_there(rig: Rig, is_first: bool) -> None:
    conversation, (turn,) = await opened(rig, "k")
    request = delete_message(conversation, ids.message_id(turn, "assistant"))

    await race(
        rig,
        conversation,
        asks(rig, request),
        ends_by_itself(rig, conversation, turn),
        is_first=is_first,
    )

    assert outcome(rig, request) == (("rejected", "turn-in-progress") if is_first else ACCEPTED)
    assert state(rig, turn) == ("completed", None)
    deleted = rig.one("select answer_deleted_at is not null from ingestion.turns")
    assert deleted != is_first


@either_order
async def test_a_conversation_is_restored_or_purged_but_never_half(
    rig: Rig, is_first: bool
) -> None:
    conversation, _ = await answered(rig, "a")
    await rig.ingestion.requests.handle([delete(conversation)])
    rig.rows("update ingestion.conversations set purge_at = now() + interval '1 second'")
    request = restore(conversation)
    purge = "select count(*) from ingestion.op_purge_conversations(10)"
    if not is_first:
        rig.rows("update ingestion.conversations set purge_at = now() - interval '1 second'")
        assert (await rig.second.database.fetch(purge))[0]["count"] == 1

    await rig.ingestion.requests.handle([request])

    if is_first:
        assert outcome(rig, request) == ACCEPTED
        assert (await rig.second.database.fetch(purge))[0]["count"] == 0
        assert rig.one(
            "select purge_at is null and deleted_at is null from ingestion.conversations"
        )
    else:
        assert outcome(rig, request) == ("not_found", "not-found")
        assert rig.one("select count(*) from ingestion.messages") == 0


async def test_a_restore_that_holds_the_conversation_keeps_the_purge_away(rig: Rig) -> None:
    conversation, _ = await answered(rig, "a")
    await rig.ingestion.requests.handle([delete(conversation)])
    holder = await psycopg.AsyncConnection.connect(rig.test_database.admin_url)
    try:
        await holder.execute(
            "update ingestion.conversations set deleted_at = null, purge_at = null"
        )
        rows = await rig.second.database.fetch(
            "select count(*) from ingestion.op_purge_conversations(10)"
        )
        await holder.commit()
    finally:
        await holder.close()

    assert rows[0]["count"] == 0
    assert rig.one("select count(*) from ingestion.messages") == 2


async def test_two_branching_messages_start_beside_the_running_turn(rig: Rig) -> None:
    conversation, (running,) = await opened(rig, "a")
    one, other = (post(conversation, key, policy="branch") for key in ("b", "c"))

    await in_order(rig, conversation, asks(rig, one), lambda: rig.second.requests.handle([other]))

    assert outcome(rig, one) == outcome(rig, other) == ACCEPTED
    assert [(position, started) for _, position, started in waiting(rig, conversation)] == [
        (0, True)
    ] * 3
    seqs = rig.rows("select seq from ingestion.messages order by seq")
    assert [row["seq"] for row in seqs] == list(range(1, 7))
    parents = rig.rows("select parent_turn_id from ingestion.turns")
    assert {row["parent_turn_id"] for row in parents} == {None}
    below = rig.rows("select below[2] as below from ingestion.branches where kind = 'sibling'")
    assert [row["below"] for row in below] == [1, 1]
    active = rig.one("select coalesce(branch_id, id) from ingestion.conversations")
    assert (active, rig.one("select last_turn_id from ingestion.conversations")) == (
        conversation,
        running,
    )


async def test_another_answer_is_made_once_per_key(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    one, other = (answer_again(conversation, "x", turn) for _ in range(2))

    await in_order(rig, conversation, asks(rig, one), lambda: rig.second.requests.handle([other]))

    assert (outcome(rig, one), outcome(rig, other)) == (ACCEPTED, ("replayed", None))
    assert rig.one("select count(*) from ingestion.turns") == 2
    assert rig.one("select branch_count from ingestion.conversations") == 2


@either_order
async def test_a_conversation_that_is_archived_goes_on(rig: Rig, is_first: bool) -> None:
    conversation, (first, second) = await answered(rig, "a", "b")
    request = edit(conversation, "x", question(second))

    async def archive() -> None:
        async with await psycopg.AsyncConnection.connect(
            rig.test_database.url_of("ops"), autocommit=True
        ) as ops:
            await ops.execute("select ingestion.op_archive(%s, 5, 'somebody')", (conversation,))

    await race(rig, conversation, archive, asks(rig, request), is_first=is_first)

    assert outcome(rig, request) == ACCEPTED
    again = answer_again(conversation, "y", first)
    await rig.ingestion.requests.handle([again])
    assert outcome(rig, again) == ACCEPTED
    turn = ids.turn_id(TENANT, conversation, "y")
    await complete(rig, conversation, turn)
    assert state(rig, turn) == ("completed", None)
