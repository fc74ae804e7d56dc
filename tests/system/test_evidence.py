"""What operators set and read, on real services: instructions, and the payloads that are kept."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio

from tests.rig.house import House
from tests.rig.provider import Rule
from tests.rig.stored_plans import as_published
from tests.rig.waiting import until
from turnwire import AsyncClient, ProblemError

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]


@dataclass
class Operator:
    """A conversation, a client with an operator's rights, and one that may read kept payloads."""

    house: House
    client: AsyncClient
    prompts: AsyncClient
    conversation: UUID
    tenant: str

    async def instruct(self, path: str, **texts: str) -> dict[str, Any]:
        """Set instructions."""
        return await self.client.request("PUT", path, body=texts)

    async def asked(self, text: str) -> tuple[UUID, str]:
        """Ask something; the turn, and the system message that the provider got."""
        turn = await self.client.post(self.conversation, text)
        assert (await self.client.follow(turn.turn_id).result()).is_complete
        [call] = [r for r in self.house.provider.requests if r.last_user_message == text]
        system = [m["content"] for m in call.json["messages"] if m["role"] == "system"]
        return turn.turn_id, "".join(system)

    async def plan(self, turn: UUID) -> dict[str, Any]:
        """The plan of a turn's only step, in the published form."""
        found = await self.client.plan(turn)
        return as_published(dict(found.steps[0].plan))


@pytest_asyncio.fixture(loop_scope="session")
async def operator(house: House) -> AsyncIterator[Operator]:
    tenant = f"operators-{uuid4().hex[:6]}"
    key = await house.make_key(tenant, scopes=["admin", "chat", "read"])
    reader = await house.make_key(tenant, scopes=["captures", "read"])
    async with (
        AsyncClient(house.gateway_url(), key.key) as client,
        AsyncClient(house.gateway_url(), reader.key) as prompts,
    ):
        made = await client.create_conversation()
        yield Operator(house, client, prompts, made.id, tenant)


async def test_instructions_head_the_prompt_and_every_plan_names_the_version_it_used(
    operator: Operator,
) -> None:
    own = f"/v1/conversations/{operator.conversation}/instructions"
    await operator.instruct("/v1/instructions", system_policy="Be kind.", workspace="Say tu.")
    await operator.instruct(own, workspace="Rhyme.")
    first, sent = await operator.asked(f"{uuid4()} one")
    assert sent == "Be kind.\n\nSay tu.\n\nRhyme."

    told = await operator.instruct("/v1/instructions", workspace="Say vous.")
    assert (told["workspace"]["version"], told["system_policy"]["version"]) == (2, 1)
    second, sent = await operator.asked(f"{uuid4()} two")
    assert sent == "Be kind.\n\nSay vous.\n\nRhyme."

    for turn, version in ((first, "1"), (second, "2")):
        used = [
            (one["kind"], one["scope"], one["version"])
            for one in (await operator.plan(turn))["instructions"]
        ]
        assert used == [
            ("system_policy", "tenant", "1"),
            ("workspace", "tenant", version),
            ("workspace", "conversation", "1"),
        ]
        assert (await operator.client.replay(turn))["equal"]
    found = await operator.client.explain(first, text="Say tu")
    assert (found["verdict"], found["trust"], found["section"]) == (
        "present",
        "operator",
        "workspace",
    )
    assert (await operator.client.explain(second, text="Say tu"))["verdict"] == "absent"
    assert (await operator.client.diff(second))["is_healthy"]


async def test_a_kept_payload_is_what_was_sent_and_reading_it_is_written_down(
    operator: Operator,
) -> None:
    text = f"{uuid4()} no"
    operator.house.provider.script(Rule(match=text, status=400))
    turn = await operator.client.post(operator.conversation, text)
    assert (await operator.client.follow(turn.turn_id).result()).status == "failed"
    path = f"/v1/turns/{turn.turn_id}/captures"
    kept: list[dict[str, Any]] = []

    async def is_kept() -> bool:
        try:
            kept[:] = [await operator.prompts.request("GET", path)]
        except ProblemError as problem:
            if problem.slug != "not-found":
                raise
        return bool(kept)

    await until(is_kept)
    [call] = [r for r in operator.house.provider.requests if r.last_user_message == text]
    assert text in kept[0]["payload"]
    assert kept[0]["cause"] == "provider_refused"
    assert call.json["messages"][-1]["content"] == text
    with pytest.raises(ProblemError) as refused:
        await operator.client.request("GET", path)
    assert refused.value.slug == "forbidden"

    await operator.client.request("PUT", "/v1/capture", body={"posture": "none"})
    with pytest.raises(ProblemError) as gone:
        await operator.prompts.request("GET", path)
    assert gone.value.slug == "not-found"
    rows = await operator.house.rows(
        "select found from context_assembly.capture_reads where turn_id = %s order by at",
        turn.turn_id,
    )
    assert [row["found"] for row in rows][-2:] == [True, False]
