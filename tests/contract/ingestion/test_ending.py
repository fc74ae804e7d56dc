"""How turns move and end, on a real Postgres: one end each, and the next one starts with it."""

import asyncio
import hashlib
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from libs import ids
from libs.clock import SystemClock
from libs.errors import Terminal
from libs.outbox import append_statement
from schemas.generations import GenerationFailedV1
from schemas.registry import decode
from schemas.streams import BEFORE_ALL, REAPER_FENCE_ATTEMPT, EntryId, content_delta, generating
from services.ingestion.handlers.generation_events import SHORT_BYTES
from services.ingestion.retention import Keep, Retention
from tests.contract.ingestion.rig import (
    OTHER_TENANT,
    PRINCIPAL,
    TENANT,
    Rig,
    create,
    generated,
    interrupted,
    planned,
    post,
    refused,
)

pytestmark = pytest.mark.postgres


async def opened(rig: Rig, *keys: str) -> tuple[UUID, list[UUID]]:
    """A conversation with open turns, the first of them started."""
    conversation = uuid4()
    await rig.ingestion.requests.handle(
        [create(conversation), *(post(conversation, key, f"text {key}") for key in keys)]
    )
    rig.ingestion.relay.messages.clear()
    return conversation, [ids.turn_id(TENANT, conversation, key) for key in keys]


def state(rig: Rig, turn: UUID) -> tuple[str, str | None]:
    (row,) = rig.rows("select status, reason from ingestion.turns where id = %s", turn)
    return row["status"], row["reason"]


async def test_an_event_that_took_effect_stands_in_the_inbox(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    end = generated(conversation, turn, rig.result(turn, "An answer."))

    await rig.ingestion.generation.handle([end])

    (row,) = rig.rows("select consumer from ingestion.inbox where event_id = %s", end.event.id)
    assert row["consumer"] == rig.ingestion.generation.consumer


async def test_an_answer_is_copied_by_its_hash_and_ends_the_turn(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    data = rig.result(turn, "An answer, größer.")

    await rig.ingestion.generation.handle([generated(conversation, turn, data)])

    (row,) = rig.rows("select * from ingestion.turns")
    raw = "An answer, größer.".encode()
    assert (row["status"], row["reason"], row["length"]) == ("completed", None, len(raw))
    assert row["sha256"] == hashlib.sha256(raw).hexdigest()
    assert (row["upto"], row["usage"]["input"], row["attempts"]) == ("1-2", 5, 1)
    (message,) = rig.rows("select * from ingestion.messages where role = 'assistant'")
    assert (message["text"], message["status"]) == ("An answer, größer.", "completed")
    assert rig.one("select count(*) from ingestion.message_tokens") == 2
    assert rig.one("select count(*) from ingestion.open_turns") == 0
    assert rig.ingestion.relay.types() == ["turn.ended"]
    entries = await rig.ingestion.live.read(turn, EntryId(2_000_000_000, 0), 10)
    assert [entry.event for entry in entries] == ["usage", "done"]


async def test_an_answer_too_long_to_be_counted_under_lock_is_committed_the_same(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    text = "größer " * (SHORT_BYTES // 8 + 1)
    assert len(text.encode()) > SHORT_BYTES

    await rig.ingestion.generation.handle([generated(conversation, turn, rig.result(turn, text))])

    assert state(rig, turn) == ("completed", None)
    (message,) = rig.rows("select * from ingestion.messages where role = 'assistant'")
    assert message["text"] == text
    assert rig.one("select count(*) from ingestion.message_tokens") == 2


async def test_a_planned_step_is_progress_and_a_late_one_is_nothing(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")

    await rig.ingestion.context.handle([planned(conversation, turn)])
    assert state(rig, turn) == ("generating", None)
    assert rig.one("select state from ingestion.open_turns") == "generating"

    data = rig.result(turn, "x")
    await rig.ingestion.generation.handle([generated(conversation, turn, data)])
    await rig.ingestion.context.handle([planned(conversation, turn)])
    assert state(rig, turn) == ("completed", None)
    statuses = rig.rows("select status from ingestion.transitions order by at")
    assert [row["status"] for row in statuses] == ["pending", "generating", "completed"]


async def test_the_first_end_wins_over_two_processes(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    failed = GenerationFailedV1(step_id=None, attempt=1, reason="provider_refused")
    data = rig.result(turn, "x")

    await asyncio.gather(
        rig.ingestion.generation.handle([generated(conversation, turn, data)]),
        rig.second.generation.handle([generated(conversation, turn, failed)]),
        rig.second.context.handle([refused(conversation, turn, "invariant")]),
    )

    ended = rig.rows("select status from ingestion.transitions where status <> 'pending'")
    assert len(ended) == 1
    assert state(rig, turn)[0] == ended[0]["status"]
    assert rig.one("select count(*) from ingestion.outbox where type = 'turn.ended'") == 1
    has_text = rig.one("select text is not null from ingestion.messages where role = 'assistant'")
    assert has_text == (state(rig, turn)[0] == "completed")


async def test_a_repeated_end_changes_nothing(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    record = generated(conversation, turn, rig.result(turn, "x"))

    for _ in range(3):
        await rig.ingestion.generation.handle([record])
    rig.rows("delete from llm_gateway.results")
    again = generated(conversation, turn, record.event.data)
    await rig.ingestion.generation.handle([again])

    assert state(rig, turn) == ("completed", None)
    assert rig.ingestion.relay.types() == ["turn.ended"]
    assert rig.one("select text from ingestion.messages where role = 'assistant'") == "x"


async def test_the_next_turn_starts_in_the_transaction_that_ends_the_one_before(rig: Rig) -> None:
    conversation, (first, second, third) = await opened(rig, "a", "b", "c")
    data = rig.result(first, "x")

    await rig.ingestion.generation.handle([generated(conversation, first, data)])

    assert rig.ingestion.relay.types() == ["turn.ended", "turn.started"]
    started = rig.ingestion.relay.events[1]
    assert (started.turn_id, started.data.base_seq) == (second, 3)
    waiting = rig.rows(
        "select turn_id, position, deadline_at from ingestion.open_turns order by position"
    )
    assert [(row["turn_id"], row["position"]) for row in waiting] == [(second, 0), (third, 1)]
    assert (waiting[0]["deadline_at"] is None, waiting[1]["deadline_at"] is None) == (False, True)
    entries = await rig.ingestion.live.read(third, BEFORE_ALL, 10)
    assert [str(entry.id) for entry in entries] == ["0-1", "0-2", "0-3"]
    assert b'"queue_position":1' in entries[2].data


async def test_a_stored_text_with_another_hash_fails_the_turn(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    data = rig.result(turn, "what was generated")
    rig.rows("update llm_gateway.results set text = 'what was not'")

    await rig.ingestion.generation.handle([generated(conversation, turn, data)])

    assert state(rig, turn) == ("failed", "internal")
    assert rig.one("select text from ingestion.messages where role = 'assistant'") is None
    assert (
        rig.ingestion.metrics.invariant_violations_total.labels("stream_equals_store")._value.get()
        == 1
    )


@pytest.mark.parametrize(
    ("reason", "text", "end"),
    [
        ("lease_expired", "shown", ("partial", "lease_expired")),
        ("provider_cut", "", ("failed", "provider_unavailable")),
        ("deadline", "", ("failed", "deadline")),
        ("step_deadline", "shown", ("partial", "step_deadline")),
        ("idle_timeout", "shown", ("partial", "idle_timeout")),
        ("idle_timeout", "", ("failed", "idle_timeout")),
        ("no_subscriber", "shown", ("cancelled", "no_subscriber")),
        ("something new", "shown", ("partial", "provider_cut")),
    ],
)
async def test_an_interruption_keeps_what_was_shown(
    rig: Rig, reason: str, text: str, end: tuple[str, str]
) -> None:
    conversation, (turn,) = await opened(rig, "k")
    data = interrupted(rig.result(turn, text), reason)

    await rig.ingestion.generation.handle([generated(conversation, turn, data)])

    assert state(rig, turn) == end
    assert rig.one("select text from ingestion.messages where role = 'assistant'") == text


async def test_a_refused_step_fails_the_turn_without_a_text(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")

    await rig.ingestion.context.handle([refused(conversation, turn, "context_too_large")])

    assert state(rig, turn) == ("failed", "context_too_large")
    entries = await rig.ingestion.live.read(turn, EntryId(2_000_000_000, 0), 10)
    assert [entry.event for entry in entries] == ["error", "done"]


async def test_an_event_that_fits_no_row_is_nobodys_end(rig: Rig) -> None:
    _, (turn,) = await opened(rig, "k")
    other_conversation, _ = await opened(rig, "k")
    stray = generated(other_conversation, turn, rig.result(turn, "x"))

    with pytest.raises(Terminal, match="fit no row"):
        await rig.ingestion.generation.handle([stray])
    async with rig.ingestion.database.transaction([TENANT]) as transaction:
        assert await rig.ingestion.generation.ending_of(stray, transaction, "turn_mismatch") == ()

    assert state(rig, turn) == ("pending", None)


async def test_a_parked_event_ends_its_own_turn_and_starts_the_next(rig: Rig) -> None:
    conversation, (turn, following) = await opened(rig, "a", "b")
    record = planned(conversation, turn)

    async with rig.ingestion.database.transaction([TENANT]) as transaction:
        messages = await rig.ingestion.context.ending_of(record, transaction, "bug")
        await transaction.commit_with([append_statement(messages)])

    assert state(rig, turn) == ("failed", "dead_lettered")
    assert [message.type for message in messages] == ["turn.ended", "turn.started"]
    assert rig.one("select started_at is not null from ingestion.turns where id = %s", following)


# The reaper. -----------------------------------------------------------------------------------


def overdue(rig: Rig, turn: UUID) -> None:
    rig.rows(
        "update ingestion.open_turns set deadline_at = now() - interval '16 seconds' "
        "where turn_id = %s",
        turn,
    )


async def test_the_reaper_keeps_what_the_stream_shows_and_fences_it(rig: Rig) -> None:
    _, (turn,) = await opened(rig, "k")
    live = rig.ingestion.live
    await live.append(
        turn,
        [generating(1), content_delta(EntryId(1, 2), "so "), content_delta(EntryId(1, 3), "far")],
    )
    assert await rig.ingestion.reaper.sweep() == 0
    overdue(rig, turn)

    assert await rig.ingestion.reaper.sweep() == 1

    assert state(rig, turn) == ("partial", "deadline")
    (row,) = rig.rows("select length, upto, attempts from ingestion.turns")
    assert tuple(row.values()) == (6, "1-3", 1)
    assert rig.one("select text from ingestion.messages where role = 'assistant'") == "so far"
    late = await live.append(turn, [content_delta(EntryId(1, 4), "too late")])
    assert late.fenced
    entries = await live.read(turn, EntryId(REAPER_FENCE_ATTEMPT, 0), 10)
    assert [entry.event for entry in entries] == ["error", "done"]
    assert await rig.second.reaper.sweep() == 0


async def test_turns_past_their_deadline_are_counted_until_somebody_ended_them(rig: Rig) -> None:
    _, (turn, _) = await opened(rig, "k", "waits")
    overdue(rig, turn)
    metrics = rig.ingestion.metrics

    await rig.ingestion.reaper.sweep()
    seen = metrics.turns_in_progress._value.get(), metrics.turns_overdue._value.get()
    await rig.ingestion.reaper.sweep()

    assert seen == (2, 1)
    assert metrics.turns_overdue._value.get() == 0
    assert metrics.turns_in_progress._value.get() == 1


async def test_the_wait_for_the_first_word_is_counted_from_acceptance(rig: Rig) -> None:
    conversation, turns = await opened(rig, "shown", "silent")
    histogram = rig.ingestion.metrics.turn_time_to_first_token_seconds
    for turn, first_token_ms in zip(turns, (400, None), strict=True):
        told = rig.result(turn, "An answer.").model_copy(
            update={"first_token_ms": first_token_ms, "duration_ms": 1_000}
        )
        end = generated(conversation, turn, told)
        late = replace(end.event, occurred_at=datetime.now(UTC) + timedelta(seconds=5))
        await rig.ingestion.generation.handle([replace(end, event=late)])

    assert sum(bucket.get() for bucket in histogram._buckets) == 1
    assert histogram._sum.get() == pytest.approx(4.4, abs=0.5)


async def test_the_reaper_reads_the_checkpoint_where_the_stream_is_lost(rig: Rig) -> None:
    _, (turn,) = await opened(rig, "k")
    rig.ingestion.live._server.flush()
    rig.rows(
        "insert into llm_gateway.partials "
        "(tenant_id, turn_id, step_id, attempt, upto, text, updated_at) "
        "values (%s, %s, %s, 2, '2-7', 'stored', now())",
        *(TENANT, turn, ids.step_id(turn, 1)),
    )
    overdue(rig, turn)

    await rig.ingestion.reaper.sweep()

    assert state(rig, turn) == ("partial", "deadline")
    assert rig.one("select text from ingestion.messages where role = 'assistant'") == "stored"
    assert rig.one("select upto from ingestion.turns") == "2-7"


async def test_an_overdue_turn_that_showed_nothing_fails_even_without_redis(rig: Rig) -> None:
    _, (turn,) = await opened(rig, "k")
    overdue(rig, turn)
    rig.ingestion.live._server.go_away()

    await rig.ingestion.reaper.sweep()

    assert state(rig, turn) == ("failed", "deadline")


# Telling again. --------------------------------------------------------------------------------


async def test_a_turn_nobody_took_up_is_told_again_with_the_same_id(rig: Rig) -> None:
    conversation = uuid4()
    await rig.ingestion.requests.handle([create(conversation), post(conversation, "k")])
    first = rig.ingestion.relay.events[1]
    assert await rig.ingestion.retelling.sweep() == 0
    rig.rows("update ingestion.open_turns set progressed_at = now() - interval '11 seconds'")

    assert await rig.ingestion.retelling.sweep() == 1

    again = rig.ingestion.relay.events[-1]
    assert again == first
    assert await rig.second.retelling.sweep() == 0, "told once per pause, by whichever process"


async def test_a_turn_with_a_planned_step_is_not_told_again(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    await rig.ingestion.context.handle([planned(conversation, turn)])
    rig.rows("update ingestion.open_turns set progressed_at = now() - interval '11 seconds'")

    assert await rig.ingestion.retelling.sweep() == 0


# Operators. ------------------------------------------------------------------------------------


async def test_an_operator_ends_a_turn_with_audit_and_event_and_the_next_one_starts(
    rig: Rig,
) -> None:
    conversation, (turn, following) = await opened(rig, "a", "b")

    with psycopg.connect(rig.test_database.url_of("ops"), autocommit=True) as ops:
        call = "select ingestion.op_end_turn(%s, 'internal', 'somebody')"
        assert ops.execute(call, (turn,)).fetchone() == ("failed",)
        assert ops.execute(call, (turn,)).fetchone() == (None,)
        with pytest.raises(psycopg.errors.DatabaseError, match="no such reason"):
            ops.execute("select ingestion.op_end_turn(%s, 'a whim', 'somebody')", (following,))

    assert state(rig, turn) == ("failed", "internal")
    assert rig.one("select actor from ingestion.operator_actions") == "somebody"
    (row,) = rig.rows("select * from ingestion.outbox where type = 'turn.ended'")
    event = decode(bytes(row["payload"]))
    assert (event.turn_id, event.data.status, event.id) == (turn, "failed", row["event_id"])
    assert row["bucket"] == zlib.crc32(str(conversation).encode()) % 64
    assert await rig.ingestion.reaper.sweep() == 1
    assert rig.ingestion.relay.types() == ["turn.started"]
    assert rig.one("select started_at is not null from ingestion.turns where id = %s", following)


async def test_an_end_by_an_operator_is_counted_once_by_whichever_process_looks(rig: Rig) -> None:
    _, (failed, cancelled) = await opened(rig, "a", "b")
    with psycopg.connect(rig.test_database.url_of("ops"), autocommit=True) as ops:
        call = "select ingestion.op_end_turn(%s, %s, 'somebody')"
        for turn, reason in ((failed, "internal"), (cancelled, "user")):
            ops.execute(call, (turn, reason))
    both = (rig.ingestion, rig.second)
    ends = (("failed", "internal"), ("cancelled", "user"))

    for _ in range(2):
        await asyncio.gather(*(process.reaper.sweep() for process in both))

    totals = [process.metrics.turns_terminal_total for process in both]
    for status, reason in ends:
        counted = [total.labels(status, reason)._value.get() for total in totals]
        assert sorted(counted) == [0, 1], (status, reason)
    lives = [process.metrics.turn_duration_seconds.collect() for process in both]
    counts = [s.value for (m,) in lives for s in m.samples if s.name.endswith("_count")]
    assert sum(counts) == len(ends)


# Published reads. ------------------------------------------------------------------------------


async def answered(rig: Rig, conversation: UUID, key: str, text: str | None) -> UUID:
    """One whole turn; without a text it fails."""
    turn = ids.turn_id(TENANT, conversation, key)
    await rig.ingestion.requests.handle([post(conversation, key, f"question {key}")])
    if text is None:
        await rig.ingestion.context.handle([refused(conversation, turn, "invariant")])
    else:
        data = rig.result(turn, text)
        await rig.ingestion.generation.handle([generated(conversation, turn, data)])
    return turn


HISTORY = (
    "select seq, role, status, tokens from ingestion.history_v1(%s::uuid[], %s::uuid[], "
    "%s::uuid[], %s::bigint[], %s::text[], %s)"
)


async def test_history_is_what_ended_and_has_text_newest_first(rig: Rig) -> None:
    conversation, other = uuid4(), uuid4()
    await rig.ingestion.requests.handle([create(conversation), create(other)])
    await answered(rig, conversation, "a", "answer a")
    await answered(rig, other, "x", "somebody else's")
    await answered(rig, conversation, "b", None)
    await answered(rig, conversation, "c", "")
    await rig.ingestion.requests.handle([post(conversation, "d", "open")])

    wanted = ([TENANT], [conversation], [conversation], [99], ["conservative"], 10)
    with psycopg.connect(rig.test_database.url_of("context_assembly")) as context:
        assert context.execute(HISTORY, wanted).fetchall() == []
        context.execute("select set_config('app.tenant_ids', %s, true)", (str(TENANT),))
        rows = context.execute(HISTORY, wanted).fetchall()
        limited = context.execute(HISTORY, (*wanted[:3], [5], wanted[4], 2)).fetchall()
        context.execute("select set_config('app.tenant_ids', %s, true)", (str(OTHER_TENANT),))
        assert context.execute(HISTORY, wanted).fetchall() == []

    assert [(row[0], row[1]) for row in rows] == [
        (5, "user"),
        (3, "user"),
        (2, "assistant"),
        (1, "user"),
    ]
    assert all(row[3] is not None for row in rows)
    assert [row[0] for row in limited] == [3, 2]


async def test_history_of_ten_thousand_messages_touches_what_it_returns(rig: Rig) -> None:
    conversation, (turn,) = await opened(rig, "k")
    rig.rows(
        """
        with made as (
          insert into ingestion.turns
          select (jsonb_populate_record(t, jsonb_build_object(
                   'id', gen_random_uuid(), 'key', 'bulk ' || n, 'seq', n * 2 + 1,
                   'status', 'completed', 'ended_at', now()))).*
            from ingestion.turns t, generate_series(1, 5000) n where t.id = %s
          returning id, seq
        )
        insert into ingestion.messages (tenant_id, id, conversation_id, branch_id, turn_id, role,
                                        seq, status, text, length, said_at, created_at)
        select %s, gen_random_uuid(), %s, %s, id, role, seq + shift, 'completed', 'text', 4,
               now(), now()
          from made, (values ('user', 0), ('assistant', 1)) as roles (role, shift)
        """,
        *(turn, TENANT, conversation, conversation),
    )
    rig.rows("analyze ingestion.messages, ingestion.turns, ingestion.open_turns")
    max_rows = 200
    with psycopg.connect(rig.test_database.admin_url) as admin:
        function = admin.execute(
            "select prosrc, proconfig from pg_proc where proname = 'history_v1'"
        ).fetchone()
        assert function is not None
        admin.execute("set local role ingestion_reader")
        for setting in function[1]:
            admin.execute("select set_config(%s, %s, true)", setting.split("=", 1))
        admin.execute("select set_config('app.tenant_ids', %s, true)", (str(TENANT),))
        types = "uuid[], uuid[], uuid[], bigint[], text[], int"
        admin.execute(f"prepare history ({types}) as {function[0]}")  # type: ignore[call-overload]
        for mode in ("force_custom_plan", "force_generic_plan"):
            admin.execute(f"set local plan_cache_mode = {mode}")  # type: ignore[call-overload]
            asked = (
                f"execute history ('{{{TENANT}}}', '{{{conversation}}}', '{{{conversation}}}', "
                f"'{{9001}}', '{{o200k_base}}', {max_rows})"
            )
            explained = admin.execute(
                f"explain (analyze, format json) {asked}"  # type: ignore[call-overload]
            ).fetchone()
            assert explained is not None
            assert touched(explained[0][0]["Plan"], "messages") <= max_rows + 50, mode


def touched(plan: dict[str, object], table: str) -> int:
    """Rows a plan read of a table, those it threw away included."""
    total = 0
    if plan.get("Relation Name") == table:
        read = int(float(str(plan["Actual Rows"])))
        dropped = int(float(str(plan.get("Rows Removed by Filter", 0))))
        total += (read + dropped) * int(float(str(plan["Actual Loops"])))
    for part in plan.get("Plans", []):  # type: ignore[attr-defined]
        total += touched(part, table)
    return total


async def test_the_gateway_pages_through_messages_without_gap_or_repeat(rig: Rig) -> None:
    conversation = uuid4()
    await rig.ingestion.requests.handle([create(conversation)])
    for key in ("a", "b", "c"):
        await answered(rig, conversation, key, f"answer {key}")
    sql = (
        "select id, seq, content, status "
        "from ingestion.messages_v1(%s, %s, %s, %s, %s, %s, null, %s)"
    )
    who = (TENANT, PRINCIPAL, conversation)

    with psycopg.connect(rig.test_database.url_of("frontend_gateway")) as gateway:
        gateway.execute("select set_config('app.tenant_ids', %s, true)", (str(TENANT),))
        for descending, expected in ((False, [1, 2, 3, 4, 5, 6]), (True, [6, 5, 4, 3, 2, 1])):
            seqs: list[int] = []
            pages: list[list[int]] = []
            after = None
            while rows := gateway.execute(sql, (*who, after, None, descending, 2)).fetchall():
                after = rows[-1][0]
                seqs += [row[1] for row in rows]
                pages.append([row[1] for row in rows])
            assert seqs == expected
            before = gateway.execute(sql, (*who, None, after, descending, 2)).fetchall()
            assert [row[1] for row in before] == expected[3:5]
        whole = gateway.execute(sql, (*who, None, None, False, 10)).fetchall()
        assert [row[2] for row in whole[:2]] == ["question a", "answer a"]
        foreign = (TENANT, uuid4(), conversation, None, None, False, 10)
        assert gateway.execute(sql, foreign).fetchall() == []
        (listed,) = gateway.execute(
            "select id, message_count "
            "from ingestion.conversations_v1(%s, %s, null, null, true, 5, null)",
            who[:2],
        ).fetchall()
        assert listed == (conversation, 6)
        with pytest.raises(psycopg.errors.DatabaseError) as caught:
            gateway.execute(sql, (*who, uuid4(), None, False, 2))
        assert caught.value.sqlstate == "TW001"


async def test_retention_drops_what_is_old_and_nothing_else(rig: Rig) -> None:
    _, (turn,) = await opened(rig, "k")
    retention = Retention(rig.ingestion.database, clock=SystemClock())
    assert await retention.sweep() == 0
    rig.rows("update ingestion.request_outcomes set decided_at = now() - interval '25 hours'")

    assert await retention.sweep() == 2

    assert state(rig, turn) == ("pending", None)
    keep = Keep(outcomes_s=0, inbox_s=0, dead_letters_s=0)
    assert await Retention(rig.ingestion.database, clock=SystemClock(), keep=keep).sweep() == 2
