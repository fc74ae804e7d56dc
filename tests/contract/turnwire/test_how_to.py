"""The programs of the page about the client are run as they stand, against a real gateway."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.ports import PlanView
from tests.rig.gateway import AT, GatewayRig, gateway_rig
from tests.rig.stored_plans import plan
from turnwire import Client

PAGE = Path(__file__).parents[3] / "docs/client.md"
PROGRAMS = re.findall(r"^## (.+?)\n.*?^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
TEXTS = ["At ", "9:40 ", "from the old pier."]


@asynccontextmanager
async def answering() -> AsyncIterator[GatewayRig]:
    """A gateway behind which every turn is answered, with a plan."""
    async with gateway_rig() as rig:
        task = asyncio.create_task(_answer_all(rig))
        try:
            yield rig
        finally:
            task.cancel()


async def _answer_all(rig: GatewayRig) -> None:
    answered: set[UUID] = set()
    while True:
        for turn in list(rig.store.turn_rows.values()):
            if turn.id not in answered:
                answered.add(turn.id)
                _store_plan(rig, turn)
                await rig.write(turn, TEXTS)
                await rig.finish(turn, "".join(TEXTS), f"1-{1 + len(TEXTS)}")
        await asyncio.sleep(0.01)


def _store_plan(rig: GatewayRig, turn: TurnView) -> None:
    rows = [row for row in rig.store.message_rows[turn.conversation_id] if row.seq <= turn.seq]
    shown = [(str(row.id), row.role, row.content, row.seq) for row in rows]
    rig.store.plan_rows[turn.id] = [PlanView(uuid4(), 1, plan(shown, turn_id=turn.id), AT)]


def run(program: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run a program of the page; what it defines."""
    exec(compile(program, str(PAGE), "exec"), names)  # noqa: S102 -- our own page
    return names


@pytest.mark.parametrize(("title", "program"), PROGRAMS, ids=[title for title, _ in PROGRAMS])
async def test_a_program_of_the_page_does_what_it_says(
    title: str, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with answering() as rig:
        names: dict[str, Any] = {"url": rig.url, "key": rig.key}
        with Client(rig.url, rig.key) as client:
            names["turn_id"] = await asyncio.to_thread(_talk, client)
            names = await asyncio.to_thread(run, program, names)
            if "test_my_assistant" in names:
                await asyncio.to_thread(_play, names["test_my_assistant"], client)
    said = capsys.readouterr().out
    if title.startswith("Ask, and read"):
        assert said == f"{''.join(TEXTS)}completed True\n"
    if title.startswith("Ask what"):
        assert said.startswith("block 1 of 3, token 0\nHealthy: exactly the earlier answer")


def _talk(client: Client) -> UUID:
    """Two turns; the second one's id."""
    conversation = client.create_conversation()
    client.ask(conversation.id, "When does the ferry leave?")
    return client.ask(conversation.id, "And back?").turn_id


@contextmanager
def _conversation(client: Client) -> Iterator[Any]:
    conversation = client.create_conversation()
    yield conversation
    client.delete_conversation(conversation.id)


def _play(test: Any, client: Client) -> None:
    with _conversation(client) as conversation:
        test(client, conversation)


def test_every_method_of_the_page_is_run() -> None:
    assert len(PROGRAMS) == PAGE.read_text().count("```python")
