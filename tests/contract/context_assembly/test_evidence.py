"""Instructions, postures and captures as front ends and operators reach them, each as its role."""

from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from libs.clock import SystemClock
from libs.postgres import Database
from services.context_assembly.core.posture import CaptureChoice
from services.context_assembly.ports import ConversationKey
from services.context_assembly.postures import PostgresPostures
from tests.rig.parts import TestDatabase
from tests.rig.planning import (
    Chat,
    PostgresWorld,
    ended,
    postgres_world,
    start,
)
from tests.rig.planning_handlers import handlers

pytestmark = pytest.mark.postgres

SET = (
    "select context_assembly.op_set_instructions(%(tenant)s::uuid, %(id)s::uuid, %(scope)s::uuid,"
    " %(kind)s::text, %(text)s::text, %(sha)s::text, 'someone') as version"
)
READ = (
    "select * from context_assembly.instructions_v1(%(tenants)s::uuid[], %(scopes)s::uuid[],"
    " %(kinds)s::text[], %(versions)s::int[])"
)
POSTURE = (
    "select context_assembly.op_set_capture_posture(%(tenant)s::uuid, %(posture)s::text,"
    " %(share)s::int, 'someone')"
)
FLAG = (
    "select context_assembly.op_flag_conversation(%(tenant)s::uuid, %(chat)s::uuid,"
    " %(on)s::boolean, 'someone')"
)
CAPTURE = (
    "select * from context_assembly.read_capture(%(tenant)s::uuid, %(turn)s::uuid, %(step)s::int,"
    " %(reader)s::uuid, %(key)s::uuid, %(id)s::uuid, %(request)s::uuid)"
)


@pytest.fixture
async def world(database: TestDatabase) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database) as real:
        yield real


@pytest.fixture
async def gateway(database: TestDatabase) -> AsyncIterator[Database]:
    opened = await Database.open(database.url_of("frontend_gateway"), schema="frontend_gateway")
    yield opened
    await opened.close()


async def put(gateway: Database, tenant: UUID, scope: UUID, kind: str, text: str) -> int:
    rows = await gateway.fetch(
        SET,
        {
            "tenant": tenant,
            "id": uuid4(),
            "scope": scope,
            "kind": kind,
            "text": text,
            "sha": sha256(text.encode()).hexdigest(),
        },
        tenants=[tenant],
    )
    return int(rows[0]["version"])


async def read(
    gateway: Database, tenant: UUID, scope: UUID, kind: str, version: int | None = None
) -> list[dict[str, Any]]:
    asked = {"tenants": [tenant], "scopes": [scope], "kinds": [kind], "versions": [version]}
    return await gateway.fetch(READ, asked, tenants=[tenant])


async def test_each_new_text_is_a_new_version_and_old_ones_stay_readable(
    gateway: Database, world: PostgresWorld
) -> None:
    del world
    tenant, chat = uuid4(), uuid4()

    versions = [
        await put(gateway, tenant, tenant, "system_policy", "one"),
        await put(gateway, tenant, tenant, "system_policy", "two"),
        await put(gateway, tenant, tenant, "system_policy", "two"),
        await put(gateway, tenant, tenant, "system_policy", "one"),
        await put(gateway, tenant, chat, "workspace", "other scope"),
    ]

    assert versions == [1, 2, 2, 3, 1]
    [current] = await read(gateway, tenant, tenant, "system_policy")
    assert (current["version"], current["text"], current["is_current"]) == (3, "one", True)
    [old] = await read(gateway, tenant, tenant, "system_policy", 2)
    assert (old["text"], old["is_current"], old["set_by"]) == ("two", False, "someone")
    assert await read(gateway, tenant, chat, "system_policy") == []


async def test_instructions_of_a_tenant_that_is_not_named_are_neither_read_nor_set(
    gateway: Database, world: PostgresWorld
) -> None:
    mine, other = uuid4(), uuid4()
    await put(gateway, other, other, "workspace", "secret")

    asked = {"tenants": [other], "scopes": [other], "kinds": ["workspace"], "versions": [None]}
    assert await gateway.fetch(READ, asked, tenants=[mine]) == []
    with pytest.raises(psycopg.Error) as caught:
        await gateway.fetch(
            SET,
            {
                "tenant": other,
                "id": uuid4(),
                "scope": other,
                "kind": "workspace",
                "text": "x",
                "sha": "x",
            },
            tenants=[mine],
        )
    assert caught.value.sqlstate == "TW005"
    rows = await world.fetch("select text from context_assembly.instructions")
    assert rows == [{"text": "secret"}]


async def captured(world: PostgresWorld, chat: Chat) -> tuple[UUID, bytes]:
    """A turn that failed, and the payload that was captured."""
    started = await start(world, chat, "What went wrong?")
    service = handlers(world)
    await service.handle([started])
    turn = started.event.turn_id
    payload = (await world.payloads(chat))[turn]
    await world.end_turn(chat, turn, status="failed")
    await service.handle([ended(chat, turn, "failed", "provider_refused")])
    return turn, payload


def asked_by(tenant: UUID, turn: UUID, step: int | None = None) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "turn": turn,
        "step": step,
        "reader": uuid4(),
        "key": uuid4(),
        "id": uuid4(),
        "request": uuid4(),
    }


async def test_reading_a_capture_is_written_down_found_or_not(
    gateway: Database, world: PostgresWorld
) -> None:
    chat = Chat()
    turn, payload = await captured(world, chat)

    found = asked_by(chat.tenant_id, turn)
    [row] = await gateway.fetch(CAPTURE, found, tenants=[chat.tenant_id])
    assert (row["step_no"], row["cause"], bytes(row["payload"])) == (1, "provider_refused", payload)
    missing = asked_by(chat.tenant_id, turn, step=2)
    assert await gateway.fetch(CAPTURE, missing, tenants=[chat.tenant_id]) == []

    audit = await world.fetch(
        "select id, reader, key_id, request_id, turn_id, found, step_id is not null as has_step"
        " from context_assembly.capture_reads order by found desc"
    )
    assert audit == [
        {
            "id": asked["id"],
            "reader": asked["reader"],
            "key_id": asked["key"],
            "request_id": asked["request"],
            "turn_id": turn,
            "found": is_found,
            "has_step": is_found,
        }
        for asked, is_found in ((found, True), (missing, False))
    ]


async def test_a_capture_of_another_tenant_is_not_there(
    gateway: Database, world: PostgresWorld
) -> None:
    chat, other = Chat(), Chat()
    turn, _ = await captured(world, chat)

    assert (
        await gateway.fetch(CAPTURE, asked_by(other.tenant_id, turn), tenants=[other.tenant_id])
        == []
    )
    with pytest.raises(psycopg.Error) as caught:
        await gateway.fetch(CAPTURE, asked_by(chat.tenant_id, turn), tenants=[other.tenant_id])
    assert caught.value.sqlstate == "TW005"


@pytest.mark.parametrize(
    "service", ["frontend_gateway", "ingestion", "context_assembly", "llm_gateway", "ops"]
)
async def test_nobody_selects_captures_or_their_audit(
    service: str, database: TestDatabase, world: PostgresWorld
) -> None:
    del world
    async with await psycopg.AsyncConnection.connect(database.url_of(service)) as connection:
        for table in ("captures", "capture_reads"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await connection.execute(f"select * from context_assembly.{table}")  # noqa: S608
            await connection.rollback()


async def test_choosing_none_deletes_what_was_kept_and_another_tenants_stays(
    gateway: Database, world: PostgresWorld
) -> None:
    chat, other = Chat(), Chat()
    await captured(world, chat)
    kept, _ = await captured(world, other)

    chosen = {"tenant": chat.tenant_id, "posture": "none", "share": 1_000}
    await gateway.fetch(POSTURE, chosen, tenants=[chat.tenant_id])

    assert await world.captures(chat) == {}
    assert set(await world.captures(other)) == {kept}


async def test_a_copy_of_postures_follows_what_was_chosen(
    gateway: Database, world: PostgresWorld
) -> None:
    default = CaptureChoice("failures", 5)
    copy = PostgresPostures(world.database, clock=SystemClock(), default=default)
    tenant, chat = uuid4(), uuid4()
    flagged = ConversationKey(tenant, chat)
    await copy.reload()
    assert (copy.choice_of(tenant), copy.is_flagged(flagged)) == (default, False)

    for posture, share in (("none", 0), ("failures", 70)):
        chosen = {"tenant": tenant, "posture": posture, "share": share}
        await gateway.fetch(POSTURE, chosen, tenants=[tenant])
    for _ in range(2):
        await gateway.fetch(FLAG, {"tenant": tenant, "chat": chat, "on": True}, tenants=[tenant])
    await copy.reload()
    assert copy.choice_of(tenant) == CaptureChoice("failures", 70)
    assert copy.is_flagged(flagged)
    assert not copy.is_flagged(ConversationKey(uuid4(), chat))

    await gateway.fetch(FLAG, {"tenant": tenant, "chat": chat, "on": False}, tenants=[tenant])
    await copy.reload()
    assert not copy.is_flagged(flagged)


async def test_a_copy_of_postures_stays_while_it_cannot_be_read(
    gateway: Database, database: TestDatabase, world: PostgresWorld
) -> None:
    del world
    tenant = uuid4()
    chosen = {"tenant": tenant, "posture": "none", "share": 0}
    await gateway.fetch(POSTURE, chosen, tenants=[tenant])
    opened = await Database.open(database.url_of("context_assembly"), schema="context_assembly")
    copy = PostgresPostures(opened, clock=SystemClock(), default=CaptureChoice("failures", 0))
    await copy.reload()
    await opened.close()

    with pytest.raises(psycopg.Error):
        await copy.reload()

    assert copy.choice_of(tenant) == CaptureChoice("none", 0)
