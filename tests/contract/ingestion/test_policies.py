"""What becomes of a message while another turn runs, by policy, on a real Postgres."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from libs import ids
from libs.postgres import Database, Row, Statement, Transaction
from libs.redis.memory import MemoryRedis
from schemas.streams import BEFORE_ALL
from services.ingestion.statements import SQL
from tests.contract.ingestion.rig import (
    TENANT,
    Ingestion,
    Rig,
    create,
    generated,
    planned,
    post,
    update,
)
from tests.contract.ingestion.stages import (
    answered,
    complete,
    opened,
    outcome,
    state,
    waiting,
)

pytestmark = pytest.mark.postgres

ACCEPTED = ("accepted", None)


# What the plain path costs. ---------------------------------------------------------------------


class Counting:
    """A transaction that notes the names of the statements of each round trip."""

    def __init__(self, transaction: Transaction, trips: list[list[str]]) -> None:
        self._transaction = transaction
        self._trips = trips

    async def batch(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self._note(statements)
        return await self._transaction.batch(statements)

    async def commit_with(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self._note(statements)
        return await self._transaction.commit_with(statements)

    def _note(self, statements: Sequence[Statement]) -> None:
        names = {sql: name for name, sql in SQL.items()}
        self._trips.append([names.get(sql, "mechanics") for sql, _ in statements])


class CountingDatabase:
    """A database whose transactions are counted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.trips: list[list[str]] = []

    @asynccontextmanager
    async def transaction(self, tenants: Any = ()) -> AsyncIterator[Counting]:
        async with self._database.transaction(tenants) as transaction:
            yield Counting(transaction, self.trips)

    async def fetch(self, *arguments: Any, **named: Any) -> list[Row]:
        return await self._database.fetch(*arguments, **named)


async def test_a_plain_turn_sends_the_statements_of_a_plain_turn_and_no_others(rig: Rig) -> None:
    conversation, _ = await answered(rig, "before")
    database = CountingDatabase(rig.ingestion.database)
    process = Ingestion(database, MemoryRedis())  # type: ignore[arg-type]
    turn = ids.turn_id(TENANT, conversation, "k")

    await process.requests.handle([post(conversation, "k")])
    accepted = database.trips.copy()
    database.trips.clear()
    await process.context.handle([planned(conversation, turn)])
    moved = database.trips.copy()
    database.trips.clear()
    await process.generation.handle([generated(conversation, turn, rig.result(turn, "x"))])

    reads = ["lock_conversations", "now"]
    assert accepted == [
        [*reads, "mechanics", "turns_by_key", "open_turns_of"],
        [
            *("insert_turns", "insert_messages", "insert_transitions", "insert_open_turns"),
            *("insert_tokens", "advance_conversations", "insert_outcomes", "mechanics"),
            "mechanics",
        ],
    ]
    assert moved == [
        [*reads, "signalled_turns", "queues", "mechanics"],
        ["insert_transitions", "move_turns", "move_open_turns", "mechanics"],
    ]
    assert database.trips == [
        [*reads, "signalled_turns", "queues", "mechanics", "results"],
        [
            *("end_turns", "commit_results", "insert_tokens", "close_turns"),
            *("insert_transitions", "mechanics", "mechanics"),
        ],
    ]


# Policies. --------------------------------------------------------------------------------------


async def test_reject_names_the_running_turn_and_leaves_nothing(rig: Rig) -> None:
    conversation, (running,) = await opened(rig, "a")
    request = post(conversation, "b", policy="reject")

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ("rejected", "turn-in-progress")
    named = rig.one(
        "select problem->>'turn_id' from ingestion.request_outcomes where request_id = %s",
        request.event.id,
    )
    assert named == str(running)
    assert rig.one("select next_seq from ingestion.conversations") == 3
    await complete(rig, conversation, running)
    again = post(conversation, "b", policy="reject")
    await rig.ingestion.requests.handle([again])
    assert outcome(rig, again) == ACCEPTED


async def test_the_ninth_waiting_turn_of_a_queue_is_refused(rig: Rig) -> None:
    conversation, turns = await opened(rig, *"abcdefghi", policy="queue")
    request = post(conversation, "j", policy="queue")

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ("rejected", "quota-exceeded")
    assert [row[1] for row in waiting(rig, conversation)] == list(range(9))
    await complete(rig, conversation, turns[0])
    again = post(conversation, "j", policy="queue")
    await rig.ingestion.requests.handle([again])
    assert outcome(rig, again) == ACCEPTED
    last = ids.turn_id(TENANT, conversation, "j")
    assert rig.one("select position from ingestion.open_turns where turn_id = %s", last) == 8
    entries = await rig.ingestion.live.read(last, BEFORE_ALL, 10)
    assert b'"queue_position":8' in entries[-1].data


async def test_a_queued_turn_gives_up_and_the_others_move_up(rig: Rig) -> None:
    conversation, (running, second, third) = await opened(rig, "a", "b", "c", policy="queue")
    bounded = rig.rows(
        "select extract(epoch from wait_until - progressed_at)::int as s from ingestion.open_turns "
        "where wait_until is not null"
    )
    assert [row["s"] for row in bounded] == [60, 60], "the running turn waits for nothing"
    rig.rows(
        "update ingestion.open_turns set wait_until = now() - interval '1 second' "
        "where turn_id = %s",
        second,
    )

    assert await rig.ingestion.reaper.sweep() == 1

    assert state(rig, second) == ("failed", "queue_timeout")
    assert waiting(rig, conversation) == [(running, 0, True), (third, 1, False)]
    entries = await rig.ingestion.live.read(third, BEFORE_ALL, 10)
    assert b'"queue_position":1' in entries[-1].data


async def test_under_serialize_nobody_gives_up(rig: Rig) -> None:
    await opened(rig, "a", "b")

    assert rig.one("select count(*) from ingestion.open_turns where wait_until is not null") == 0


async def test_replace_stops_all_that_is_open_and_starts_after_them(rig: Rig) -> None:
    conversation, (running, second) = await opened(rig, "a", "b")
    request = post(conversation, "c", policy="replace")
    new = ids.turn_id(TENANT, conversation, "c")

    await rig.ingestion.requests.handle([request])

    told = [event for event in rig.ingestion.relay.events if event.type == "turn.cancel_requested"]
    assert {(event.turn_id, event.data.reason) for event in told} == {
        (running, "replaced"),
        (second, "replaced"),
    }
    await rig.ingestion.canceller.sweep()
    assert state(rig, second) == ("cancelled", "replaced")
    assert waiting(rig, conversation) == [(running, 0, True), (new, 1, False)]
    await complete(rig, conversation, running)
    assert waiting(rig, conversation) == [(new, 0, True)]


async def test_a_branching_message_shows_what_the_running_turn_shows(rig: Rig) -> None:
    conversation, (before,) = await answered(rig, "a")
    await rig.ingestion.requests.handle([post(conversation, "b")])
    request = post(conversation, "c", policy="branch")
    new = ids.turn_id(TENANT, conversation, "c")
    rig.ingestion.relay.messages.clear()

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ACCEPTED
    accepted, started = rig.ingestion.relay.events
    assert (accepted.data.branch_id, accepted.data.parent_turn_id) == (ids.branch_id(new), before)
    assert (started.data.branch_id, started.data.base_seq) == (ids.branch_id(new), 5)
    (branch,) = rig.rows("select * from ingestion.branches where kind = 'sibling'")
    assert (branch["segments"], branch["below"][1]) == ([branch["id"], conversation], 3)
    assert (branch["is_plain"], branch["last_turn_id"]) == (False, new)
    following = post(conversation, "d")
    await rig.ingestion.requests.handle([following])
    behind = rig.rows("select branch_id, parent_turn_id from ingestion.turns where key = 'd'")
    assert behind == [
        {"branch_id": conversation, "parent_turn_id": ids.turn_id(TENANT, conversation, "b")}
    ], "a branching message does not turn the conversation away from where it was"


async def test_a_message_after_the_last_turn_of_another_branch_goes_on_there(rig: Rig) -> None:
    conversation, (running,) = await opened(rig, "a")
    aside = ids.turn_id(TENANT, conversation, "b")
    await rig.ingestion.requests.handle([post(conversation, "b", policy="branch")])
    await complete(rig, conversation, running)
    await complete(rig, conversation, aside)

    there = post(conversation, "c", parent=aside)
    back = post(conversation, "d", parent=running)
    nowhere = post(conversation, "e", parent=aside)
    await rig.ingestion.requests.handle([there])
    await rig.ingestion.requests.handle([back])
    await rig.ingestion.requests.handle([nowhere])

    turns = {row["key"]: row for row in rig.rows("select * from ingestion.turns")}
    assert (turns["c"]["branch_id"], turns["c"]["parent_turn_id"]) == (ids.branch_id(aside), aside)
    assert (turns["d"]["branch_id"], turns["d"]["parent_turn_id"]) == (conversation, running)
    assert outcome(rig, nowhere) == ("rejected", "stale-parent")
    (row,) = rig.rows("select branch_id, last_turn_id from ingestion.conversations")
    assert tuple(row.values()) == (conversation, turns["d"]["id"])
    left = rig.one("select last_turn_id from ingestion.branches where kind = 'sibling'")
    assert left == turns["c"]["id"]


async def test_a_branching_message_may_follow_any_turn_that_has_ended(rig: Rig) -> None:
    conversation, (first, second) = await answered(rig, "a", "b")
    request = post(conversation, "c", parent=first, policy="branch")
    running = post(conversation, "d")
    too_early = post(conversation, "e", parent=ids.turn_id(TENANT, conversation, "d"))

    await rig.ingestion.requests.handle([request])
    await rig.ingestion.requests.handle([running, too_early])

    assert outcome(rig, request) == ACCEPTED
    (turn,) = rig.rows("select * from ingestion.turns where key = 'c'")
    assert (turn["parent_turn_id"], turn["seq"]) == (first, 5)
    assert rig.one("select below[2] from ingestion.branches where kind = 'sibling'") == 3
    assert rig.one("select parent_turn_id from ingestion.turns where key = 'd'") == second
    assert outcome(rig, too_early) == ACCEPTED, "it follows the latest turn, running or not"


async def test_the_policy_of_the_conversation_holds_where_a_message_names_none(rig: Rig) -> None:
    conversation, _ = await opened(rig, "a")
    refused = post(conversation, "b")
    waits = post(conversation, "c", policy="serialize")

    await rig.ingestion.requests.handle(
        [update(conversation, policy="reject", title="renamed"), refused, waits]
    )

    assert outcome(rig, refused) == ("rejected", "turn-in-progress")
    assert outcome(rig, waits) == ACCEPTED
    (row,) = rig.rows("select title, policy from ingestion.conversations")
    assert tuple(row.values()) == ("renamed", "reject")


@pytest.mark.parametrize("policy", ["serialize", "queue", "reject", "replace", "branch"])
async def test_the_same_key_is_the_same_turn_under_every_policy(rig: Rig, policy: str) -> None:
    conversation, (running,) = await opened(rig, "a")
    if policy == "reject":
        await complete(rig, conversation, running)
    one, again, other = (
        post(conversation, "b", text, policy=policy) for text in ("red", "red", "blue")
    )

    for request in (one, again, other):
        await rig.ingestion.requests.handle([request])

    assert [outcome(rig, request)[0] for request in (one, again, other)] == [
        "accepted",
        "replayed",
        "conflict",
    ]
    assert rig.one("select count(*) from ingestion.turns") == 2
    assert rig.one("select count(*) from ingestion.branches") == 1 + (policy == "branch")


async def test_a_conversation_has_at_most_two_hundred_branches(rig: Rig) -> None:
    conversation, _ = await opened(rig, "a")
    rig.rows("update ingestion.conversations set branch_count = 199")
    last, one_more = (post(conversation, key, policy="branch") for key in ("b", "c"))

    await rig.ingestion.requests.handle([last, one_more])

    assert outcome(rig, last) == ACCEPTED
    assert outcome(rig, one_more) == ("rejected", "quota-exceeded")


async def test_branches_of_branches_are_made_in_one_batch(rig: Rig) -> None:
    conversation, _ = await opened(rig)
    keys = ["a", "b", "c"]
    await rig.ingestion.requests.handle(
        [
            post(conversation, "a"),
            post(conversation, "b", policy="branch"),
            post(
                conversation,
                "c",
                policy="branch",
                parent=ids.turn_id(TENANT, conversation, "b"),
            ),
        ]
    )

    turns = [ids.turn_id(TENANT, conversation, key) for key in keys]
    grown = {row["id"]: row for row in rig.rows("select * from ingestion.branches")}
    second, third = (grown[ids.branch_id(turn)] for turn in turns[1:])
    assert second["segments"] == [second["id"], conversation]
    assert third["segments"] == [third["id"], second["id"], conversation]
    assert third["below"][1:] == [3, 1]


async def test_the_sweep_of_waiting_turns_costs_one_round_trip(rig: Rig) -> None:
    await opened(rig, "a")
    database = CountingDatabase(rig.ingestion.database)
    process = Ingestion(database, MemoryRedis())  # type: ignore[arg-type]

    assert await process.reaper.sweep() == 0

    assert database.trips == [
        [
            "overdue_turns",
            "cancelled_turns",
            "unstarted_heads",
            "count_open_turns",
            "uncounted_ends",
        ]
    ]


async def test_a_purged_conversation_is_not_made_again_by_its_key(rig: Rig) -> None:
    request = create(uuid4())
    rig.rows(
        "insert into ingestion.purged_conversations (tenant_id, conversation_id, purged_at) "
        "values (%s, %s, now())",
        *(TENANT, request.event.conversation_id),
    )

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ("not_found", "not-found")
    assert rig.one("select count(*) from ingestion.conversations") == 0
