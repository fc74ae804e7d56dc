"""What operators see and do in a real database, with the rights of page and command line."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from libs.ids import caused_id, step_id
from libs.operating import Acts, Reads, Refusal, end_ids
from libs.postgres import Database
from libs.postgres.refusals import RefusedByFunction, refusals
from libs.telemetry.tracing import Tracing
from services.frontend_gateway.operators import opened_operators
from tests.contract.ingestion.lines import Line, Turn
from tests.rig.parts import TestDatabase

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[dict[str, Any]]
CANARY = "canary-7f31-do-not-show"


def step_of(rows: Connection, line: Line, turn: Turn, *, reason: str | None = None) -> UUID:
    """A step as context_assembly writes it; refused where there is a reason."""
    step = step_id(turn.id, 1)
    rows.execute(
        "insert into context_assembly.steps (tenant_id, step_id, turn_id, step_no, "
        "conversation_id, branch_id, seq, model, state, reason, invariant, "
        "deadline_at, event_id, told_at, created_at) "
        "values (%s, %s, %s, 1, %s, %s, 1, 'm', %s, %s, %s, now(), %s, now(), now())",
        (
            line.tenant, step, turn.id, line.id, line.id, "refused" if reason else "planned",
            reason, "plan_within_budget" if reason == "invariant" else None,
            caused_id(step, "step.refused" if reason else "step.planned"),
        ),
    )  # fmt: skip
    plan = {
        "fingerprint": "f" * 64, "count": 3, "excluded": [1],
        "budget": {"used": 40, "tokens": 100},
    }  # fmt: skip
    if not reason:
        rows.execute(
            "insert into context_assembly.plans (tenant_id, step_id, turn_id, step_no, plan, "
            "created_at) values (%s, %s, %s, 1, %s, now())",
            (line.tenant, step, turn.id, json.dumps(plan)),
        )
    return step


def attempt_of(rows: Connection, line: Line, turn: Turn, step: UUID, *, failure: str) -> None:
    rows.execute(
        "insert into llm_gateway.attempts (tenant_id, turn_id, step_id, attempt, model, outcome, "
        "reason, failure, requests, first_token_ms, duration_ms, ended_at) values "
        "(%s, %s, %s, 1, 'm', 'failed', 'provider_unavailable', %s, 3, null, 1200, now())",
        (line.tenant, turn.id, step, failure),
    )


def dead_letter_of(rows: Connection, line: Line, *, value: bytes | None = b"x") -> UUID:
    letter = uuid4()
    rows.execute(
        "insert into llm_gateway.dead_letters (id, tenant_id, consumer, topic, partition, "
        '"offset", key, headers, value, event_id, event_type, reason, error, attempts, at, '
        "mirrored) values (%s, %s, 'llm_gateway.steps', 'context.events', 1, 7, %s, %s, %s, %s, "
        "'step.planned', 'bug', 'builtins.ValueError', 6, now(), true)",
        (
            letter, line.tenant, str(line.id).encode(), json.dumps([["aGk=", None]]),
            value, uuid4(),
        ),
    )  # fmt: skip
    return letter


def spoken(rows: Connection) -> tuple[Line, Turn]:
    """A failed turn whose question, answer, title and payload all hold the canary."""
    line = Line(rows, title=CANARY)
    turn = line.post(line.id, CANARY, answer=CANARY, status="failed")
    rows.execute(
        "update ingestion.turns set reason = 'provider_unavailable', options = %s, "
        "traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' where id = %s",
        (json.dumps({"note": CANARY}), turn.id),
    )
    return line, turn


async def everything(reads: Reads, *texts: str) -> str:
    """All that an operator can read, as one text."""
    found: list[Any] = [
        await reads.overview(), await reads.services(), await reads.outbox(),
        await reads.outbox_dead(), await reads.dead_letters(), await reads.leases(),
        await reads.work(), await reads.turns(), await reads.acts(),
    ]  # fmt: skip
    for text in texts:
        found.append(await reads.search(text))
        if (wanted := UUID(text)) is not None:
            found += [await reads.story(wanted), await reads.dead_letter(wanted)]
    return json.dumps(found)


async def test_an_operator_reads_no_word_of_anybody(rows: Connection, opened: Database) -> None:
    line, turn = spoken(rows)
    step = step_of(rows, line, turn)
    attempt_of(rows, line, turn, step, failure="refused")
    letter = dead_letter_of(rows, line, value=CANARY.encode())
    rows.execute(
        "insert into ingestion.outbox (bucket, topic, key, event_id, type, headers, payload, "
        "created_at) values (1, 'turn.events', %s, %s, 'turn.ended', %s, %s, now())",
        (str(line.id), uuid4(), json.dumps({"h": CANARY}), CANARY.encode()),
    )
    rows.execute(
        "insert into ingestion.request_outcomes (request_id, tenant_id, outcome, conversation_id, "
        "turn_id, problem, decided_at) "
        "select request_id, tenant_id, 'accepted', conversation_id, id, %s, now() "
        "from ingestion.turns where id = %s",
        (json.dumps({"code": "x", "detail": CANARY}), turn.id),
    )
    reads = Reads(opened)

    told = await everything(reads, str(turn.id), str(line.id), str(letter))

    assert CANARY not in told
    for known in (turn.id, line.id, letter, step):
        assert str(known) in told
    assert rows.execute("select count(*) as n from ingestion.messages").fetchall()[0]["n"] == 2


async def test_a_story_goes_down_in_time_and_says_why(rows: Connection, opened: Database) -> None:
    line, turn = spoken(rows)
    step = step_of(rows, line, turn)
    attempt_of(rows, line, turn, step, failure="refused")
    rows.execute(
        "insert into llm_gateway.inbox (consumer, event_id, at) values ('llm_gateway.steps', %s, "
        "now()), ('other', %s, now())",
        (caused_id(step, "step.planned"), uuid4()),
    )

    story = await Reads(opened).story(turn.id)

    assert story is not None
    assert story["sentence"].startswith("Failed (provider_unavailable) ")
    assert "It was asked 3 times; the last time the connection was refused." in story["why"]
    assert story["turn"]["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert [line["at"] for line in story["lines"]] == sorted(one["at"] for one in story["lines"])
    whats = [one["what"] for one in story["lines"]]
    assert "step 1 planned" in whats
    assert "attempt 1 failed: provider_unavailable" in whats
    assert whats.count("step.planned handled") == 1
    assert story["may"] == []


@pytest.mark.parametrize("by", ["turn", "conversation", "request", "key"])
async def test_a_turn_is_found_by_any_of_its_names(
    rows: Connection, opened: Database, by: str
) -> None:
    line, turn = spoken(rows)
    other = Line(rows)
    other.post(other.id, "something else")
    (row,) = rows.execute("select * from ingestion.turns where id = %s", [turn.id]).fetchall()
    text = {
        "turn": turn.id, "conversation": line.id, "request": row["request_id"], "key": row["key"],
    }[by]  # fmt: skip

    found = await Reads(opened).search(str(text))

    assert [one["turn_id"] for one in found["turns"]] == [str(turn.id)] * len(found["turns"])
    assert by in {one["found_by"] for one in found["turns"]}


async def test_no_look_of_an_operator_fails_because_postgres_was_started_again(
    database: TestDatabase, rows: Connection
) -> None:
    url = database.url_of("frontend_gateway")
    async with opened_operators(url, schema="frontend_gateway", tracing=Tracing()) as operators:
        ended = rows.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
            "where datname = current_database() and application_name = 'turnwire-frontend_gateway'"
        ).fetchall()
        assert len(ended) >= 1

        for _ in ended:
            assert await operators.reads.acts() == []


async def test_an_unknown_id_and_a_strange_key_find_nothing(opened: Database) -> None:
    reads = Reads(opened)
    for text in (str(uuid4()), "<script>alert(1)</script>", "%", "' or 1=1 --", "ключ"):
        found = await reads.search(text)
        assert (found["turns"], found["request"], found["dead_letter"]) == ([], None, None)
    assert await reads.story(uuid4()) is None
    assert await reads.dead_letter(uuid4()) is None


async def test_figures_count_what_is_there(rows: Connection, opened: Database) -> None:
    line, turn = spoken(rows)
    line.post(line.id, "still running", status="generating")
    dead_letter_of(rows, line)
    rows.execute(
        "insert into ingestion.request_outcomes (request_id, tenant_id, outcome, conversation_id, "
        "turn_id, decided_at) "
        "select gen_random_uuid(), tenant_id, 'accepted', conversation_id, id, now() "
        "from ingestion.turns, generate_series(1, 2)"
    )
    rows.execute(
        "insert into llm_gateway.workers values (gen_random_uuid(), now() + interval '5 s'), "
        "(gen_random_uuid(), now() - interval '1 s')"
    )
    rows.execute(
        "insert into ingestion.instances values (gen_random_uuid(), '1', 'here:1', "
        """'{"postgres": {"state": "ok", "detail": ""}}', '{"turn.requests": 4}', now(), now()), """
        """(gen_random_uuid(), '1', 'there:2', '{}', '{"turn.requests": 9}', now(), """
        "now() - interval '1 minute')"
    )

    told = await Reads(opened).overview()

    assert {(r["is_open"], r["status"], r["reason"]): r["turns"] for r in told["turns"]} == {
        (True, "generating", None): 1,
        (False, "failed", "provider_unavailable"): 1,
    }
    assert told["leases"] == {"held": 1, "run_out": 1, "running": 0, "orphaned": 0}
    assert [r["letters"] for r in told["dead_letters"]] == [0, 0, 1]
    by_name = {one["service"]: one for one in told["services"]}
    assert by_name["llm_gateway"]["health"] == "absent"
    ingestion = by_name["ingestion"]
    assert (ingestion["health"], ingestion["running"], ingestion["silent"]) == ("ready", 1, 1)
    assert ingestion["lag"] == 4
    listed = await Reads(opened).turns("failed", None)
    assert [one["turn_id"] for one in listed] == [str(turn.id)]
    assert [one["status"] for one in await Reads(opened).turns("open", None)] == ["generating"]


async def test_a_dry_run_says_what_the_act_says_and_leaves_nothing(
    rows: Connection, opened: Database
) -> None:
    line = Line(rows)
    turn = line.post(line.id, "still running", status="generating")
    letter = dead_letter_of(rows, line)
    acts = Acts(opened, actor="key:test")

    for dry_run in (True, False):
        told = [
            await acts.redrive("llm_gateway", letter, dry_run=dry_run),
            await acts.reap_turn(turn.id, dry_run=dry_run),
            await acts.end_turn(turn.id, "internal", dry_run=dry_run),
        ]
        assert [one["dry_run"] for one in told if one] == [dry_run] * 3
        audit = [row["action"] for row in await Reads(opened).acts()]
        done = ["dead_letter.redriven", "turn.ended", "turn.reaped"]
        assert sorted(audit) == ([] if dry_run else done)

    (row,) = rows.execute("select * from ingestion.turns where id = %s", [turn.id]).fetchall()
    assert (row["status"], row["reason"]) == ("failed", "internal")
    assert {one["actor"] for one in await Reads(opened).acts()} == {"key:test"}
    assert await acts.end_turn(turn.id, "internal", dry_run=False) is None


async def test_the_end_by_an_operator_is_one_of_the_turns_events(
    rows: Connection, opened: Database
) -> None:
    line = Line(rows)
    turn = line.post(line.id, "still running", status="generating")

    await Acts(opened, actor="key:test").end_turn(turn.id, "internal", dry_run=False)

    (event,) = rows.execute("select event_id from ingestion.outbox").fetchall()
    assert event["event_id"] == end_ids(turn.id)[1]
    rows.execute(
        "insert into llm_gateway.inbox (consumer, event_id, at) values ('llm_gateway.turns', %s, "
        "now())",
        [event["event_id"]],
    )
    story = await Reads(opened).story(turn.id)
    assert story is not None
    whats = {one["what"]: one["detail"] for one in story["lines"]}
    assert whats["turn is failed"] == "internal"
    assert whats["turn.ended waits for the broker"] == "turn.events"
    assert whats["turn.ended handled"] == "llm_gateway.turns"


def test_a_turn_whose_conversation_is_held_is_refused_and_not_a_fault(
    rows: Connection, database: TestDatabase
) -> None:
    line = Line(rows)
    turn = line.post(line.id, "still running", status="generating")
    with psycopg.connect(database.url_of("ops"), options="-c lock_timeout=20") as ops:
        with rows.transaction():
            rows.execute("select from conversations where id = %s for update", [line.id])
            with pytest.raises(RefusedByFunction, match="try again"), refusals():
                ops.execute("select ingestion.op_end_turn(%s, 'internal', 'me')", [turn.id])
        ops.rollback()
        told = ops.execute("select ingestion.op_end_turn(%s, 'internal', 'me')", [turn.id])
        assert told.fetchone() == ("failed",)


async def test_reaping_moves_the_deadline_into_the_past(rows: Connection, opened: Database) -> None:
    line = Line(rows)
    turn = line.post(line.id, "still running", status="generating")
    rows.execute("update ingestion.open_turns set deadline_at = now() + interval '1 hour'")

    assert await Acts(opened, actor="key:test").reap_turn(turn.id, dry_run=False) is not None

    (row,) = rows.execute("select now() - deadline_at as late from ingestion.open_turns").fetchall()
    assert row["late"] > timedelta(hours=1)


async def test_what_cannot_be_done_is_refused_with_its_reason(
    rows: Connection, opened: Database
) -> None:
    line = Line(rows)
    turn = line.post(line.id, "waiting", status="generating")
    rows.execute("update ingestion.open_turns set deadline_at = null")
    letter = dead_letter_of(rows, line, value=None)
    acts = Acts(opened, actor="key:test")

    with pytest.raises(Refusal, match="has not started"):
        await acts.reap_turn(turn.id, dry_run=False)
    with pytest.raises(Refusal, match="are not kept"):
        await acts.redrive("llm_gateway", letter, dry_run=False)
    with pytest.raises(Refusal, match="no such reason"):
        await acts.end_turn(turn.id, "because", dry_run=False)
    with pytest.raises(Refusal, match="names who"):
        await Acts(opened, actor="").redrive("llm_gateway", letter, dry_run=False)
    assert await acts.redrive("ingestion", letter, dry_run=False) is None
    assert await acts.redrive("frontend_gateway", letter, dry_run=False) is None
    assert await Reads(opened).acts() == []
