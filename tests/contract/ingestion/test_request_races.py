"""Two requests at once, and requests beside the purge and the archive: each is decided whole."""

import asyncio
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
    edit,
    generated,
    post,
    restore,
)
from tests.contract.ingestion.stages import (
    answer,
    answered,
    complete,
    cut,
    ends,
    in_order,
    opened,
    outcome,
    question,
    state,
    waiting,
)
from tests.rig.waiting import until

pytestmark = pytest.mark.postgres

Act = Callable[[], Coroutine[Any, Any, Any]]

ACCEPTED = ("accepted", None)
GONE = ("not_found", "not-found")
IN_PROGRESS = ("rejected", "turn-in-progress")
either_order = pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])


async def both(
    rig: Rig, conversation: UUID, one: Delivery, other: Delivery, *, is_first: bool = True
) -> None:
    """Two requests, each decided by a process of its own; ``one`` is first, or second."""
    acts: list[Act] = [
        lambda: rig.ingestion.requests.handle([one]),
        lambda: rig.second.requests.handle([other]),
    ]
    first, second = acts if is_first else acts[::-1]
    await in_order(rig, conversation, first, second)


async def beside_its_end(
    rig: Rig, conversation: UUID, request: Delivery, turn: UUID, *, is_first: bool
) -> None:
    """A request, and the whole answer of a turn told to another process."""
    event = generated(conversation, turn, rig.result(turn, "an answer"))
    acts: list[Act] = [
        lambda: rig.ingestion.requests.handle([request]),
        lambda: rig.second.generation.handle([event]),
    ]
    first, second = acts if is_first else acts[::-1]
    await in_order(rig, conversation, first, second)


def seqs(rig: Rig) -> list[int]:
    return [row["seq"] for row in rig.rows("select seq from ingestion.messages order by seq")]


def branch_of(rig: Rig, turn: UUID) -> UUID:
    found: UUID = rig.one("select branch_id from ingestion.turns where id = %s", turn)
    return found


# Policies. --------------------------------------------------------------------------------------


async def test_of_two_replacing_messages_the_later_one_starts_and_starts_once(rig: Rig) -> None:
    conversation, (running,) = await opened(rig, "a")
    one, other = (post(conversation, key, policy="replace") for key in ("b", "c"))
    first, second = (ids.turn_id(TENANT, conversation, key) for key in ("b", "c"))

    await both(rig, conversation, one, other)

    assert outcome(rig, one) == outcome(rig, other) == ACCEPTED
    told = rig.rows("select convert_from(payload, 'utf8')::jsonb as event from ingestion.outbox")
    stopped = [
        (row["event"]["correlation_id"], row["event"]["data"]["reason"])
        for row in told
        if row["event"]["type"] == "turn.cancel_requested"
    ]
    assert sorted(stopped) == sorted([(str(running), "replaced"), (str(first), "replaced")])
    await complete(rig, conversation, running)
    await rig.ingestion.canceller.sweep()
    assert state(rig, first) == ("cancelled", "replaced")
    assert waiting(rig, conversation) == [(second, 0, True)]
    started = rig.rows("select id from ingestion.turns where started_at is not null")
    assert {row["id"] for row in started} == {running, second}
    starts = rig.one("select count(*) from ingestion.outbox where type = 'turn.started'")
    assert starts == 2


async def test_of_two_rejecting_messages_at_rest_one_runs_and_is_named_to_the_other(
    rig: Rig,
) -> None:
    conversation, _ = await opened(rig)
    one, other = (post(conversation, key, policy="reject") for key in ("a", "b"))

    await both(rig, conversation, one, other)

    assert (outcome(rig, one), outcome(rig, other)) == (ACCEPTED, IN_PROGRESS)
    named = rig.one(
        "select problem->>'turn_id' from ingestion.request_outcomes where request_id = %s",
        other.event.id,
    )
    assert named == str(ids.turn_id(TENANT, conversation, "a"))
    assert rig.one("select count(*) from ingestion.turns") == 1


async def test_the_last_place_of_a_queue_is_taken_once(rig: Rig) -> None:
    conversation, _ = await opened(rig, *"abcdefgh", policy="queue")
    one, other = (post(conversation, key, policy="queue") for key in ("y", "z"))

    await both(rig, conversation, one, other)

    assert (outcome(rig, one), outcome(rig, other)) == (ACCEPTED, ("rejected", "quota-exceeded"))
    assert [row[1] for row in waiting(rig, conversation)] == list(range(9))


@either_order
async def test_a_turn_that_is_replaced_and_cancelled_keeps_the_first_reason(
    rig: Rig, is_first: bool
) -> None:
    conversation, (running,) = await opened(rig, "a")
    newer, stop = post(conversation, "b", policy="replace"), cancel(conversation, running)

    await both(rig, conversation, newer, stop, is_first=is_first)
    rig.rows(
        "update ingestion.open_turns set cancel_at = now() - interval '5 seconds' "
        "where turn_id = %s",
        running,
    )
    await rig.ingestion.canceller.sweep()

    assert outcome(rig, newer) == outcome(rig, stop) == ACCEPTED
    assert state(rig, running) == ("cancelled", "replaced" if is_first else "user")
    assert ends(rig, running) == 1
    told = rig.one("select count(*) from ingestion.outbox where type = 'turn.cancel_requested'")
    assert told == 1
    assert waiting(rig, conversation) == [(ids.turn_id(TENANT, conversation, "b"), 0, True)]


# Edits beside a running turn. -------------------------------------------------------------------


@either_order
async def test_the_question_of_a_running_turn_is_edited_only_once_it_has_ended(
    rig: Rig, is_first: bool
) -> None:
    conversation, (running,) = await opened(rig, "a")
    request = edit(conversation, "x", question(running))

    await beside_its_end(rig, conversation, request, running, is_first=is_first)

    assert outcome(rig, request) == (IN_PROGRESS if is_first else ACCEPTED)
    assert state(rig, running) == ("completed", None)
    assert seqs(rig) == ([1, 2] if is_first else [1, 2, 3, 4])
    assert rig.one("select count(*) from ingestion.branches") == (1 if is_first else 2)


@either_order
@pytest.mark.parametrize("policy", ["serialize", "reject", "replace"])
async def test_an_edit_of_an_earlier_message_meets_the_running_turn_or_its_end(
    rig: Rig, policy: str, is_first: bool
) -> None:
    conversation, (before,) = await answered(rig, "a")
    running, edited = (ids.turn_id(TENANT, conversation, key) for key in ("b", "x"))
    await rig.ingestion.requests.handle([post(conversation, "b")])
    request = edit(conversation, "x", question(before), policy=policy)

    await beside_its_end(rig, conversation, request, running, is_first=is_first)

    assert state(rig, running) == ("completed", None)
    assert ends(rig, running) == 1
    marked = rig.one("select cancel_reason from ingestion.turns where id = %s", running)
    assert marked == ("replaced" if is_first and policy == "replace" else None)
    if is_first and policy == "reject":
        assert outcome(rig, request) == IN_PROGRESS
        assert seqs(rig) == [1, 2, 3, 4]
        return
    assert outcome(rig, request) == ACCEPTED
    assert seqs(rig) == [1, 2, 3, 4, 5, 6]
    assert waiting(rig, conversation) == [(edited, 0, True)]
    assert branch_of(rig, edited) == ids.branch_id(edited)
    shown = rig.one("select below[2] from ingestion.branches where id = %s", ids.branch_id(edited))
    assert shown == 1, "nothing of the old line stands on the new one, whenever it was said"


# Two answers to one question. -------------------------------------------------------------------


@either_order
async def test_an_answer_is_made_again_and_continued_at_once_on_two_branches(
    rig: Rig, is_first: bool
) -> None:
    conversation, (turn,) = await opened(rig, "a", model="scripted")
    await cut(rig, conversation, turn)
    again = answer_again(conversation, "x", turn)
    further = answer_again(conversation, "y", turn, "continue")
    anew, rest = (ids.turn_id(TENANT, conversation, key) for key in ("x", "y"))

    await both(rig, conversation, again, further, is_first=is_first)

    assert outcome(rig, again) == outcome(rig, further) == ACCEPTED
    assert seqs(rig) == [1, 2, 3, 4]
    assert branch_of(rig, anew) == ids.branch_id(anew)
    assert branch_of(rig, rest) == conversation, "nothing follows the unfinished answer there"
    rows = {row["id"]: row for row in rig.rows("select * from ingestion.turns")}
    assert rows[rest]["continues"] == [answer(turn)]
    assert rows[anew]["continues"] in (None, [])
    assert {rows[one]["user_message_id"] for one in (turn, anew, rest)} == {question(turn)}
    active = rig.one("select coalesce(branch_id, id) from ingestion.conversations")
    assert active == (conversation if is_first else ids.branch_id(anew))
    for one in (anew, rest):
        await complete(rig, conversation, one)
        assert ends(rig, one) == 1


async def test_two_continuations_of_one_answer_are_two_branches(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "a", model="scripted")
    await cut(rig, conversation, turn)
    one, other = (answer_again(conversation, key, turn, "continue") for key in ("x", "y"))
    first, second = (ids.turn_id(TENANT, conversation, key) for key in ("x", "y"))

    await both(rig, conversation, one, other)

    assert outcome(rig, one) == outcome(rig, other) == ACCEPTED
    assert (branch_of(rig, first), branch_of(rig, second)) == (
        conversation,
        ids.branch_id(second),
    )
    assert seqs(rig) == [1, 2, 3, 4]
    assert rig.one("select below[2] from ingestion.branches where kind = 'sibling'") == 3


async def test_two_answers_again_are_siblings_without_a_gap(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    one, other = (answer_again(conversation, key, turn) for key in ("x", "y"))

    await both(rig, conversation, one, other)

    assert outcome(rig, one) == outcome(rig, other) == ACCEPTED
    assert seqs(rig) == [1, 2, 3, 4]
    grown = rig.rows(
        "select parent_branch_id, below[2] as b from ingestion.branches where kind = 'sibling'"
    )
    assert [(row["parent_branch_id"], row["b"]) for row in grown] == [(conversation, 2)] * 2


@either_order
async def test_a_running_answer_is_made_again_only_once_it_has_ended(
    rig: Rig, is_first: bool
) -> None:
    conversation, (running,) = await opened(rig, "a")
    request = answer_again(conversation, "x", running)

    await beside_its_end(rig, conversation, request, running, is_first=is_first)

    assert outcome(rig, request) == (IN_PROGRESS if is_first else ACCEPTED)
    assert seqs(rig) == ([1, 2] if is_first else [1, 2, 3])


# The purge and the archive. ---------------------------------------------------------------------


async def while_purged(rig: Rig, act: Act) -> None:
    """Begin something while a purge has deleted the rows and not committed yet."""
    purge = await psycopg.AsyncConnection.connect(rig.test_database.url_of("ingestion"))
    try:
        rows = await purge.execute("select count(*) from ingestion.op_purge_conversations(10)")
        assert await rows.fetchone() == (1,)
        acting = asyncio.create_task(act())

        async def is_in_line() -> bool:
            found: int = rig.one("select count(distinct pid) from pg_locks where not granted")
            return found == 1

        await until(is_in_line)
        await purge.commit()
        await acting
    finally:
        await purge.close()


def left(rig: Rig) -> int:
    tables = ("conversations", "branches", "turns", "messages", "message_tokens", "transitions")
    return sum(rig.one(f"select count(*) from ingestion.{table}") for table in tables)  # noqa: S608 -- names from above


async def test_a_restore_that_meets_the_purge_finds_nothing(rig: Rig) -> None:
    conversation, _ = await answered(rig, "a")
    await rig.ingestion.requests.handle([delete(conversation)])
    rig.rows("update ingestion.conversations set purge_at = now() - interval '1 second'")
    request = restore(conversation)

    await while_purged(rig, lambda: rig.ingestion.requests.handle([request]))

    assert outcome(rig, request) == GONE
    assert left(rig) == 0


async def test_a_late_answer_that_meets_the_purge_is_dropped(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    late = generated(conversation, turn, rig.result(turn, "too late"))
    await rig.ingestion.requests.handle([delete(conversation)])
    rig.rows("update ingestion.open_turns set cancel_at = now() - interval '5 seconds'")
    await rig.ingestion.canceller.sweep()
    rig.rows("update ingestion.conversations set purge_at = now() - interval '1 second'")
    told = rig.one("select count(*) from ingestion.outbox where type = 'turn.ended'")

    await while_purged(rig, lambda: rig.second.generation.handle([late]))

    assert left(rig) == 0
    assert rig.one("select count(*) from ingestion.outbox where type = 'turn.ended'") == told


@either_order
async def test_a_message_is_accepted_before_or_after_what_stands_below_it_is_archived(
    rig: Rig, is_first: bool
) -> None:
    conversation, (before,) = await answered(rig, "a")
    request = post(conversation, "b")
    turn = ids.turn_id(TENANT, conversation, "b")
    refusals: list[str] = []

    async def archive() -> None:
        """Everything that is there, the new message included, where it is there already."""
        async with await psycopg.AsyncConnection.connect(
            rig.test_database.url_of("ops"), autocommit=True
        ) as ops:
            try:
                await ops.execute("select ingestion.op_archive(%s, 100, 'x')", (conversation,))
            except psycopg.DatabaseError as error:
                refusals.append(error.sqlstate or "")

    acts: list[Act] = [lambda: rig.ingestion.requests.handle([request]), archive]
    await in_order(rig, conversation, *(acts if is_first else acts[::-1]))

    assert outcome(rig, request) == ACCEPTED
    assert refusals == (["TW002"] if is_first else []), "an open turn keeps its messages in place"
    archived = rig.one("select count(*) from ingestion.archived_messages")
    assert archived == (0 if is_first else 2)
    await complete(rig, conversation, turn)
    assert state(rig, turn) == ("completed", None)
    assert rig.one("select parent_turn_id from ingestion.turns where id = %s", turn) == before
