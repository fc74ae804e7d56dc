"""One attempt from its claim to its stored end, on a real Postgres."""

import base64
import hashlib
from typing import Any, Literal

import pytest

from libs.redis.memory import MemoryLiveStream, MemoryRedis
from schemas.generations import (
    GenerationCompletedV1,
    GenerationFailedV1,
    GenerationInterruptedV1,
)
from schemas.streams import EntryId
from schemas.turns import TurnCancelRequestedV1, TurnEndedV1
from schemas.usage import Usage
from services.llm_gateway.providers.memory import MemoryProvider, answer
from tests.rig.llm_worker import (
    SeededTurn,
    Terms,
    Worker,
    about,
    delivery,
    http_provider,
    on_another_branch,
    rows,
    running_worker,
    seed_turn,
    until,
)
from tests.rig.parts import TestDatabase
from tests.rig.provider import Rule

pytestmark = pytest.mark.postgres

USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


async def end_of(
    database: TestDatabase,
    *rules: Rule,
    deadline_s: float = 300.0,
    limited_by: Literal["turn", "step"] = "turn",
    **settings: Any,
) -> tuple[Any, SeededTurn, int]:
    """How a turn's call ends against this script: the event's data, the turn, requests made."""
    async with (
        http_provider(*rules) as (server, provider),
        running_worker(database, provider, **settings) as worker,
    ):
        turn = seed_turn(database, terms=Terms(deadline_s, limited_by))  # its time begins here
        await worker.take(turn)
        told = await worker.ended(turn)
        return told.data, turn, len(server.requests)


async def test_a_planned_step_becomes_one_answer(database: TestDatabase) -> None:
    turn = seed_turn(database)
    provider = MemoryProvider(answer("The ferry ", "is late ⛴."))

    async with running_worker(database, provider) as worker:
        await worker.take(turn)
        told = await worker.ended(turn)
        shown = await worker.shown(turn)
        entries = await worker.live.read(turn.turn_id, EntryId(0, 0), 100)

    text = "The ferry is late ⛴."
    assert isinstance(told.data, GenerationCompletedV1)
    assert (told.data.attempt, told.data.finish_reason) == (1, "stop")
    assert told.data.length == len(text.encode())
    assert told.data.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert told.causation_id == turn.event.id
    assert shown == text
    assert [str(entry.id) for entry in entries] == [
        "1-1",
        *(f"1-{n}" for n in range(2, len(entries) + 1)),
    ]
    assert told.data.upto == str(entries[-1].id)
    assert provider.payloads == [turn.payload]
    assert rows(database, "select text, length from llm_gateway.results") == [
        {"text": text, "length": told.data.length}
    ]
    assert rows(database, "select state, attempt, worker_id from llm_gateway.work") == [
        {"state": "done", "attempt": 1, "worker_id": None}
    ]


async def test_many_steps_of_one_batch_are_all_answered(database: TestDatabase) -> None:
    turns = [seed_turn(database) for _ in range(20)]

    async with running_worker(database, MemoryProvider(answer("a", "b"))) as worker:
        await worker.take(*turns)
        ends = [await worker.ended(turn) for turn in turns]

    assert all(isinstance(end.data, GenerationCompletedV1) for end in ends)
    assert len({end.id for end in ends}) == 20
    assert rows(database, "select count(*) from llm_gateway.outbox")[0]["count"] <= 20


async def test_what_does_not_fit_waits_for_room(database: TestDatabase) -> None:
    turns = [seed_turn(database) for _ in range(5)]
    async with (
        http_provider(Rule(deltas=("a",), delay_ms=50)) as (_, provider),
        running_worker(database, provider, max_running=2) as worker,
    ):
        await worker.take(*turns)
        assert worker.app.pool.running == 2
        for turn in turns:
            await worker.ended(turn)


async def test_one_conversation_s_calls_run_one_after_the_other(database: TestDatabase) -> None:
    first = seed_turn(database, seq=1)
    second = seed_turn(
        database, tenant=first.event.tenant_id, conversation=first.event.conversation_id, seq=3
    )
    async with (
        http_provider(Rule(hang_after=1, times=1), Rule()) as (server, provider),
        running_worker(database, provider) as worker,
    ):
        await worker.take(first, second)
        await until(lambda: bool(server.requests), "the first call is made")
        assert worker.app.pool.running == 1
        assert await worker.app.pool.claim_once() == 0

        server.release()
        assert (await worker.ended(first)).data.attempt == 1
        await worker.ended(second)
        assert [request.body.startswith(first.payload[:-1]) for request in server.requests] == [
            True,
            second.payload == first.payload,
        ]


async def test_a_branch_does_not_wait_for_the_one_it_parts_from(database: TestDatabase) -> None:
    first = seed_turn(database, text="slow", seq=1)
    tenant, conversation = first.event.tenant_id, first.event.conversation_id
    beside, behind = (
        seed_turn(database, text=text, tenant=tenant, conversation=conversation, seq=seq)
        for text, seq in (("beside", 3), ("behind", 5))
    )
    beside = on_another_branch(beside)
    async with (
        http_provider(Rule(match="slow", hang_after=1), Rule()) as (server, provider),
        running_worker(database, provider) as worker,
    ):
        await worker.take(first, beside, behind)

        assert (await worker.ended(beside)).data.attempt == 1
        assert [turn.turn_id for turn in (first, behind) if is_told(worker, turn)] == []

        server.release()
        await worker.ended(first)
        await worker.ended(behind)


def is_told(worker: Worker, turn: SeededTurn) -> bool:
    return any(event.turn_id == turn.turn_id for event in worker.told)


async def test_the_provider_s_count_is_the_ledger_s(database: TestDatabase) -> None:
    data, _, _ = await end_of(database, Rule(deltas=("a",), usage=USAGE))

    assert data.usage == Usage(input=11, output=3)
    [row] = rows(database, "select * from llm_gateway.usage")
    assert (row["input_tokens"], row["output_tokens"], row["estimated"]) == (11, 3, False)


async def test_usage_is_estimated_and_marked_where_none_came(database: TestDatabase) -> None:
    data, turn, _ = await end_of(database, Rule(deltas=("abcd" * 5,), usage=False))

    assert data.usage == Usage(input=-(-len(turn.payload) // 4), output=5, estimated=True)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_declared_limit_is_a_completed_call_with_its_reason(
    database: TestDatabase, reason: str
) -> None:
    data, _, _ = await end_of(database, Rule(deltas=("a",), finish_reason=reason))

    assert isinstance(data, GenerationCompletedV1)
    assert data.finish_reason == reason


async def test_a_failure_before_the_first_delta_is_repeated(database: TestDatabase) -> None:
    data, _, requests = await end_of(
        database,
        Rule(status=429, headers={"retry-after-ms": "20"}, times=1),
        Rule(deltas=("fine",)),
    )

    assert isinstance(data, GenerationCompletedV1)
    assert (data.attempt, requests) == (1, 2)
    [row] = rows(database, "select requests, failure from llm_gateway.attempts")
    assert row == {"requests": 2, "failure": "throttled:429"}


async def test_three_failures_are_the_last_word(database: TestDatabase) -> None:
    data, _, requests = await end_of(database, Rule(status=500))

    assert data == GenerationFailedV1(
        step_id=data.step_id, attempt=1, reason="provider_unavailable"
    )
    assert requests == 3


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("invalid_request_error", "provider_refused"),
        ("context_length_exceeded", "context_too_large"),
        ("content_filter", "provider_refused"),
    ],
)
async def test_a_refusal_is_not_repeated(database: TestDatabase, code: str, reason: str) -> None:
    data, _, requests = await end_of(database, Rule(status=400, error={"code": code}))

    assert (type(data), data.reason, requests) == (GenerationFailedV1, reason, 1)


@pytest.mark.parametrize(
    "fault",
    [
        {"cut_after": 2},
        {"end_after": 2},
        {"error_after": 2},
        {"finish_reason": None},
    ],
)
async def test_after_a_delta_a_failure_keeps_what_was_shown(
    database: TestDatabase, fault: dict[str, Any]
) -> None:
    data, _, requests = await end_of(database, Rule(deltas=("a€", "b"), delay_ms=20, **fault))

    assert isinstance(data, GenerationInterruptedV1)
    assert (data.reason, requests) == ("provider_cut", 1)
    assert data.sha256 == hashlib.sha256("a€b".encode()).hexdigest()
    assert rows(database, "select text from llm_gateway.results") == [{"text": "a€b"}]


async def test_an_error_object_before_an_end_marker_is_no_empty_success(
    database: TestDatabase,
) -> None:
    raw = b'data: {"error":{"message":"m","code":"server_error"}}\n\ndata: [DONE]\n\n'
    data, _, requests = await end_of(database, Rule(raw_body_b64=base64.b64encode(raw).decode()))

    assert isinstance(data, GenerationFailedV1)
    assert (data.reason, requests) == ("provider_unavailable", 3)


async def test_a_finish_reason_makes_an_answer_whole_however_it_ends(
    database: TestDatabase,
) -> None:
    data, _, _ = await end_of(database, Rule(deltas=("a",), done=False, usage=False))

    assert isinstance(data, GenerationCompletedV1)


async def test_silence_after_a_delta_ends_the_call_for_its_own_reason(
    database: TestDatabase,
) -> None:
    data, _, requests = await end_of(database, Rule(deltas=("a", "b"), hang_after=1), idle_s=0.2)

    assert isinstance(data, GenerationInterruptedV1)
    assert (data.reason, data.length, requests) == ("idle_timeout", 1, 1)


async def test_signs_of_life_are_no_deltas(database: TestDatabase) -> None:
    delta = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    comments = [b": still working\n\n"] * 40
    raw = delta + b"".join(comments)
    rule = Rule(
        raw_body_b64=base64.b64encode(raw).decode(),
        cuts=range(len(delta), len(raw), len(comments[0])),
        cut_pause_ms=50,
    )

    data, _, requests = await end_of(database, rule, idle_s=0.3)

    assert isinstance(data, GenerationInterruptedV1)
    assert (data.reason, data.length, requests) == ("idle_timeout", 1, 1)


async def test_silence_before_a_delta_is_asked_again(database: TestDatabase) -> None:
    data, _, requests = await end_of(
        database, Rule(hang_before_head=True, times=1), Rule(deltas=("a",)), idle_s=0.2
    )

    assert isinstance(data, GenerationCompletedV1)
    assert requests == 2


async def test_silence_that_does_not_end_is_the_last_word_after_three_requests(
    database: TestDatabase,
) -> None:
    data, _, requests = await end_of(database, Rule(hang_before_head=True), idle_s=0.1)

    assert data == GenerationFailedV1(step_id=data.step_id, attempt=1, reason="idle_timeout")
    assert requests == 3


ENDED_BY_TIME = [(1, GenerationInterruptedV1), (0, GenerationFailedV1)]


@pytest.mark.parametrize(("deltas", "kind"), ENDED_BY_TIME)
@pytest.mark.parametrize(
    ("limited_by", "reason"), [("turn", "deadline"), ("step", "step_deadline")]
)
async def test_the_deadline_ends_a_call_and_says_whose_time_is_over(
    database: TestDatabase,
    deltas: int,
    kind: type[Any],
    limited_by: Literal["turn", "step"],
    reason: str,
) -> None:
    data, _, _ = await end_of(
        database,
        Rule(deltas=("a", "b"), hang_after=deltas),
        deadline_s=0.5,
        limited_by=limited_by,
    )

    assert isinstance(data, kind)
    assert data.reason == reason


@pytest.mark.parametrize(("deltas", "kind"), ENDED_BY_TIME)
async def test_an_attempt_that_takes_too_long_ends_though_the_turn_has_time(
    database: TestDatabase, deltas: int, kind: type[Any]
) -> None:
    rule = Rule(deltas=("a", "b"), hang_after=deltas)
    data, _, _ = await end_of(database, rule, step_s=0.5, idle_s=0.5)

    assert isinstance(data, kind)
    assert data.reason == "step_deadline"


async def test_a_wait_for_the_provider_ends_at_the_deadline(database: TestDatabase) -> None:
    data, _, requests = await end_of(
        database, Rule(status=429, headers={"Retry-After": "60"}), deadline_s=2
    )

    assert (data.reason, requests) == ("provider_unavailable", 1)


async def test_a_payload_that_is_not_the_planned_one_is_never_sent(database: TestDatabase) -> None:
    turn = seed_turn(database)
    rows(database, "update context_assembly.payloads set payload = '{\"messages\":[]}'")
    provider = MemoryProvider()

    async with running_worker(database, provider) as worker:
        await worker.take(turn)
        told = await worker.ended(turn)

    assert told.data == GenerationFailedV1(step_id=turn.step_id, attempt=1, reason="internal")
    assert provider.payloads == []


async def cancel(worker: Worker, turn: SeededTurn) -> None:
    await worker.app.turns.handle([delivery(about(turn, TurnCancelRequestedV1(reason="user")))])


async def test_a_cancel_keeps_what_was_shown_and_closes_the_connection(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database)
    async with (
        http_provider(Rule(deltas=("a", "b"), never_ends=True, delay_ms=5)) as (server, provider),
        running_worker(database, provider) as worker,
    ):
        await worker.take(turn)
        await worker.until_shown(turn, "a")
        await cancel(worker, turn)
        told = await worker.ended(turn)
        await until(lambda: server.requests[0].closed_by_client, "the connection is closed")
        shown = await worker.shown(turn)

    assert isinstance(told.data, GenerationInterruptedV1)
    assert told.data.reason == "user"
    assert told.data.sha256 == hashlib.sha256(shown.encode()).hexdigest()
    assert told.data.usage is not None
    assert told.data.usage.estimated
    assert told.data.usage.input > 0


async def test_a_cancel_reaches_a_call_of_another_process(database: TestDatabase) -> None:
    turn = seed_turn(database)
    async with (
        http_provider(Rule(hang_after=0)) as (server, provider),
        running_worker(database, provider) as worker,
        running_worker(database, provider) as other,
    ):
        await worker.take(turn)
        await until(lambda: bool(server.requests), "the call is made")
        await cancel(other, turn)
        told = await worker.ended(turn)

    assert told.data == GenerationFailedV1(step_id=turn.step_id, attempt=1, reason="user")


async def test_a_cancel_ends_work_that_waits(database: TestDatabase) -> None:
    turn = seed_turn(database)
    provider = MemoryProvider()
    async with running_worker(database, provider, background=("lease", "finisher")) as worker:
        worker.app.pool.reserve(64)
        await worker.take(turn)
        await cancel(worker, turn)
        told = await worker.ended(turn)

    assert told.data == GenerationFailedV1(step_id=turn.step_id, attempt=0, reason="user")
    assert provider.payloads == []


async def test_a_step_of_a_turn_that_somebody_wants_to_stop_is_not_begun(
    database: TestDatabase,
) -> None:
    turn = seed_turn(database)
    rows(database, "update ingestion.turns set cancel_reason = 'user'")
    provider = MemoryProvider(answer("late"))

    async with running_worker(database, provider) as worker:
        await worker.take(turn)
        await worker.take(turn)  # a repeat is noted, and changes nothing either
        assert (worker.app.pool.running, worker.told, provider.payloads) == (0, [], [])

    assert rows(database, "select 1 from llm_gateway.work") == []
    assert len(rows(database, "select 1 from llm_gateway.inbox")) == 1


async def test_the_end_of_a_turn_drops_its_work_and_stops_its_call(database: TestDatabase) -> None:
    turn = seed_turn(database)
    ended = TurnEndedV1(status="partial", reason="deadline", length=0)
    async with (
        http_provider(Rule(hang_after=1)) as (server, provider),
        running_worker(database, provider, checkpoint_s=0.01) as worker,
    ):
        await worker.take(turn)
        await until(
            lambda: bool(rows(database, "select 1 from llm_gateway.partials")), "a checkpoint"
        )
        await worker.app.turns.handle([delivery(about(turn, ended))])
        await until(lambda: worker.app.pool.running == 0, "the call is stopped")
        await until(lambda: server.requests[0].closed_by_client, "the connection is closed")

        assert worker.told == []
    for table in ("work", "partials", "results", "outbox"):
        assert rows(database, f"select 1 from llm_gateway.{table}") == []  # noqa: S608


async def test_work_of_a_turn_without_payload_is_closed_silently(database: TestDatabase) -> None:
    turn = seed_turn(database)
    rows(database, "delete from context_assembly.payloads")
    provider = MemoryProvider()

    async with running_worker(database, provider) as worker:
        await worker.take(turn)
        await until(
            lambda: rows(database, "select state from llm_gateway.work")[0]["state"] == "cancelled",
            "the work is closed",
        )
        assert (worker.told, provider.payloads) == ([], [])


async def test_without_redis_the_answer_is_finished_and_the_stream_follows(
    database: TestDatabase,
) -> None:
    redis = MemoryRedis()
    turn = seed_turn(database)
    async with (
        http_provider(Rule(deltas=tuple("abcdefgh"), delay_ms=60)) as (_, provider),
        running_worker(
            database, provider, live=MemoryLiveStream(redis), checkpoint_s=0.05
        ) as worker,
    ):
        await worker.take(turn)
        await worker.until_shown(turn, "ab")
        redis.go_away()
        await until(
            lambda: any(
                row["text"].startswith("abcd")
                for row in rows(database, "select text from llm_gateway.partials")
            ),
            "the checkpoint goes on",
        )
        redis.come_back()
        told = await worker.ended(turn)
        entries = await worker.live.read(turn.turn_id, EntryId(0, 0), 100)

        assert await worker.shown(turn) == "abcdefgh"
        assert [entry.id.n for entry in entries] == list(range(1, len(entries) + 1))
    assert isinstance(told.data, GenerationCompletedV1)
    assert told.data.upto == str(entries[-1].id)


async def test_an_answer_ends_though_redis_never_comes_back(database: TestDatabase) -> None:
    redis = MemoryRedis()
    redis.go_away()
    turn = seed_turn(database)
    async with running_worker(
        database, MemoryProvider(answer("a", "b")), live=MemoryLiveStream(redis)
    ) as worker:
        await worker.take(turn)
        told = await worker.ended(turn)

    assert isinstance(told.data, GenerationCompletedV1)
    assert told.data.length == 2
