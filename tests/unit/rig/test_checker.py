"""The checker sees: a world that keeps every promise passes, and one broken thing is named."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from schemas.registry import GENERATION_EVENTS, TURN_EVENTS
from schemas.streams import Entry, EntryId, content_delta
from tests.rig.checked_world import CheckedWorld, open_world
from tests.rig.checker import check
from tests.rig.evidence import Evidence
from tests.rig.ledger import Reply, StreamEvent, canary_of, marked
from tests.rig.parts import TestDatabase
from tests.rig.verdict import PROMISES, Verdict

FOREIGN = canary_of(uuid4())


@pytest.fixture
def world(database: TestDatabase) -> Iterator[CheckedWorld]:
    with open_world(database.admin_url) as opened:
        yield opened


def verdict_of(world: CheckedWorld, evidence: Evidence | None = None) -> Verdict:
    return check(world.admin_url, [world.ledger], evidence=evidence or world.evidence)


@pytest.mark.postgres
def test_a_world_that_keeps_every_promise_passes(world: CheckedWorld) -> None:
    verdict = verdict_of(world)

    verdict.require(
        one_turn_per_key=6,
        one_terminal_per_turn=8,
        no_accepted_turn_lost=2,
        stream_equals_store=10,
        serial_per_conversation=2,
        current_turn_once_in_plan=2,
        superseded_excluded=2,
        plan_within_budget=2,
        plan_deterministic=4,
        tenant_isolation=10,
        canary_seen=8,
        at_rest=10,
    )


@pytest.mark.postgres
def test_what_was_not_gathered_is_reported_as_not_checked(world: CheckedWorld) -> None:
    world.ledger.posts.clear()
    report = verdict_of(world, Evidence()).report()

    assert "P4    stream_equals_store         not checked" in report
    assert "proof canary_seen                 not checked" in report


# Each of these breaks one thing.


def _rows(sql: str) -> Callable[[CheckedWorld], None]:
    def act(world: CheckedWorld) -> None:
        last = world.turns[-1]
        world.execute(sql, {**last.values, "other": uuid4()})

    return act


def _another_turn_for_the_key(world: CheckedWorld) -> None:
    world.ledger.posts[0].replies.append(Reply(200, {"turn_id": str(uuid4())}, {}))


def _a_record_of_nobody(world: CheckedWorld) -> None:
    world.tell(TURN_EVENTS, uuid4(), "turn.accepted")


def _two_ends_of_a_turn(world: CheckedWorld) -> None:
    world.tell(TURN_EVENTS, world.turns[0].id, "turn.ended", status="completed")


def _two_ends_of_a_step(world: CheckedWorld) -> None:
    turn = world.turns[0]
    step = str(turn.values["step"])
    world.tell(GENERATION_EVENTS, turn.id, "generation.interrupted", step_id=step)


def _an_end_told_as_another(world: CheckedWorld) -> None:
    raw = world.topics[TURN_EVENTS][0].replace(b"completed", b"partial")
    world.topics[TURN_EVENTS][0] = raw


def _events(change: Callable[[list[StreamEvent]], Any]) -> Callable[[CheckedWorld], None]:
    def act(world: CheckedWorld) -> None:
        stream = world.ledger.posts[0].stream
        assert stream is not None
        change(stream.events)

    return act


def _entries(change: Callable[[list[Entry]], Any]) -> Callable[[CheckedWorld], None]:
    def act(world: CheckedWorld) -> None:
        change(world.streams[world.turns[0].id])

    return act


def _other_text(events: list[StreamEvent]) -> None:
    events[2] = replace(events[2], data=b'{"text":"other"}')


def _other_end(entries: list[Entry]) -> None:
    entries[-1] = replace(entries[-1], data=entries[-1].data.replace(b"completed", b"partial"))


def _plan(change: Callable[[dict[str, Any]], Any]) -> Callable[[CheckedWorld], None]:
    def act(world: CheckedWorld) -> None:
        values = world.turns[-1].values
        plan = orjson.loads(values["plan"])
        change(plan)
        world.execute(
            "update context_assembly.plans set plan = %(plan)s::json where turn_id = %(turn)s",
            {"plan": orjson.dumps(plan).decode(), "turn": values["turn"]},
        )

    return act


def _another_prompt(world: CheckedWorld) -> None:
    world.turns[0].prompt = world.turns[0].prompt.replace(b"question", b"questions")


def _a_reply_with_a_foreign_text(world: CheckedWorld) -> None:
    body = {"turn_id": str(world.turns[0].id), "shown": FOREIGN}
    world.ledger.posts[0].replies.append(Reply(200, body, {}))


def _a_header_with_a_foreign_text(world: CheckedWorld) -> None:
    world.ledger.posts[0].replies.append(Reply(503, {}, {"x-told": FOREIGN}))


def _an_answer_that_spells_a_foreign_text(world: CheckedWorld) -> None:
    """No single event holds it."""
    answer = f"answer {FOREIGN}"
    stream = world.ledger.posts[0].stream
    assert stream is not None
    for place, text in ((2, answer[:12]), (3, answer[12:])):
        stream.events[place] = replace(stream.events[place], data=orjson.dumps({"text": text}))
    raw = answer.encode()
    done = stream.events[-1].json | {"length": len(raw)}
    stream.events[-1] = replace(stream.events[-1], data=orjson.dumps(done))
    world.execute(
        "update ingestion.messages set text = %(text)s where id = %(id)s",
        {"text": answer, "id": world.turns[0].values["answer_id"]},
    )


def _a_prompt_of_two_tenants(world: CheckedWorld) -> None:
    world.turns[0].prompt = world.turns[0].prompt.replace(b"question", FOREIGN.encode())


def _a_text_on_an_inner_topic(world: CheckedWorld) -> None:
    own = canary_of(world.tenant)
    world.tell(TURN_EVENTS, world.turns[0].id, "turn.accepted", text=own)


def _a_foreign_text_in_redis(entries: list[Entry]) -> None:
    entries[2] = content_delta(entries[2].id, FOREIGN)


def _an_open_call(world: CheckedWorld) -> None:
    world.open_calls = 1


WORK = (
    "insert into llm_gateway.work (step_id, tenant_id, conversation_id, turn_id, lane, step_no, "
    "seq, model, fingerprint, causation_id, deadline_at, state, base_attempt, attempt, worker_id, "
    "run_after, created_at, progressed_at) values (%(step)s, %(tenant)s, %(conversation)s, "
    "%(turn)s, %(conversation)s, 1, 1, 'm', 'f', %(step)s, now(), '{state}', 0, 0, {worker}, "
    "now(), now(), now())"
)
DEAD_LETTER = (
    'insert into ingestion.dead_letters (id, consumer, topic, partition, "offset", reason, '
    "error, headers, attempts, at, mirrored) values (%(other)s, 'c', 't', 0, 0, 'r', 'e', '{}', 1, "
    "now(), true)"
)

BREAKS: dict[str, tuple[str, Callable[[CheckedWorld], None]]] = {
    "a second turn for a key": ("one_turn_per_key", _another_turn_for_the_key),
    "another text than was sent": (
        "one_turn_per_key",
        _rows("update ingestion.messages set text = 'x' || text where id = %(asked_id)s"),
    ),
    "a third message": (
        "one_turn_per_key",
        _rows(
            "insert into ingestion.messages (tenant_id, id, conversation_id, branch_id, turn_id, "
            "role, seq, status, text, length, said_at, created_at) select tenant_id, %(other)s, "
            "conversation_id, branch_id, turn_id, role, 5, status, text, length, said_at, "
            "created_at from ingestion.messages where id = %(answer_id)s"
        ),
    ),
    "a record of an unknown turn": ("one_turn_per_key", _a_record_of_nobody),
    "a turn without an end": (
        "one_terminal_per_turn",
        _rows(
            "update ingestion.turns set status = 'generating', ended_at = null where id = %(turn)s"
        ),
    ),
    "a turn that ended twice": (
        "one_terminal_per_turn",
        _rows(
            "insert into ingestion.transitions (tenant_id, turn_id, status, cause_id, at) "
            "values (%(tenant)s, %(turn)s, 'failed', %(other)s, now())"
        ),
    ),
    "two attempts that both ended their step": (
        "one_terminal_per_turn",
        _rows(
            "insert into llm_gateway.attempts (tenant_id, turn_id, step_id, attempt, model, "
            "outcome, reason, requests, ended_at) values (%(tenant)s, %(turn)s, %(step)s, 2, 'm', "
            "'interrupted', 'lease_expired', 1, now())"
        ),
    ),
    "two identities of one end": ("one_terminal_per_turn", _two_ends_of_a_turn),
    "two ends of one step": ("one_terminal_per_turn", _two_ends_of_a_step),
    "an end told as another": ("one_terminal_per_turn", _an_end_told_as_another),
    "an accepted turn that is gone": (
        "no_accepted_turn_lost",
        _rows("delete from ingestion.turns where id = %(turn)s"),
    ),
    "another text in the stream": ("stream_equals_store", _events(_other_text)),
    "another text in the store": (
        "stream_equals_store",
        _rows("update ingestion.messages set text = text || '.' where id = %(answer_id)s"),
    ),
    "an event that is missing": ("stream_equals_store", _events(lambda events: events.pop(2))),
    "an event that came twice": (
        "stream_equals_store",
        _events(lambda events: events.insert(3, events[2])),
    ),
    "a stream without an end": ("stream_equals_store", _events(lambda events: events.pop())),
    "a stream that ends twice": (
        "stream_equals_store",
        _events(lambda events: events.append(replace(events[-1], id="2147483647-2"))),
    ),
    "a hole in Redis": ("stream_equals_store", _entries(lambda entries: entries.pop(2))),
    "another end in Redis": ("stream_equals_store", _entries(_other_end)),
    "a delta after the end in Redis": (
        "stream_equals_store",
        _entries(lambda entries: entries.append(content_delta(EntryId(2_147_483_647, 2), "x"))),
    ),
    "a gap in the order": (
        "serial_per_conversation",
        _rows("update ingestion.messages set seq = 9 where id = %(answer_id)s"),
    ),
    "two turns at once": (
        "serial_per_conversation",
        _rows(
            "update ingestion.turns set started_at = started_at - interval '58 s' "
            "where id = %(turn)s"
        ),
    ),
    "the current message twice": (
        "current_turn_once_in_plan",
        _plan(lambda plan: plan["message_ids"].append(plan["message_ids"][-1])),
    ),
    "a message that is no history": (
        "superseded_excluded",
        _plan(lambda plan: plan["message_ids"].insert(0, str(uuid4()))),
    ),
    "more than the budget": (
        "plan_within_budget",
        _plan(lambda plan: plan["blocks"][0].update(tokens=9_000)),
    ),
    "another fingerprint": (
        "plan_deterministic",
        _plan(lambda plan: plan.update(fingerprint=hashlib.sha256(b"").hexdigest())),
    ),
    "the oldest message left out": (
        "plan_deterministic",
        _plan(lambda plan: plan["message_ids"].pop(0)),
    ),
    "an invariant that broke": (
        "plan_within_budget",
        _rows(
            "update context_assembly.steps set state = 'refused', reason = 'invariant', "
            "invariant = 'plan_within_budget' where step_id = %(step)s"
        ),
    ),
    "an answer without a plan": (
        "plan_deterministic",
        _rows("delete from context_assembly.plans where turn_id = %(turn)s"),
    ),
    "a prompt that no plan says": ("plan_deterministic", _another_prompt),
    "a reply with a foreign text": ("tenant_isolation", _a_reply_with_a_foreign_text),
    "a header with a foreign text": ("tenant_isolation", _a_header_with_a_foreign_text),
    "an answer that spells a foreign text": (
        "tenant_isolation",
        _an_answer_that_spells_a_foreign_text,
    ),
    "a prompt of two tenants": ("tenant_isolation", _a_prompt_of_two_tenants),
    "a text on an inner topic": ("tenant_isolation", _a_text_on_an_inner_topic),
    "a foreign text in Redis": ("tenant_isolation", _entries(_a_foreign_text_in_redis)),
    "an outbox that is not empty": (
        "at_rest",
        _rows(
            "insert into ingestion.outbox (bucket, event_id, topic, key, type, payload, "
            "headers, created_at) values (0, %(other)s, 't', 'k', 'x', '', '{}', now())"
        ),
    ),
    "a turn that is still open": (
        "at_rest",
        _rows(
            "insert into ingestion.open_turns (turn_id, tenant_id, conversation_id, branch_id, "
            "state, position, progressed_at) values (%(turn)s, %(tenant)s, %(conversation)s, "
            "%(conversation)s, 'pending', 0, now())"
        ),
    ),
    "work that waits": ("at_rest", _rows(WORK.format(state="ready", worker="null"))),
    "a lease that is held": ("at_rest", _rows(WORK.format(state="running", worker="%(other)s"))),
    "a dead letter": ("at_rest", _rows(DEAD_LETTER)),
    "an open call": ("at_rest", _an_open_call),
}


@pytest.mark.postgres
@pytest.mark.parametrize("name", BREAKS)
def test_what_is_broken_is_named(world: CheckedWorld, name: str) -> None:
    promise, act = BREAKS[name]
    act(world)

    verdict = verdict_of(world)

    assert promise in {line.partition(":")[0] for line in verdict.broken}, verdict.broken
    assert f"{promise:<28}" in verdict.report()
    assert "BROKEN" in verdict.report()


def test_every_promise_that_the_checker_knows_is_broken_once() -> None:
    broken = {promise for promise, _ in BREAKS.values()}
    known = {name for promise, names in PROMISES.items() for name in names if promise != "proof"}

    assert known - broken == {"recovery_in_time"}  # only the simulation sees when a worker died


@pytest.mark.postgres
def test_a_log_that_shows_a_text_is_named(world: CheckedWorld, tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    log.write_bytes(b"-" * ((1 << 20) - 8) + FOREIGN.encode())  # across the edge of a chunk

    verdict = verdict_of(world, Evidence(logs=[log]))

    assert verdict.broken == [f"tenant_isolation: the log service.log shows texts of ['{FOREIGN}']"]


def test_a_verdict_that_saw_too_little_fails() -> None:
    verdict = Verdict()
    verdict.check("at_rest", holds=True, otherwise="")

    with pytest.raises(AssertionError, match="at_rest was checked on 1 items, not on 2"):
        verdict.require(at_rest=2)


def test_a_minimum_for_a_promise_that_nobody_knows_is_refused() -> None:
    with pytest.raises(KeyError, match="at_peace"):
        Verdict().require(at_peace=0)


def test_a_text_is_marked_once() -> None:
    tenant = uuid4()

    assert marked(marked("hello", tenant), tenant) == f"hello {canary_of(tenant)}"
