"""Changes of what is not there, not ours, deleted, running or over: refused, without a trace."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import pytest
import pytest_asyncio

from tests.rig.house import ApiKey, House
from tests.rig.provider import Rule
from tests.rig.waiting import until
from tests.rig.web import Answer, Web, body
from turnwire import AcceptedTurn, AsyncClient

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

CONVERSATIONS = ("conversations", "branches", "turns", "messages", "archived_messages")
BESIDE = ("message_tokens", "transitions", "open_turns", "purged_conversations")
PASSING = frozenset({"progressed_at"})
"""When a turn was last told again; moves by itself."""


@dataclass(frozen=True)
class Thing:
    """A turn with its question and answer."""

    conversation: UUID
    turn: UUID
    question: UUID
    answer: UUID

    @classmethod
    def of(cls, conversation: UUID, turn: AcceptedTurn) -> "Thing":
        return cls(conversation, turn.turn_id, turn.user_message_id, turn.assistant_message_id)

    @classmethod
    def unknown(cls, conversation: UUID) -> "Thing":
        return cls(conversation, uuid4(), uuid4(), uuid4())


@dataclass
class Scene:
    """One person's things in every state, and some of other people's."""

    house: House
    web: Web
    tenants: list[UUID]
    things: dict[str, Thing] = field(default_factory=dict)

    async def stored(self) -> dict[str, list[str]]:
        """Every row that ingestion holds of these tenants, but for what became of requests."""
        found: dict[str, list[str]] = {}
        for table in (*CONVERSATIONS, *BESIDE):
            rows = await self.house.rows(
                f"select * from ingestion.{table} where tenant_id = any(%s)",  # noqa: S608 -- names from above
                self.tenants,
            )
            found[table] = sorted(_line(row) for row in rows)
        for table in ("context_assembly.steps", "context_assembly.captures"):
            rows = await self.house.rows(
                f"select step_id from {table} where tenant_id = any(%s)",  # noqa: S608 -- names from above
                self.tenants,
            )
            found[table] = sorted(_line(row) for row in rows)
        return found

    async def send(self, wish: str, thing: Thing) -> Answer:
        """Ask for a change of a thing."""
        method, path, data = WISHES[wish]
        headers = {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex}
        asked = path.format(
            talk=f"/v1/conversations/{thing.conversation}",
            turn=thing.turn,
            question=thing.question,
            answer=thing.answer,
        )
        return await self.web.send(method, asked, None if data is None else body(**data), headers)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in row.items() if k not in PASSING}, default=str)


WISHES: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "cancel": ("POST", "/v1/turns/{turn}/cancel", None),
    "regenerate": ("POST", "/v1/turns/{turn}/regenerate", {}),
    "continue": ("POST", "/v1/turns/{turn}/continue", {}),
    "edit": ("PATCH", "{talk}/messages/{question}", {"content": "In other words"}),
    "edit an answer": ("PATCH", "{talk}/messages/{answer}", {"content": "In other words"}),
    "delete": ("DELETE", "{talk}/messages/{question}", None),
    "delete an answer": ("DELETE", "{talk}/messages/{answer}", None),
}

GONE = (404, "not-found")
OVER = (409, "turn-already-terminal")
RUNNING = (409, "turn-in-progress")
NEVER_THERE = dict.fromkeys(WISHES, GONE)

EXPECTED: dict[str, dict[str, tuple[int, str]]] = {
    "unknown": NEVER_THERE,
    "somebody else's": NEVER_THERE,
    "another tenant's": NEVER_THERE,
    "a deleted conversation's": NEVER_THERE,
    "deleted": {**NEVER_THERE, "cancel": OVER},
    "running": {
        "regenerate": RUNNING,
        "continue": RUNNING,
        "edit": RUNNING,
        "edit an answer": (409, "not-editable"),
        "delete": RUNNING,
        "delete an answer": RUNNING,
    },
    "waiting": {
        "regenerate": RUNNING,
        "continue": RUNNING,
        "edit": RUNNING,
        "edit an answer": (409, "not-editable"),
        "delete": RUNNING,
        "delete an answer": RUNNING,
    },
    "over": {
        "cancel": OVER,
        "continue": (409, "not-continuable"),
        "edit an answer": (409, "not-editable"),
    },
}
CASES = [(thing, wish) for thing, wishes in EXPECTED.items() for wish in wishes]


async def _answered(client: AsyncClient, conversation: UUID, text: str) -> Thing:
    turn = await client.post(conversation, text)
    await client.follow(turn.turn_id).result()
    return Thing.of(conversation, turn)


async def _elsewhere(house: House, key: ApiKey) -> Thing:
    async with AsyncClient(house.gateway_url(), key.key) as client:
        made = await client.create_conversation()
        return await _answered(client, made.id, "Whose is this?")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scene(house: House) -> AsyncIterator[Scene]:
    name = f"changes-{uuid4().hex[:6]}"
    key = await house.make_key(name)
    neighbour = await house.make_key(name, "a colleague")
    stranger = await house.make_key(f"{name}-elsewhere")
    marker = uuid4().hex[:8]
    house.provider.script(Rule(match=f"{marker} busy", hang_before_head=True))
    async with (
        AsyncClient(house.gateway_url(), key.key) as client,
        aiohttp.ClientSession() as session,
    ):
        tenants = [key.tenant_id, stranger.tenant_id]
        scene = Scene(house, Web(house, session, key), tenants)
        talk, busy, gone = [(await client.create_conversation()).id for _ in range(3)]
        things = scene.things
        things["over"] = await _answered(client, talk, "Keep this")
        things["deleted"] = await _answered(client, talk, "Forget this")
        for message in (things["deleted"].question, things["deleted"].answer):
            await client.delete_message(talk, message)
        things["a deleted conversation's"] = await _answered(client, gone, "And all of this")
        await client.delete_conversation(gone)
        things["unknown"] = Thing.unknown(talk)
        things["somebody else's"] = await _elsewhere(house, neighbour)
        things["another tenant's"] = await _elsewhere(house, stranger)
        await house.come_to_rest()
        running = await client.post(busy, f"{marker} busy")
        things["running"] = Thing.of(busy, running)
        things["waiting"] = Thing.of(busy, await client.post(busy, "After that"))

        async def is_generating() -> bool:
            return (await client.turn(running.turn_id)).status == "generating"

        await until(is_generating)
        yield scene
        for busy_turn in (things["waiting"].turn, things["running"].turn):
            await client.cancel(busy_turn)
        await house.come_to_rest()


@pytest.mark.parametrize(("thing", "wish"), CASES)
async def test_what_cannot_be_changed_is_refused_by_name_and_nothing_changes(
    scene: Scene, thing: str, wish: str
) -> None:
    before = await scene.stored()

    answer = await scene.send(wish, scene.things[thing])

    assert (answer.status, answer.code) == EXPECTED[thing][wish]
    if answer.code in ("turn-in-progress", "turn-already-terminal"):
        assert answer.body["turn_id"] == str(scene.things[thing].turn)
    assert await scene.stored() == before
    if answer.code == "not-found":
        unknown = await scene.send(wish, scene.things["unknown"])
        assert answer.told == unknown.told, "what is somebody else's looks like what is not there"
