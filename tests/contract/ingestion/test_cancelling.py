"""A turn that is to stop, at every stage, on a real Postgres."""

import asyncio
from uuid import UUID, uuid4

import pytest

from libs import ids
from schemas.generations import GenerationFailedV1
from schemas.streams import (
    BEFORE_ALL,
    REAPER_FENCE_ATTEMPT,
    EntryId,
    content_delta,
    generating,
)
from tests.contract.ingestion.rig import (
    TENANT,
    Rig,
    cancel,
    delete,
    generated,
    interrupted,
    planned,
    post,
)
from tests.contract.ingestion.stages import (
    complete,
    cut,
    ends,
    opened,
    outcome,
    state,
    waiting,
)
from tests.rig.waiting import until

pytestmark = pytest.mark.postgres

ACCEPTED = ("accepted", None)
BY_USER = ("cancelled", "user")


def grace_is_over(rig: Rig) -> None:
    rig.rows("update ingestion.open_turns set cancel_at = cancel_at - interval '1.1 seconds'")


async def test_a_cancel_is_durable_and_told_once_with_its_first_reason(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    first, again = cancel(conversation, turn), cancel(conversation, turn)

    await rig.ingestion.requests.handle([first])
    await rig.second.requests.handle([again, post(conversation, "next", policy="replace")])

    assert outcome(rig, first) == outcome(rig, again) == ACCEPTED
    (event,) = rig.ingestion.relay.events
    assert (event.type, event.turn_id, event.data.reason) == ("turn.cancel_requested", turn, "user")
    assert (event.data.request_id, event.data.principal_id) == (None, None)
    assert event.id == ids.caused_id(turn, "turn.cancel_requested")
    assert "turn.cancel_requested" not in rig.second.relay.types()
    (row,) = rig.rows(
        "select cancel_reason, cancel_at from ingestion.open_turns where position = 0"
    )
    assert row["cancel_reason"] == "user"
    assert rig.one("select cancel_reason from ingestion.turns where id = %s", turn) == "user"


async def test_a_waiting_turn_ends_at_once_and_the_queue_closes(rig: Rig) -> None:
    conversation, (running, second, third) = await opened(rig, "a", "b", "c")
    await rig.ingestion.requests.handle([cancel(conversation, second)])

    assert await rig.ingestion.canceller.sweep() == 1

    assert state(rig, second) == BY_USER
    assert waiting(rig, conversation) == [(running, 0, True), (third, 1, False)]
    entries = await rig.ingestion.live.read(second, EntryId(2_000_000_000, 0), 10)
    assert [entry.event for entry in entries] == ["done"]
    assert ends(rig, second) == 1


async def test_a_cancelled_head_never_starts_and_the_next_one_does(rig: Rig) -> None:
    conversation, (running, second, third) = await opened(rig, "a", "b", "c")
    await rig.ingestion.requests.handle([cancel(conversation, second)])

    await complete(rig, conversation, running)
    assert waiting(rig, conversation) == [(second, 0, False), (third, 1, False)]
    assert await rig.second.reaper.sweep() == 1, "the sweep of any process ends it"

    assert state(rig, second) == BY_USER
    assert waiting(rig, conversation) == [(third, 0, True)]
    assert rig.one("select started_at is null from ingestion.turns where id = %s", second)


async def test_a_started_turn_gets_its_grace_and_then_ends_without_a_worker(rig: Rig) -> None:
    conversation, (turn, following) = await opened(rig, "a", "b")
    await rig.ingestion.requests.handle([cancel(conversation, turn)])

    assert await rig.ingestion.canceller.sweep() == 0
    grace_is_over(rig)
    assert await rig.ingestion.canceller.sweep() == 1

    assert state(rig, turn) == BY_USER
    assert waiting(rig, conversation) == [(following, 0, True)]
    assert await rig.second.canceller.sweep() == 0
    assert ends(rig, turn) == 1


async def test_what_was_shown_of_a_cancelled_turn_stays_and_its_worker_is_shut_out(
    rig: Rig,
) -> None:
    conversation, (turn,) = await opened(rig, "k")
    await rig.ingestion.context.handle([planned(conversation, turn)])
    live = rig.ingestion.live
    shown = [content_delta(EntryId(1, 2), "so "), content_delta(EntryId(1, 3), "far")]
    await live.append(turn, [generating(1), *shown])
    await rig.ingestion.requests.handle([cancel(conversation, turn)])
    grace_is_over(rig)

    await rig.ingestion.canceller.sweep()

    assert state(rig, turn) == BY_USER
    (row,) = rig.rows("select length, upto, attempts from ingestion.turns")
    assert tuple(row.values()) == (6, "1-3", 1)
    assert rig.one("select text from ingestion.messages where role = 'assistant'") == "so far"
    assert (await live.append(turn, [content_delta(EntryId(1, 4), "too late")])).fenced
    entries = await live.read(turn, EntryId(REAPER_FENCE_ATTEMPT, 0), 10)
    assert [entry.event for entry in entries] == ["done"]


async def test_without_redis_the_checkpoint_is_what_was_shown(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    await rig.ingestion.requests.handle([cancel(conversation, turn)])
    grace_is_over(rig)
    rig.rows(
        "insert into llm_gateway.partials "
        "(tenant_id, turn_id, step_id, attempt, upto, text, updated_at) "
        "values (%s, %s, %s, 1, '1-4', 'stored', now())",
        *(TENANT, turn, ids.step_id(turn, 1)),
    )
    rig.ingestion.live._server.go_away()

    await rig.ingestion.canceller.sweep()

    assert state(rig, turn) == BY_USER
    assert rig.one("select text from ingestion.messages where role = 'assistant'") == "stored"


@pytest.mark.parametrize("text", ["shown", ""])
async def test_the_worker_tells_the_end_and_its_cost(rig: Rig, text: str) -> None:
    conversation, (turn,) = await opened(rig, "k")
    await rig.ingestion.requests.handle([cancel(conversation, turn)])
    data = interrupted(rig.result(turn, text), "user")

    await rig.ingestion.generation.handle([generated(conversation, turn, data)])
    grace_is_over(rig)
    assert await rig.ingestion.canceller.sweep() == 0

    assert state(rig, turn) == BY_USER
    assert rig.one("select usage->>'input' from ingestion.turns") == "5"
    assert rig.one("select text from ingestion.messages where role = 'assistant'") == text


async def test_work_that_was_not_begun_ends_as_cancelled(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    await rig.ingestion.requests.handle([cancel(conversation, turn)])
    failed = GenerationFailedV1(step_id=ids.step_id(turn, 1), attempt=1, reason="user")

    await rig.ingestion.generation.handle([generated(conversation, turn, failed)])

    assert state(rig, turn) == BY_USER


@pytest.mark.parametrize("stage", ["completed", "partial", "cancelled", "unknown", "foreign"])
async def test_what_cannot_be_cancelled_says_why_and_nothing_changes(rig: Rig, stage: str) -> None:
    conversation, (turn,) = await opened(rig, "k")
    request = cancel(conversation, turn)
    expected: tuple[str, str | None] = ("rejected", "turn-already-terminal")
    match stage:
        case "completed":
            await complete(rig, conversation, turn)
        case "partial":
            await cut(rig, conversation, turn)
        case "cancelled":
            await rig.ingestion.requests.handle([cancel(conversation, turn)])
            grace_is_over(rig)
            await rig.ingestion.canceller.sweep()
        case "unknown":
            request, expected = cancel(conversation, uuid4()), ("not_found", "not-found")
        case _:
            request = cancel(conversation, turn, principal_id=uuid4())
            expected = ("not_found", "not-found")
    before = rig.rows("select * from ingestion.turns")

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == expected
    assert rig.rows("select * from ingestion.turns") == before


async def test_a_turn_of_another_conversation_is_not_found(rig: Rig) -> None:
    conversation, _ = await opened(rig, "k")
    _, (elsewhere,) = await opened(rig, "k")
    request = cancel(conversation, elsewhere)

    await rig.ingestion.requests.handle([request])

    assert outcome(rig, request) == ("not_found", "not-found")
    assert rig.one("select count(*) from ingestion.open_turns where cancel_at is not null") == 0


async def test_a_turn_posted_and_cancelled_in_one_batch_ends(rig: Rig) -> None:
    conversation, _ = await opened(rig)
    turn = ids.turn_id(TENANT, conversation, "k")
    request = cancel(conversation, turn)

    await rig.ingestion.requests.handle([post(conversation, "k"), request])
    grace_is_over(rig)
    await rig.ingestion.canceller.sweep()

    assert outcome(rig, request) == ACCEPTED
    assert state(rig, turn) == BY_USER
    assert rig.ingestion.relay.types()[:3] == [
        "turn.accepted",
        "turn.started",
        "turn.cancel_requested",
    ]


async def test_a_running_process_ends_cancelled_turns_by_itself_after_their_grace(rig: Rig) -> None:
    conversation, (running, second) = await opened(rig, "a", "b")
    canceller = asyncio.create_task(rig.ingestion.canceller.run())

    async def is_over(turn: UUID) -> bool:
        return state(rig, turn) == BY_USER

    try:
        begun = rig.one("select clock_timestamp()")
        await rig.ingestion.requests.handle(
            [cancel(conversation, second), cancel(conversation, running)]
        )
        await until(lambda: is_over(second))
        await until(lambda: is_over(running))
    finally:
        canceller.cancel()
        await asyncio.gather(canceller, return_exceptions=True)

    ended = "select ended_at from ingestion.turns where id = %s"
    assert rig.one(ended, second) <= rig.one(ended, running)
    assert (rig.one(ended, running) - begun).total_seconds() > 0.9, "a worker has its grace"
    assert ends(rig, running) == ends(rig, second) == 1


async def test_however_many_wait_one_look_ends_them_all(rig: Rig) -> None:
    conversations = [(await opened(rig, *map(str, range(32))))[0] for _ in range(4)]
    await rig.ingestion.requests.handle([delete(one) for one in conversations])

    assert await rig.ingestion.canceller.sweep() == 4 * 31

    left = rig.rows("select position, deadline_at from ingestion.open_turns")
    assert len(left) == 4, "what runs is its worker's to end"
    assert all(row["deadline_at"] is not None for row in left)
    told = rig.one("select count(*) from ingestion.outbox where type = 'turn.ended'")
    assert told == 4 * 31


async def test_a_cancelled_turn_is_not_told_again_as_started(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    await rig.ingestion.requests.handle([cancel(conversation, turn)])
    rig.rows("update ingestion.open_turns set progressed_at = now() - interval '11 seconds'")

    assert await rig.ingestion.retelling.sweep() == 0
    entries = await rig.ingestion.live.read(turn, BEFORE_ALL, 10)
    assert [entry.event for entry in entries] == ["message_started"]
