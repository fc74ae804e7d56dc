"""The checker sees: a world that keeps every promise passes, and one broken thing is named."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import orjson
import pytest

from schemas.registry import GENERATION_EVENTS, TURN_EVENTS
from schemas.requests import Policy
from schemas.streams import Entry, EntryId, content_delta
from tests.rig.checked_world import CheckedWorld
from tests.rig.checker import check
from tests.rig.evidence import Evidence
from tests.rig.ledger import Act, ActKind, Reply, StreamEvent, canary_of, marked
from tests.rig.verdict import PROMISES, Verdict

FOREIGN = canary_of(uuid4())


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


def _rows_of_first(sql: str) -> Callable[[CheckedWorld], None]:
    return lambda world: world.execute(sql, world.turns[0].values)


def _both(*acts: Callable[[CheckedWorld], None]) -> Callable[[CheckedWorld], None]:
    def act(world: CheckedWorld) -> None:
        for one in acts:
            one(world)

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


def _an_act(
    kind: ActKind, target: str, *shown_after: str, sql: str = ""
) -> Callable[[CheckedWorld], None]:
    """Something that was done, as its client was told."""

    def act(world: CheckedWorld) -> None:
        values = world.turns[0].values
        done = Act(kind, world.conversation, values[target], [Reply(204, {}, {})])
        done.shown_after += shown_after
        world.ledger.acts.append(done)
        if sql:
            world.execute(sql, values)

    return act


def _a_foreign_text_in_a_refusal(world: CheckedWorld) -> None:
    told = Reply(409, {"detail": FOREIGN}, {})
    world.ledger.acts.append(Act("cancel", world.conversation, world.turns[0].id, [told]))


def _another_kind_than_was_asked_for(world: CheckedWorld) -> None:
    world.ledger.posts[0].kind = "edit"


def _a_refused_stream(world: CheckedWorld) -> None:
    stream = world.ledger.posts[0].stream
    assert stream is not None
    stream.gone = 410


def _words(topic: str = "") -> Callable[[CheckedWorld], None]:
    """The words of a message that was deleted, on a topic."""

    def act(world: CheckedWorld) -> None:
        world.tell(topic, world.turns[0].id, "turn.accepted", text=world.turns[0].asked)

    return act


def _a_conversation_of_nobody(world: CheckedWorld) -> None:
    world.tell(TURN_EVENTS, uuid4(), "conversation.deleted")


def _asked_under(
    policy: str, stored: str | None = None, sql: str = ""
) -> Callable[[CheckedWorld], None]:
    """The second message came under a policy."""

    def act(world: CheckedWorld) -> None:
        world.ledger.posts[1].policy = policy
        values = {**world.turns[-1].values, "policy": stored or policy}
        world.execute("update ingestion.turns set policy = %(policy)s where id = %(turn)s", values)
        if sql:
            world.execute(sql, values)

    return act


def _a_refusal_for_a_turn_of_nobody(world: CheckedWorld) -> None:
    body = {"code": "turn-in-progress", "turn_id": str(uuid4())}
    world.ledger.posts[1].policy = "serialize"
    world.ledger.posts[1].replies.insert(0, Reply(409, body, {}))


BEHIND = "update ingestion.turns set queued_at_position = 9 where id = %(turn)s"


def _an_answer_that_asks(world: CheckedWorld) -> None:
    """The turn and its post agree that nothing was said, and yet a question is stored."""
    world.ledger.posts[0].kind = "regenerate"
    world.execute(
        "update ingestion.turns set kind = 'regenerate' where id = %(turn)s", world.turns[0].values
    )


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

DELETED = "update ingestion.messages set deleted_at = now() where id = %(asked_id)s"
CONVERSATION_DELETED = (
    "update ingestion.conversations set deleted_at = now(), purge_at = now() "
    "where id = %(conversation)s"
)
CAPTURED = (
    "insert into context_assembly.captures (tenant_id, step_id, turn_id, conversation_id, payload, "
    "cause, captured_at) values (%(tenant)s, %(step)s, %(turn)s, %(conversation)s, '', 'c', now())"
)

GONE = _an_act("delete_message", "asked_id", sql=DELETED)
CAPTURED_WORDS = (
    "insert into context_assembly.captures (tenant_id, step_id, turn_id, conversation_id, payload, "
    "cause, captured_at) values (%(tenant)s, %(asked_id)s, %(turn)s, %(conversation)s, "
    "convert_to('{\"content\":\"' || %(asked)s || '\"}', 'UTF8'), 'c', now())"
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
    "another kind than was asked for": ("one_turn_per_key", _another_kind_than_was_asked_for),
    "a stream refused without a deletion": ("stream_equals_store", _a_refused_stream),
    "a deleted message on a page": (
        "deleted_is_gone",
        _an_act("delete_message", "asked_id", "a page", sql=DELETED),
    ),
    "a deleted message that stands": ("deleted_is_gone", _an_act("delete_message", "asked_id")),
    "a capture of a deleted message": (
        "deleted_is_gone",
        _both(_rows_of_first(CAPTURED), _an_act("delete_message", "asked_id", sql=DELETED)),
    ),
    "a deleted conversation that stands": ("deleted_is_gone", _an_act("delete", "conversation")),
    "a capture of a deleted conversation": (
        "deleted_is_gone",
        _both(
            _rows_of_first(CAPTURED), _an_act("delete", "conversation", sql=CONVERSATION_DELETED)
        ),
    ),
    "a deleted message's words in a plan": (
        "deleted_is_gone",
        _both(
            _rows_of_first(
                "update context_assembly.plans set plan = "
                "(plan::jsonb || jsonb_build_object('title', %(asked)s::text))::json "
                "where turn_id = %(turn)s"
            ),
            GONE,
        ),
    ),
    "a deleted message's words in a capture that names no message": (
        "deleted_is_gone",
        _both(_rows_of_first(CAPTURED_WORDS), GONE),
    ),
    "a deleted message's words in a title": (
        "deleted_is_gone",
        _both(
            _rows_of_first(
                "update ingestion.conversations set title = %(asked)s where id = %(conversation)s"
            ),
            GONE,
        ),
    ),
    "a deleted answer's words in an outbox": (
        "deleted_is_gone",
        _both(
            _rows_of_first(
                "insert into ingestion.outbox (bucket, event_id, topic, key, type, payload, "
                "headers, created_at) values (0, %(step)s, 't', 'k', 'x', "
                "convert_to(%(answer)s, 'UTF8'), '{}', now())"
            ),
            _an_act(
                "delete_message",
                "answer_id",
                sql="update ingestion.messages set deleted_at = now() where id = %(answer_id)s",
            ),
        ),
    ),
    "a deleted message's words on a topic": ("deleted_is_gone", _both(_words(TURN_EVENTS), GONE)),
    "a deleted message in a later plan": (
        "superseded_excluded",
        _rows_of_first(
            "update ingestion.messages set deleted_at = now() - interval '1 h' "
            "where id = %(asked_id)s"
        ),
    ),
    "the old branch in the plan of an edit": (
        "superseded_excluded",
        _rows("update ingestion.turns set parent_turn_id = null where id = %(turn)s"),
    ),
    "a continuation without what it continues": (
        "current_turn_once_in_plan",
        _rows(
            "update ingestion.turns set continues = array[%(answer_id)s::uuid] where id = %(turn)s"
        ),
    ),
    "another policy than was asked for": ("policy_kept", _asked_under("queue", "serialize")),
    "a wait under reject": ("policy_kept", _asked_under("reject", sql=BEHIND)),
    "a wait under branch": ("policy_kept", _asked_under("branch", sql=BEHIND)),
    "a wait behind too many": ("policy_kept", _asked_under("queue", sql=BEHIND)),
    "a replaced turn that went on": (
        "policy_kept",
        _asked_under(
            "replace",
            sql="update ingestion.turns set created_at = created_at - interval '63 s' "
            "where id = %(turn)s",
        ),
    ),
    "a refusal for a turn of nobody": ("policy_kept", _a_refusal_for_a_turn_of_nobody),
    "an answer made again that asks": ("one_turn_per_key", _an_answer_that_asks),
    "a record of an unknown conversation": ("one_turn_per_key", _a_conversation_of_nobody),
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
    "a refusal with a foreign text": ("tenant_isolation", _a_foreign_text_in_a_refusal),
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
@pytest.mark.parametrize("policy", get_args(Policy))
def test_a_policy_that_was_kept_breaks_nothing(world: CheckedWorld, policy: Policy) -> None:
    _asked_under(policy)(world)

    verdict_of(world).require(policy_kept=1)


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

    # Only the simulation sees when a worker died, and when a cancel was accepted; it breaks these
    # two in tests/sim/test_checks.py.
    assert known - broken == {"recovery_in_time", "cancelled_in_time"}


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
