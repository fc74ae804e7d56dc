"""Diff, explain and replay over HTTP, from rows in memory and from Postgres by its own SQL.

And what two operators do to a tenant's instructions at the same time.
"""

import asyncio
import unicodedata
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from prometheus_client import CollectorRegistry

from libs.clock import SystemClock
from libs.redis.memory import MemoryDoorbell, MemoryLiveStream, MemoryRedis
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from services.frontend_gateway.app import Adapters, build_app
from services.frontend_gateway.core.cursors import Page
from services.frontend_gateway.memory import MemoryStore
from services.frontend_gateway.operators import MemoryOperators
from tests.contract.frontend_gateway.worlds import Said, World
from tests.rig.gateway import QUICK, Ingestion, serving, settings
from tests.rig.stored_plans import plan

TALK = [
    Said(question="When does the ferry leave?", answer="At 9:40."),
    Said(question="And back?", answer="At 18:05."),
    Said(question="How much is it?", answer="Nine euros."),
]


@dataclass
class Talk:
    """Three turns of one conversation, asked about over HTTP; messages count from 1."""

    world: World
    client: httpx.AsyncClient
    tenant: UUID
    principal: UUID
    id: UUID
    turns: list[UUID]
    rows: list[tuple[str, str, str, int]]

    def ids(self, *seqs: int) -> list[str]:
        return [self.rows[seq - 1][0] for seq in seqs]

    async def shows(self, turn: int, *seqs: int, **more: Any) -> None:
        """Store the plan of a turn, 1 to 3, that shows these messages."""
        shown = [self.rows[seq - 1] for seq in seqs]
        await self.world.plan(
            self.tenant,
            self.turns[turn - 1],
            plan(shown, turn_id=self.turns[turn - 1], base_seq=2 * turn - 1, **more),
        )

    async def diff(self) -> dict[str, Any]:
        """The plan of turn 3 against that of turn 2, which shows messages 1 to 3."""
        await self.shows(2, 1, 2, 3)
        answer = await self.client.get(
            f"/v1/turns/{self.turns[2]}/plan/diff", params={"against": str(self.turns[1])}
        )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def explain(self, text: str) -> dict[str, Any]:
        """Of turn 3."""
        answer = await self.client.post(f"/v1/turns/{self.turns[2]}/explain", json={"text": text})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def foreign(self, tenant: UUID) -> tuple[str, str, str, int]:
        """A message of another conversation."""
        conversation, *_ = await self.world.conversation(tenant, self.principal, [Said()])
        rows = await messages(self.world, tenant, self.principal, conversation)
        return rows[0]


async def messages(
    world: World, tenant: UUID, principal: UUID, conversation: UUID
) -> list[tuple[str, str, str, int]]:
    page = Page(100, None, None, descending=False)
    rows = await world.store.messages(tenant, principal, conversation, page)
    return [(str(row.id), row.role, row.content, row.seq) for row in rows]


@pytest.fixture
async def talk(world: World) -> AsyncIterator[Talk]:
    tenant, principal = uuid4(), uuid4()
    key, _ = await world.key(tenant, principal, ("chat", "read", "admin"))
    conversation, *turns = await world.conversation(tenant, principal, TALK)
    redis = MemoryRedis()
    live = MemoryLiveStream(redis)
    adapters = Adapters(
        store=world.store,
        publisher=Ingestion(MemoryStore(), live),
        live=live,
        bell=MemoryDoorbell(redis),
        clock=SystemClock(),
        metrics=Metrics(CollectorRegistry()),
        tracing=Tracing(),
        operators=MemoryOperators().operators(),
        pace=QUICK,
    )
    async with (
        serving(build_app(settings(), adapters)) as url,
        httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=20
        ) as client,
    ):
        rows = await messages(world, tenant, principal, conversation)
        yield Talk(world, client, tenant, principal, conversation, turns, rows)


async def test_exactly_the_two_new_messages_are_healthy(talk: Talk) -> None:
    await talk.shows(3, 1, 2, 3, 4, 5)
    found = await talk.diff()
    assert (found["pattern"], found["is_healthy"]) == ("two_new", True)
    assert found["added"] == talk.ids(4, 5)


async def test_what_was_trimmed_has_vanished_by_budget(talk: Talk) -> None:
    await talk.shows(3, 3, 4, 5, up_to=2)
    found = await talk.diff()
    assert (found["pattern"], found["is_healthy"]) == ("vanished", True)
    assert found["vanished"] == [{"id": id_, "reason": "budget"} for id_ in talk.ids(1, 2)]
    assert "budget" in found["line"]


async def test_what_was_filtered_has_vanished_with_its_reason(talk: Talk) -> None:
    await talk.world.delete_answer(talk.tenant, talk.turns[0])
    await talk.shows(3, 1, 3, 4, 5)
    found = await talk.diff()
    assert (found["pattern"], found["is_healthy"]) == ("vanished", True)
    assert found["vanished"] == [{"id": talk.ids(2)[0], "reason": "deleted"}]


async def test_what_was_written_twice_is_told(talk: Talk) -> None:
    await talk.shows(3, 1, 2, 2, 3, 4, 5)
    found = await talk.diff()
    assert (found["pattern"], found["is_healthy"]) == ("twice", False)
    assert found["twice"] == talk.ids(2)


@pytest.mark.parametrize("is_own_tenant", [True, False])
async def test_a_message_of_elsewhere_is_foreign(talk: Talk, is_own_tenant: bool) -> None:
    strange = await talk.foreign(talk.tenant if is_own_tenant else uuid4())
    talk.rows.append(strange)
    await talk.shows(3, 1, 2, 3, 4, len(talk.rows), 5)
    found = await talk.diff()
    assert (found["pattern"], found["is_healthy"]) == ("foreign", False)
    assert found["foreign"] == [strange[0]]


async def test_a_range_that_begins_late_is_clipped(talk: Talk) -> None:
    await talk.shows(3, 3, 4, 5)
    found = await talk.diff()
    assert (found["pattern"], found["is_healthy"]) == ("clipped", False)
    assert [gone["id"] for gone in found["vanished"]] == talk.ids(1, 2)


async def test_messages_of_one_time_stamp_that_changed_places_are_swapped(talk: Talk) -> None:
    await talk.shows(3, 2, 1, 3, 4, 5)
    found = await talk.diff()
    assert (found["pattern"], found["is_healthy"]) == ("swapped", False)
    assert set(found["swapped"]) == set(talk.ids(1, 2))


async def test_an_older_version_beside_the_newer_one_is_a_stale_revision(talk: Talk) -> None:
    older, newer = talk.ids(3, 5)
    await talk.world.supersede(talk.id, UUID(older), UUID(newer))
    await talk.shows(3, 1, 2, 3, 4, 5)
    found = await talk.diff()
    assert (found["pattern"], found["is_healthy"]) == ("stale_revision", False)
    assert found["stale"] == [older]


async def test_a_text_that_was_shown_is_present_however_it_is_spelled(talk: Talk) -> None:
    spelled = unicodedata.normalize("NFD", "Führt sie über Gröde?")
    await talk.world.rewrite(talk.id, UUID(talk.ids(3)[0]), spelled)
    await talk.shows(3, 1, 2, 3, 4, 5)
    found = await talk.explain("über  Gröde")
    assert (found["verdict"], found["block"], found["to_block"]) == ("present", 3, 3)
    found = await talk.explain("über Gröde?\nAt 18:05.")
    assert (found["verdict"], found["block"], found["to_block"]) == ("present", 3, 4)


async def test_a_text_that_was_trimmed_is_absent_however_it_is_spelled(talk: Talk) -> None:
    spelled = unicodedata.normalize("NFD", "Führt sie über Gröde?")
    await talk.world.rewrite(talk.id, UUID(talk.ids(1)[0]), spelled)
    await talk.shows(3, 3, 4, 5, up_to=2)
    for asked in ("über Gröde", "Führt sie über Gröde?\n\nAt 9:40."):
        found = await talk.explain(asked)
        assert (found["verdict"], found["reason"]) == ("absent", "budget")
        assert found["budget"] == {"before": 900, "used": 5, "after": 895}
    assert (await talk.explain("Nine euros"))["reason"] == "later"
    assert (await talk.explain("nobody said this"))["reason"] == "not_stored"


async def test_a_replay_names_the_row_that_changed(talk: Talk) -> None:
    await talk.shows(3, 1, 2, 3, 4, 5)
    path = f"/v1/turns/{talk.turns[2]}/replay"
    assert (await talk.client.get(path)).json()["equal"] is True
    await talk.world.rewrite(talk.id, UUID(talk.ids(4)[0]), "At 18:06.")
    found = (await talk.client.get(path)).json()
    assert found["equal"] is False
    assert found["changed"] == [{"id": talk.ids(4)[0], "why": "text_changed"}]


async def test_two_who_set_instructions_at_once_never_pass_their_shared_ceiling(talk: Talk) -> None:
    """600 tokens each, of a section that has room for 1,024."""
    texts = {
        "/v1/instructions": "word " * 600,
        f"/v1/conversations/{talk.id}/instructions": "other " * 600,
    }

    async def put(path: str, text: str) -> int:
        return (await talk.client.put(path, json={"workspace": text})).status_code

    for _ in range(3):
        answers = await asyncio.gather(*(put(path, text) for path, text in texts.items()))
        assert sorted(answers) == [200, 422]
        assert [await put(path, "") for path in texts] == [200, 200]
