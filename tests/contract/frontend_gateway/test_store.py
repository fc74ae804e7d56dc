"""One suite for the store in memory and in Postgres: what is seen, and by whom."""

from uuid import UUID, uuid4

import psycopg
import pytest

from libs.api_keys import hash_api_key
from libs.door import GATEWAY_DOOR_KEY_ID
from libs.postgres import Database
from schemas.streams import EntryId
from services.frontend_gateway.core.cursors import Page
from services.frontend_gateway.core.problems import Problem
from services.frontend_gateway.core.turns import Checkpoint
from services.frontend_gateway.ports import Asked
from tests.contract.frontend_gateway.worlds import Said, World
from tests.rig.parts import TestDatabase

TENANT, PRINCIPAL = uuid4(), uuid4()


def page(limit: int = 20, *, descending: bool = False, **cursors: UUID | None) -> Page:
    return Page(limit, cursors.get("after"), cursors.get("before"), descending)


async def test_a_key_is_known_until_it_is_revoked(world: World) -> None:
    key, key_id = await world.key(TENANT, PRINCIPAL)
    caller = await world.store.caller_of_key(hash_api_key(key))
    assert caller is not None
    assert (caller.key_id, caller.tenant_id, caller.principal_id) == (key_id, TENANT, PRINCIPAL)
    assert caller.scopes == {"chat", "read"}
    assert await world.store.caller_of_key(hash_api_key("tw_other")) is None
    await world.revoke(key_id)
    assert await world.store.caller_of_key(hash_api_key(key)) is None


async def test_a_session_stands_for_its_key_for_its_lifetime(world: World) -> None:
    _, key_id = await world.key(TENANT, PRINCIPAL)
    store = world.store
    await store.open_session(hash_api_key("long"), key_id, lifetime_s=60)
    await store.open_session(hash_api_key("short"), key_id, lifetime_s=0)
    caller = await store.caller_of_session(hash_api_key("long"))
    assert caller is not None
    assert caller.key_id == key_id
    assert await store.caller_of_session(hash_api_key("short")) is None
    assert await store.caller_of_session(hash_api_key("unknown")) is None
    assert await store.purge_sessions() == 1
    await store.close_session(hash_api_key("long"))
    assert await store.caller_of_session(hash_api_key("long")) is None


async def test_a_revoked_key_takes_its_sessions_along(world: World) -> None:
    _, key_id = await world.key(TENANT, PRINCIPAL)
    await world.store.open_session(hash_api_key("s"), key_id, lifetime_s=60)
    await world.revoke(key_id)
    assert await world.store.caller_of_session(hash_api_key("s")) is None


async def test_a_conversation_is_seen_by_its_principal_alone(world: World) -> None:
    conversation, _ = await world.conversation(TENANT, PRINCIPAL, [Said()])
    store = world.store
    found = await store.conversation(TENANT, PRINCIPAL, conversation)
    assert found is not None
    assert (found.id, found.title, found.message_count) == (conversation, "T", 2)
    for tenant, principal in ((TENANT, uuid4()), (uuid4(), PRINCIPAL)):
        assert await store.conversation(tenant, principal, conversation) is None
        assert list(await store.conversations(tenant, principal, page())) == []
        assert list(await store.messages(tenant, principal, conversation, page())) == []


@pytest.mark.parametrize("descending", [False, True])
async def test_conversations_page_both_ways(world: World, descending: bool) -> None:
    made = [(await world.conversation(TENANT, PRINCIPAL, []))[0] for _ in range(4)]
    expected = made[::-1] if descending else made
    store = world.store

    async def ids(**cursors: UUID) -> list[UUID]:
        wanted = page(2, descending=descending, **cursors)
        return [row.id for row in await store.conversations(TENANT, PRINCIPAL, wanted)]

    assert await ids() == expected[:3]
    assert await ids(after=expected[1]) == expected[2:]
    assert await ids(before=expected[3]) == expected[:3]
    assert await ids(before=expected[1]) == expected[:1]


async def test_messages_stand_in_the_order_of_seq_though_their_times_are_equal(
    world: World,
) -> None:
    conversation, *_ = await world.conversation(TENANT, PRINCIPAL, [Said(), Said(question="B")])
    store = world.store
    rows = await store.messages(TENANT, PRINCIPAL, conversation, page())
    assert [row.seq for row in rows] == [1, 2, 3, 4]
    assert [row.role for row in rows] == ["user", "assistant"] * 2
    assert rows[2].content == "B"
    one = await store.messages(TENANT, PRINCIPAL, conversation, page(1, after=rows[1].id))
    assert [row.seq for row in one] == [3, 4]
    back = await store.messages(
        TENANT, PRINCIPAL, conversation, page(1, descending=True, after=rows[2].id)
    )
    assert [row.seq for row in back] == [2, 1]


async def test_a_foreign_cursor_is_refused(world: World) -> None:
    conversation, *_ = await world.conversation(TENANT, PRINCIPAL, [Said()])
    other, *_ = await world.conversation(TENANT, uuid4(), [Said()])
    for cursor in (uuid4(), other):
        with pytest.raises(Problem) as refused:
            await world.store.conversations(TENANT, PRINCIPAL, page(after=cursor))
        assert refused.value.slug == "cursor-invalid"
        with pytest.raises(Problem):
            await world.store.messages(TENANT, PRINCIPAL, conversation, page(before=cursor))


async def test_a_turn_and_its_answer_belong_to_their_tenant(world: World) -> None:
    _, turn_id = await world.conversation(TENANT, PRINCIPAL, [Said(answer="é")])
    store = world.store
    turn = await store.turn(TENANT, turn_id)
    assert turn is not None
    assert (turn.status, turn.seq, turn.length, turn.upto) == ("completed", 1, 2, EntryId(1, 2))
    assert turn.usage is not None
    assert turn.usage.output == 4
    assert turn.stops_without_watchers
    assert await store.answer(TENANT, turn_id) == "é"
    assert await store.turn(uuid4(), turn_id) is None
    assert await store.answer(uuid4(), turn_id) == ""


async def test_a_running_answer_is_listed_as_running(world: World) -> None:
    conversation, turn_id = await world.conversation(
        TENANT, PRINCIPAL, [Said(status="generating", answer="", upto=None)]
    )
    await world.checkpoint(TENANT, turn_id, "so far", "1-3")
    store = world.store
    rows = await store.messages(TENANT, PRINCIPAL, conversation, page())
    assert (rows[1].status, rows[1].content) == ("generating", "")
    expected = Checkpoint("so far", EntryId(1, 3))
    assert await store.checkpoints(TENANT, [turn_id, uuid4()]) == {turn_id: expected}
    assert await store.checkpoints(uuid4(), [turn_id]) == {}


async def test_outcomes_are_found_for_many_requests_of_many_tenants(world: World) -> None:
    asked = []
    for tenant in (TENANT, uuid4()):
        conversation, turn = await world.conversation(tenant, PRINCIPAL, [Said()])
        asked.append(Asked(tenant, uuid4()))
        await world.outcome(tenant, asked[-1].request_id, conversation, turn)
    missing = Asked(TENANT, uuid4())
    found = await world.store.outcomes([*asked, missing])
    assert {row.request_id for row in found} == {one.request_id for one in asked}
    assert {(row.decision, row.seq, row.policy) for row in found} == {("accepted", 1, "serialize")}


async def test_facts_of_many_turns_come_at_once(world: World) -> None:
    other = uuid4()
    _, ended = await world.conversation(TENANT, PRINCIPAL, [Said()])
    _, running = await world.conversation(
        other, PRINCIPAL, [Said(status="generating", answer="", upto=None)]
    )
    await world.checkpoint(other, running, "a", "2-2")
    watched = [(TENANT, ended), (other, running), (TENANT, uuid4())]
    facts = {one.turn.id: one for one in await world.store.facts(watched)}
    assert set(facts) == {ended, running}
    assert facts[ended].turn.has_ended
    assert facts[ended].checkpoint is None
    assert facts[running].checkpoint == Checkpoint("a", EntryId(2, 2))


async def test_plans_are_read_as_stored(world: World) -> None:
    _, turn = await world.conversation(TENANT, PRINCIPAL, [Said()])
    assert list(await world.store.plans(TENANT, turn)) == []
    await world.plan(TENANT, turn, {"blocks": [], "fingerprint": "f"})
    (plan,) = await world.store.plans(TENANT, turn)
    assert (plan.step_no, plan.plan) == (1, {"blocks": [], "fingerprint": "f"})
    assert list(await world.store.plans(uuid4(), turn)) == []


@pytest.mark.postgres
async def test_operators_make_list_and_revoke_keys_with_an_audit_row_each(
    database: TestDatabase,
) -> None:
    ops = await Database.open(database.url_of("ops"), schema="frontend_gateway", size=2)
    made = {
        "key": uuid4(),
        "tenant": uuid4(),
        "principal": uuid4(),
        "scopes": ["chat"],
        "hash": hash_api_key("k"),
    }
    create = (
        "select * from frontend_gateway.op_create_key(%(key)s, 'T', %(tenant)s, 'P', "
        "%(principal)s, %(scopes)s, 'tw_abc', %(hash)s, 'me')"
    )
    (first,) = await ops.fetch(create, made)
    again = {**made, "key": uuid4(), "tenant": uuid4(), "principal": uuid4()}
    (second,) = await ops.fetch(create, {**again, "hash": hash_api_key("l")})
    assert (second["tenant_id"], second["principal_id"]) == (made["tenant"], made["principal"])
    door = {"id": uuid4(), "tenant": uuid4()}
    (door_key,) = await ops.fetch(
        "select * from frontend_gateway.op_create_door_key(%(id)s, 'T', %(tenant)s, 'me')", door
    )
    assert door_key["tenant_id"] == made["tenant"]
    revoke = "select frontend_gateway.op_revoke_key(%(id)s, 'me') as changed"
    for id_ in (first["key_id"], door["id"]):
        assert [(await ops.fetch(revoke, {"id": id_}))[0]["changed"] for _ in range(2)] == [
            True,
            False,
        ]
    listed = await ops.fetch("select * from frontend_gateway.op_list_keys('T')")
    assert [(row["kind"], row["revoked_at"] is None) for row in listed] == [
        ("api", False),
        ("api", True),
        ("door", False),
    ]
    everybodys = await ops.fetch("select * from frontend_gateway.op_list_keys(null)")
    assert GATEWAY_DOOR_KEY_ID in {row["key_id"] for row in everybodys}
    await ops.close()
    async with await psycopg.AsyncConnection.connect(database.admin_url) as admin:
        cursor = await admin.execute(
            "select action, count(*) from frontend_gateway.operator_actions group by 1 order by 1"
        )
        assert await cursor.fetchall() == [
            ("door_key.created", 1),
            ("key.created", 2),
            ("key.revoked", 2),
        ]


@pytest.mark.postgres
async def test_the_services_role_can_neither_make_nor_change_keys(database: TestDatabase) -> None:
    service = await Database.open(
        database.url_of("frontend_gateway"), schema="frontend_gateway", size=2
    )
    for statement in (
        "insert into tenants values (gen_random_uuid(), 'x', now())",
        "update api_keys set revoked_at = null",
        "update door_keys set revoked_at = null",
        "select * from operator_actions",
        "select op_list_keys()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await service.fetch(statement)
    await service.close()


@pytest.mark.postgres
async def test_ingestion_sees_door_keys_and_nothing_else(database: TestDatabase) -> None:
    ingestion = await Database.open(database.url_of("ingestion"), schema="ingestion", size=2)
    rows = await ingestion.fetch("select * from frontend_gateway.door_keys_v1")
    assert [(row["id"], row["tenant_id"]) for row in rows] == [(GATEWAY_DOOR_KEY_ID, None)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await ingestion.fetch("select * from frontend_gateway.api_keys")
    await ingestion.close()
