"""A projection from rows and from the topic is the same, and what differs is found and named."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from libs.operating import Acts, Reads
from libs.postgres import Database
from services.ops.bars import Bar
from services.ops.operations import Operations
from services.ops.projections import TurnTable
from services.ops.reconciling import reconcile
from services.ops.replaying import replay
from services.ops.settings import OpsSettings
from services.ops.topic_reader import TopicReader
from tests.rig.house import House
from tests.rig.provider import Rule

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

UNSEEN = Bar()


@asynccontextmanager
async def operated(house: House) -> AsyncIterator[Operations]:
    """The house, as its operator's command line reaches it."""
    url = house.stack.service_database_url("ops")
    settings = OpsSettings(
        database_url=url, KAFKA_BOOTSTRAP_SERVERS=house.stack.kafka_bootstrap_servers
    )  # type: ignore[call-arg, arg-type]  # by the names of the environment
    database = await Database.open(url, schema="turnwire", size=4)
    try:
        yield Operations(Reads(database), Acts(database, actor="tests"), database, settings)
    finally:
        await database.close()


async def some_turns(house: House) -> set[str]:
    """Turns of several ends; their ids."""
    client = await house.client(f"rebuild-{uuid4().hex[:6]}")
    conversation = await client.conversation()
    marker = f"fails {uuid4().hex[:6]}"
    house.provider.script(Rule(match=marker, status=400))
    posts = [
        await client.say(conversation, "One"),
        await client.say(conversation, marker),
        await client.say(conversation, "Two"),
    ]
    await house.come_to_rest()
    return {str(post.turn_id) for post in posts}


async def test_rows_and_topic_give_the_same_table(house: House, tmp_path: Path) -> None:
    turns = await some_turns(house)
    async with operated(house) as operations:
        of_rows, of_topic = tmp_path / "rows.sqlite", tmp_path / "topic.sqlite"
        await replay(UNSEEN, operations, of_rows, "postgres", again=False)
        first = await replay(UNSEEN, operations, of_topic, "topic", again=False)
        repeated = await replay(UNSEEN, operations, of_topic, "topic", again=False)
        more = await some_turns(house)
        later = await replay(UNSEEN, operations, of_topic, "topic", again=False)
    with TurnTable.opened(of_rows) as table:
        rows = {row[0]: row for row in table.turns()}
    with TurnTable.opened(of_topic) as table:
        told = {row[0]: row for row in table.turns()}

    assert turns <= set(rows)
    assert {turn: rows[turn] for turn in turns} == {turn: told[turn] for turn in turns}
    assert sorted(rows[turn][1] for turn in turns) == ["completed", "completed", "failed"]
    assert first["read"] >= 9  # accepted, started, ended of each
    assert (repeated["read"], repeated["resumed"]) == (0, True)
    assert 9 <= later["read"] < first["read"] + 9
    assert more <= set(told)


async def test_a_replay_that_was_stopped_goes_on_where_it_was(house: House, tmp_path: Path) -> None:
    await some_turns(house)
    path = tmp_path / "turns.sqlite"
    async with operated(house) as operations:
        async with TopicReader.opened(operations.settings, "turn.events") as reader:
            whole = reader.stretch.count_from({})
            half = {p: end - (end - reader.stretch.begins[p]) // 2
                    for p, end in reader.stretch.ends.items()}  # fmt: skip
        with TurnTable.opened(path) as table:
            place = {str(p): str(offset) for p, offset in half.items()}
            table.take("topic", [], place, is_last=False)
        done = await replay(UNSEEN, operations, path, "topic", again=False)
        anew = await replay(UNSEEN, operations, path, "topic", again=True)

    assert done["resumed"] is True
    assert 0 < done["read"] < whole
    assert anew["read"] >= whole


async def test_what_differs_between_rows_and_topics_is_named(house: House) -> None:
    turns = sorted(await some_turns(house))
    async with operated(house) as operations:
        before = await reconcile(UNSEEN, operations)
        assert before.counts["open_turn"] == before.counts["other_end"] == 0
        assert before.counts["event_without_turn"] == before.counts["end_not_told"] == 0
        assert before.turns >= 3
        assert before.records >= 9

        await house.rows(
            "insert into ingestion.open_turns (turn_id, tenant_id, conversation_id, branch_id, "
            "state, position, deadline_at, progressed_at) select id, tenant_id, conversation_id, "
            "branch_id, 'generating', 0, now() + interval '1 hour', now() from ingestion.turns "
            "where id = %s returning 1",
            turns[0],
        )
        await house.rows(
            "update ingestion.turns set status = 'cancelled' where id = %s returning 1", turns[1]
        )
        try:
            after = await reconcile(UNSEEN, operations)
        finally:
            await house.rows(
                "delete from ingestion.open_turns where turn_id = %s returning 1", turns[0]
            )
            await house.rows(
                "update ingestion.turns set status = (select m.status from ingestion.messages m "
                "where m.turn_id = turns.id and m.role = 'assistant') where id = %s returning 1",
                turns[1],
            )

    found = {(one.kind, one.subject) for one in after.found}
    assert ("open_turn", turns[0]) in found
    assert ("other_end", turns[1]) in found
