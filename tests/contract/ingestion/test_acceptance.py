"""Requests at the door, on a real Postgres: one outcome each, one turn per key."""

import asyncio
from uuid import uuid4

import psycopg
import pytest

from libs import ids
from libs.door import GATEWAY_DOOR_KEY_ID
from libs.kafka import Delivery
from schemas.streams import BEFORE_ALL
from tests.contract.ingestion.rig import (
    DEADLINE_S,
    OTHER_TENANT,
    PRINCIPAL,
    TENANT,
    Rig,
    create,
    delivery,
    post,
)
from tests.rig.waiting import until

pytestmark = pytest.mark.postgres

OUTCOMES = "select outcome from ingestion.request_outcomes where request_id = %s"


def outcome(rig: Rig, request: Delivery) -> str:
    value: str = rig.one(OUTCOMES, request.event.id)
    return value


async def test_a_conversation_with_its_first_message_is_one_commit(rig: Rig) -> None:
    conversation = ids.conversation_id(TENANT, PRINCIPAL, "k")
    request = create(conversation, key="k", text="Hello there")

    await rig.ingestion.requests.handle([request])

    turn = ids.turn_id(TENANT, conversation, "k")
    (row,) = rig.rows("select * from ingestion.turns")
    assert (row["id"], row["status"], row["seq"], row["base_seq"]) == (turn, "pending", 1, 1)
    assert (row["deadline_at"] - row["started_at"]).total_seconds() == DEADLINE_S
    messages = rig.rows(
        "select role, seq, text, status, length from ingestion.messages order by seq"
    )
    assert [tuple(m.values()) for m in messages] == [
        ("user", 1, "Hello there", "completed", 11),
        ("assistant", 2, None, "pending", 0),
    ]
    assert rig.one("select tokens from ingestion.message_tokens") == 2
    assert rig.one("select kind from ingestion.branches") == "main"
    assert rig.one("select next_seq from ingestion.conversations") == 3
    assert outcome(rig, request) == "accepted"
    assert rig.ingestion.relay.types() == ["turn.accepted", "turn.started"]
    started = rig.ingestion.relay.events[1]
    assert started.data.base_seq == 1
    assert started.data.assistant_message_id == ids.message_id(turn, "assistant")
    assert rig.one("select count(*) from ingestion.outbox") == 2


async def test_a_waiting_turn_is_told_its_place(rig: Rig) -> None:
    conversation = uuid4()
    options = {"temperature": 0.5, "note": 'quotes " and {braces}, ü'}
    requests = [create(conversation), post(conversation, "a", options=options)]

    await rig.ingestion.requests.handle([*requests, post(conversation, "b")])

    turns = rig.rows(
        "select key, seq, base_seq, queued_at_position from ingestion.turns order by seq"
    )
    assert [tuple(turn.values()) for turn in turns] == [("a", 1, 1, 0), ("b", 3, None, 1)]
    assert rig.ingestion.relay.types() == ["turn.accepted", "turn.started", "turn.accepted"]
    assert rig.ingestion.relay.events[1].data.options == options
    assert rig.one("select options from ingestion.turns where key = 'a'") == options
    waiting = ids.turn_id(TENANT, conversation, "b")
    entries = await rig.ingestion.live.read(waiting, BEFORE_ALL, 10)
    assert [(str(entry.id), entry.event) for entry in entries] == [
        ("0-1", "message_started"),
        ("0-2", "status"),
    ]
    assert b'"queue_position":1' in entries[1].data


async def test_the_same_key_and_body_is_the_same_turn_again(rig: Rig) -> None:
    conversation = uuid4()
    first, again = post(conversation, "k", "red"), post(conversation, "k", "red")
    await rig.ingestion.requests.handle([create(conversation), first])

    await rig.ingestion.requests.handle([again])

    assert outcome(rig, again) == "replayed"
    turn = rig.one(
        "select turn_id from ingestion.request_outcomes where request_id = %s", again.event.id
    )
    assert turn == ids.turn_id(TENANT, conversation, "k")
    assert rig.one("select count(*) from ingestion.turns") == 1
    assert rig.ingestion.relay.types().count("turn.accepted") == 1


async def test_the_same_key_with_another_body_is_a_conflict(rig: Rig) -> None:
    conversation, other = uuid4(), uuid4()
    blue = post(conversation, "k", "blue")
    elsewhere = post(other, "k", "blue")
    await rig.ingestion.requests.handle(
        [create(conversation), post(conversation, "k", "red"), blue, create(other), elsewhere]
    )

    assert outcome(rig, blue) == "conflict"
    assert outcome(rig, elsewhere) == "accepted"
    assert (
        rig.one(
            "select problem->>'code' from ingestion.request_outcomes where request_id = %s",
            blue.event.id,
        )
        == "idempotency-key-reused"
    )
    assert rig.one("select count(*) from ingestion.messages") == 4


async def test_the_same_record_three_times_changes_nothing(rig: Rig) -> None:
    conversation = uuid4()
    batch = [create(conversation), post(conversation, "k")]

    for _ in range(3):
        await rig.ingestion.requests.handle(batch)
    await rig.ingestion.requests.handle([batch[1], batch[1]])

    assert rig.one("select count(*) from ingestion.turns") == 1
    assert rig.one("select count(*) from ingestion.request_outcomes") == 2
    assert rig.one("select count(*) from ingestion.outbox") == 2


async def test_twenty_concurrent_posts_of_one_key_make_one_turn(rig: Rig) -> None:
    conversation = uuid4()
    await rig.ingestion.requests.handle([create(conversation)])
    requests = [post(conversation, "k") for _ in range(20)]

    await asyncio.gather(
        *(
            process.requests.handle([request])
            for request, process in zip(requests, [rig.ingestion, rig.second] * 10, strict=True)
        )
    )

    outcomes = sorted(outcome(rig, request) for request in requests)
    assert outcomes == ["accepted"] + ["replayed"] * 19
    assert rig.one("select count(*) from ingestion.messages") == 2
    assert rig.one("select count(distinct turn_id) from ingestion.request_outcomes") == 1


async def test_twenty_concurrent_creations_with_one_key_make_one_conversation(rig: Rig) -> None:
    conversation = ids.conversation_id(TENANT, PRINCIPAL, "k")
    requests = [create(conversation, key="k", text="hi") for _ in range(20)]

    await asyncio.gather(
        *(
            process.requests.handle([request])
            for request, process in zip(requests, [rig.ingestion, rig.second] * 10, strict=True)
        )
    )

    assert sorted(outcome(rig, r) for r in requests) == ["accepted"] + ["replayed"] * 19
    assert rig.one("select count(*) from ingestion.turns") == 1


async def test_concurrent_posts_get_seqs_without_gap_or_repeat(rig: Rig) -> None:
    conversation = uuid4()
    await rig.ingestion.requests.handle([create(conversation)])

    await asyncio.gather(
        *(
            process.requests.handle([post(conversation, f"k{n}")])
            for n, process in enumerate([rig.ingestion, rig.second] * 8)
        )
    )

    seqs = [row["seq"] for row in rig.rows("select seq from ingestion.messages order by seq")]
    assert seqs == list(range(1, 33))
    positions = rig.rows("select position from ingestion.open_turns order by position")
    assert [row["position"] for row in positions] == list(range(16))
    assert rig.one("select count(*) from ingestion.turns where started_at is not null") == 1


async def test_a_decision_waits_for_whoever_holds_the_conversation(rig: Rig) -> None:
    conversation = uuid4()
    await rig.ingestion.requests.handle([create(conversation)])
    holder = await psycopg.AsyncConnection.connect(rig.test_database.admin_url)
    try:
        await holder.execute(
            "select from ingestion.conversations where id = %s for update", (conversation,)
        )
        deciding = asyncio.create_task(rig.ingestion.requests.handle([post(conversation, "k")]))

        async def is_in_line() -> bool:
            found: bool = rig.one(
                "select exists (select from pg_locks "
                "where not granted and locktype = 'transactionid')"
            )
            return found

        await until(is_in_line)
        # What the holder commits must be what the waiting decision sees.
        await holder.execute(
            "update ingestion.conversations set next_seq = 41 where id = %s", (conversation,)
        )
        await holder.commit()
        await deciding
    finally:
        await holder.close()

    assert rig.one("select seq from ingestion.turns") == 41


async def test_unknown_and_foreign_conversations_look_the_same(rig: Rig) -> None:
    conversation = uuid4()
    unknown = post(uuid4(), "k")
    foreign = post(conversation, "k", principal_id=uuid4())
    other_tenant = post(conversation, "k", tenant_id=OTHER_TENANT)

    await rig.ingestion.requests.handle([create(conversation), unknown, foreign, other_tenant])

    problems = {
        (
            rig.one(OUTCOMES, r.event.id),
            str(
                rig.one(
                    "select problem from ingestion.request_outcomes where request_id = %s",
                    r.event.id,
                )
            ),
        )
        for r in (unknown, foreign, other_tenant)
    }
    assert len(problems) == 1
    assert problems.pop()[0] == "not_found"
    assert rig.one("select count(*) from ingestion.messages") == 0


async def test_the_thirty_third_open_turn_is_refused(rig: Rig) -> None:
    conversation = uuid4()
    posts = [post(conversation, f"k{n}") for n in range(33)]

    await rig.ingestion.requests.handle([create(conversation), *posts])

    assert outcome(rig, posts[31]) == "accepted"
    assert outcome(rig, posts[32]) == "rejected"
    assert (
        rig.one(
            "select problem->>'code' from ingestion.request_outcomes where request_id = %s",
            posts[32].event.id,
        )
        == "quota-exceeded"
    )


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"text": " \n"}, "validation-error"),
        ({"text": "é" * 131_073}, "payload-too-large"),
        ({"parent": uuid4()}, "stale-parent"),
    ],
)
async def test_what_cannot_be_carried_out_is_rejected_with_a_reason(
    rig: Rig, fields: dict[str, object], code: str
) -> None:
    conversation = uuid4()
    request = post(conversation, "k", **fields)  # type: ignore[arg-type]

    await rig.ingestion.requests.handle([create(conversation), request])

    assert outcome(rig, request) == "rejected"
    assert (
        rig.one(
            "select problem->>'code' from ingestion.request_outcomes where request_id = %s",
            request.event.id,
        )
        == code
    )
    assert rig.one("select count(*) from ingestion.turns") == 0


async def test_the_outcome_is_read_by_the_gateway_for_the_tenants_it_names(rig: Rig) -> None:
    conversation = uuid4()
    request = post(conversation, "k")
    await rig.ingestion.requests.handle([create(conversation), request])

    sql = (
        "select outcome, turn_id, seq, status, title, policy "
        "from ingestion.request_outcomes_v1(%s, %s)"
    )
    with psycopg.connect(rig.test_database.url_of("frontend_gateway")) as gateway:
        parameters = ([TENANT], [request.event.id])
        assert gateway.execute(sql, parameters).fetchall() == []
        gateway.execute("select set_config('app.tenant_ids', %s, true)", (str(TENANT),))
        rows = gateway.execute(sql, parameters).fetchall()

    turn = ids.turn_id(TENANT, conversation, "k")
    assert rows == [("accepted", turn, 1, "pending", "a title", "serialize")]


async def test_only_signed_records_of_allowed_tenants_pass_the_screen(rig: Rig) -> None:
    conversation = uuid4()
    good = post(conversation, "k")
    key_of_other = uuid4()
    revoked = uuid4()
    rig.rows(
        "insert into frontend_gateway.tenants (id, name, created_at) values (%s, 'other', now())",
        OTHER_TENANT,
    )
    rig.rows(
        "insert into frontend_gateway.door_keys (id, tenant_id, created_at, revoked_at) values "
        "(%s, %s, now(), null), (%s, null, now(), now())",
        *(key_of_other, OTHER_TENANT, revoked),
    )
    unsigned = Delivery(good.topic, 0, 0, good.key, (), good.value, good.event)
    changed = Delivery(
        good.topic, 0, 0, good.key, good.headers, good.value.replace(b"hello", b"hullo"), good.event
    )
    elsewhere = Delivery(
        good.topic, 0, 0, str(uuid4()).encode(), good.headers, good.value, good.event
    )
    forged_ids = post(conversation, "k")
    wrong_turn = delivery(
        type(forged_ids.event)(
            **{
                field: getattr(forged_ids.event, field)
                for field in forged_ids.event.__dataclass_fields__
                if field != "correlation_id"
            },
            correlation_id=uuid4(),
        ),
        good.topic,
    )

    verdicts = await rig.ingestion.requests.screen(
        [
            good,
            unsigned,
            changed,
            delivery(good.event, good.topic, key_id=key_of_other),
            delivery(good.event, good.topic, key_id=revoked),
            delivery(good.event, good.topic, key_id=uuid4()),
            elsewhere,
            wrong_turn,
        ]
    )

    assert verdicts == [
        None,
        "door_unsigned",
        "door_mac_wrong",
        "door_tenant_foreign",
        "door_key_revoked",
        "door_key_unknown",
        "key_mismatch",
        "ids_mismatch",
    ]


async def test_a_key_made_a_moment_ago_is_known_at_once(rig: Rig) -> None:
    request = post(uuid4(), "k")
    assert await rig.ingestion.requests.screen([request]) == [None]
    fresh = uuid4()
    rig.rows(
        "insert into frontend_gateway.door_keys (id, tenant_id, created_at) "
        "values (%s, null, now())",
        fresh,
    )

    verdicts = await rig.ingestion.requests.screen(
        [delivery(request.event, request.topic, key_id=fresh)]
    )

    assert verdicts == [None]
    assert fresh != GATEWAY_DOOR_KEY_ID


async def test_redis_away_costs_nothing_but_the_ring(rig: Rig) -> None:
    conversation = uuid4()
    request = post(conversation, "k")
    rig.ingestion.live._server.go_away()

    await rig.ingestion.requests.handle([create(conversation), request])

    assert outcome(rig, request) == "accepted"
