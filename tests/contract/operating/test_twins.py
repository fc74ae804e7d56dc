"""What operators' pages are tested with behaves as the database does."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from libs.operating import Acts, Reads, Refusal
from libs.operating.story import Facts, story
from libs.postgres import Database
from services.frontend_gateway.operators import MemoryOperators, OperatorActs, OperatorReads
from tests.contract.ingestion.lines import Line, writer
from tests.contract.operating.test_operators import dead_letter_of
from tests.rig.parts import TestDatabase
from tests.rig.told_turns import later, letter_row, turn_row

ACTOR = "key:test"
Connection = psycopg.Connection[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class World:
    """A running, a waiting and an ended turn, a dead letter, and one whose bytes are lost."""

    reads: OperatorReads
    acts: OperatorActs
    running: UUID
    waiting: UUID
    ended: UUID
    letter: UUID
    lost: UUID


def in_memory() -> World:
    twin = MemoryOperators()
    unended: dict[str, Any] = {"is_open": True, "ended_at": None, "reason": None}
    rows = {
        "running": turn_row("running", status="generating", **unended),
        "waiting": turn_row(
            "waiting", status="pending", started_at=None, deadline_at=None, **unended
        ),
        "ended": turn_row("ended", key="a key of its own"),
    }
    for row in rows.values():
        told = story(Facts(turn=row), now=later(60))
        twin.stories[row["turn_id"]] = told
        twin.turn_rows.append(dict(told["turn"]))
    twin.letters = [letter_row("letter"), {**letter_row("lost"), "value_bytes": None}]
    ids = {name: row["turn_id"] for name, row in rows.items()}
    letter, lost = (UUID(one["id"]) for one in twin.letters)
    operators = twin.operators()
    return World(operators.reads, operators.acting_as(ACTOR), **ids, letter=letter, lost=lost)


def in_rows(rows: Connection, opened: Database) -> World:
    line, other = Line(rows), Line(rows)
    running = line.post(line.id, "running", status="generating")
    waiting = other.post(other.id, "waiting", status="generating")
    rows.execute(
        "update ingestion.open_turns set deadline_at = null where turn_id = %s", [waiting.id]
    )
    ended = other.post(other.id, "ended", status="failed")
    rows.execute("update ingestion.turns set key = 'a key of its own' where id = %s", [ended.id])
    rows.execute(
        "insert into ingestion.request_outcomes (request_id, tenant_id, outcome, conversation_id, "
        "turn_id, decided_at) select request_id, tenant_id, 'accepted', conversation_id, id, now() "
        "from ingestion.turns"
    )
    letters = (dead_letter_of(rows, line), dead_letter_of(rows, line, value=None))
    return World(
        Reads(opened), Acts(opened, actor=ACTOR), running.id, waiting.id, ended.id, *letters
    )


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        yield in_memory()
        return
    database: TestDatabase = request.getfixturevalue("database")  # made for this one alone
    opened = await Database.open(database.url_of("frontend_gateway"), schema="turnwire", size=2)
    try:
        with writer(database) as rows:
            yield in_rows(rows, opened)
    finally:
        await opened.close()


async def test_acts_are_tried_done_once_and_written_down(world: World) -> None:
    for dry_run in (True, False):
        told = [
            await world.acts.redrive("llm_gateway", world.letter, dry_run=dry_run),
            await world.acts.reap_turn(world.running, dry_run=dry_run),
            await world.acts.end_turn(world.running, "user", dry_run=dry_run),
            await world.acts.end_turn(world.waiting, "internal", dry_run=dry_run),
        ]
        assert [one["act"] for one in told if one] == ["redrive", "reap", "end", "end"]
        assert [one["dry_run"] for one in told if one] == [dry_run] * 4
        ends = [one["effect"].partition(" at once")[0] for one in told[2:] if one]
        assert ends == ["The turn is cancelled (user)", "The turn is failed (internal)"]
        audit = {(a["action"], a["target_id"], a["actor"]) for a in await world.reads.acts()}
        done = {
            ("dead_letter.redriven", str(world.letter), ACTOR),
            ("turn.reaped", str(world.running), ACTOR),
            ("turn.ended", str(world.running), ACTOR),
            ("turn.ended", str(world.waiting), ACTOR),
        }
        assert audit == (set() if dry_run else done)
        letter = await world.reads.dead_letter(world.letter)
        assert letter is not None
        assert letter["is_asked"] is not dry_run

    for turn in (world.running, world.ended, uuid4()):
        assert await world.acts.end_turn(turn, "internal", dry_run=False) is None
        assert await world.acts.reap_turn(turn, dry_run=False) is None
    listed = await world.reads.turns("cancelled", "user")
    assert [one["turn_id"] for one in listed] == [str(world.running)]
    assert await world.reads.turns("open", None) == []


async def test_what_cannot_be_done_is_refused_in_the_same_words(world: World) -> None:
    with pytest.raises(Refusal, match="it has not started"):
        await world.acts.reap_turn(world.waiting, dry_run=False)
    with pytest.raises(Refusal, match="no such reason"):
        await world.acts.end_turn(world.running, "because", dry_run=True)
    with pytest.raises(Refusal, match="are not kept"):
        await world.acts.redrive("llm_gateway", world.lost, dry_run=False)
    assert await world.acts.redrive("ingestion", world.letter, dry_run=False) is None
    assert await world.acts.redrive("llm_gateway", uuid4(), dry_run=False) is None
    assert await world.reads.acts() == []


async def test_turns_are_listed_by_state_and_found_by_name(world: World) -> None:
    async def listed(status: str | None, reason: str | None = None) -> set[str]:
        return {one["turn_id"] for one in await world.reads.turns(status, reason)}

    assert await listed("open") == {str(world.running), str(world.waiting)}
    assert await listed("generating") == {str(world.running)}
    assert await listed("queued") == {str(world.waiting)}
    assert await listed("failed") == {str(world.ended)}
    assert await listed("failed", "user") == set()
    found = await world.reads.search("a key of its own")
    assert {(one["turn_id"], one["found_by"]) for one in found["turns"]} == {
        (str(world.ended), "key")
    }
    (turn,) = (await world.reads.search(str(world.waiting)))["turns"][:1]
    assert turn["turn_id"] == str(world.waiting)
    assert (await world.reads.search(str(world.letter)))["dead_letter"]["reason"] == "bug"
    assert await world.reads.story(uuid4()) is None
