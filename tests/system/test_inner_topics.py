"""The topics between the services: what a confused or foreign producer puts there costs nobody."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from schemas.envelope import Data, Event, encode
from schemas.generations import GenerationCompletedV1, GenerationFailedV1
from schemas.registry import CONTEXT_EVENTS, GENERATION_EVENTS, TURN_EVENTS, TURN_REQUESTS
from schemas.steps import StepPlannedV1, StepRefusedV1
from schemas.turns import TurnCancelRequestedV1, TurnEndedV1, TurnStartedV1
from tests.rig.client import Client
from tests.rig.front_end import Visitor
from tests.rig.house import House
from tests.rig.ledger import Post
from tests.rig.provider import Rule
from tests.rig.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

BEYOND_INT = 2**40
BEYOND_BIGINT = 2**63 + 5
"""Numbers that JSON can say and a column cannot hold: a handler fails on them."""


@dataclass(frozen=True, slots=True)
class Running:
    """A turn whose answer hangs after its first words."""

    client: Client
    post: Post
    marker: str
    row: dict[str, Any]
    reader: asyncio.Task[Any]

    async def status(self) -> tuple[str, str | None]:
        turn = await self.client.get(f"/v1/turns/{self.post.turn_id}")
        return turn["status"], turn["reason"]


async def running_turn(house: House, name: str) -> Running:
    marker = f"{name}-{uuid4().hex[:6]}"
    house.provider.script(Rule(match=marker, deltas=("So ", "far."), hang_after=1))
    client = await house.client(f"door-{name}")
    post = await client.send(client.note(await client.conversation(), f"{marker}: go on"))
    reader = asyncio.create_task(client.follow(post))

    async def has_begun() -> bool:
        return post.stream is not None and post.stream.text == "So "

    async def is_generating() -> bool:  # the row follows the stream within a quarter of a second
        turn = await client.get(f"/v1/turns/{post.turn_id}")
        return bool(turn["status"] == "generating")

    await until(has_begun)
    await until(is_generating)
    (row,) = await house.rows(
        "select t.*, s.step_id from ingestion.turns t join context_assembly.steps s "
        "on s.turn_id = t.id where t.id = %s",
        post.turn_id,
    )
    return Running(client, post, marker, row, reader)


async def test_no_dead_request_ends_a_turn(house: House, visitor: Visitor) -> None:
    turn = await running_turn(house, "held")
    front = visitor.front
    value = encode(
        front.event(
            turn.post.conversation_id,
            turn.row["id"],
            visitor.turn().data,
            tenant_id=turn.row["tenant_id"],
        )
    )
    own = str(turn.post.conversation_id).encode()

    for headers in ((), front.key.sign(value)):
        place = await front.publish(TURN_REQUESTS, own, value, headers)
        await house.dead_letter("ingestion", place)

    assert await turn.status() == ("generating", None)
    house.provider.release()
    await asyncio.wait_for(turn.reader, 20)
    assert await turn.status() == ("completed", None)
    (await house.verdict()).require(one_terminal_per_turn=1, stream_equals_store=3)


def planned(row: dict[str, Any], **changes: Any) -> StepPlannedV1:
    return StepPlannedV1.model_validate(
        {
            "step_id": row["step_id"],
            "step_no": 1,
            "branch_id": row["branch_id"],
            "seq": row["seq"],
            "model": "scripted",
            "fingerprint": "0" * 64,
            "deadline_at": row["deadline_at"],
            **changes,
        }
    )


def started(row: dict[str, Any], **changes: Any) -> TurnStartedV1:
    return TurnStartedV1.model_validate(
        {
            "branch_id": row["branch_id"],
            "base_seq": row["base_seq"] or row["seq"],
            "user_message_id": row["user_message_id"],
            "assistant_message_id": row["assistant_message_id"],
            "model": None,
            "options": None,
            "deadline_at": row["deadline_at"] or "2099-01-01T00:00:00Z",
            **changes,
        }
    )


def completed(row: dict[str, Any], **changes: Any) -> GenerationCompletedV1:
    return GenerationCompletedV1.model_validate(
        {
            "step_id": row["step_id"],
            "attempt": 1,
            "finish_reason": "stop",
            "length": 5,
            "sha256": "0" * 64,
            "upto": "1-2",
            "duration_ms": 1,
            **changes,
        }
    )


FOREIGN: list[tuple[str, Callable[[dict[str, Any]], Data], dict[str, str]]] = [
    (TURN_EVENTS, started, {"context_assembly": "context.unknown_turn"}),
    (
        CONTEXT_EVENTS,
        planned,
        {"ingestion": "turn_mismatch", "llm_gateway": "llm.unknown_turn"},
    ),
    (
        CONTEXT_EVENTS,
        lambda _row: StepRefusedV1(reason="internal"),
        {"ingestion": "turn_mismatch"},
    ),
    (GENERATION_EVENTS, completed, {"ingestion": "turn_mismatch"}),
    (
        GENERATION_EVENTS,
        lambda row: GenerationFailedV1(step_id=row["step_id"], attempt=1, reason="internal"),
        {"ingestion": "turn_mismatch"},
    ),
]


async def test_events_of_a_tenant_that_does_not_own_the_conversation_are_set_aside(
    house: House, visitor: Visitor
) -> None:
    turn = await running_turn(house, "foreign")
    front = visitor.front  # its tenant is not the turn's
    own = str(turn.post.conversation_id).encode()

    for topic, data_of, parked in FOREIGN:
        event = front.event(turn.post.conversation_id, turn.row["id"], data_of(turn.row))
        place = await front.publish(topic, own, encode(event))
        for schema, reason in parked.items():
            dead = await house.dead_letter(schema, place)
            assert (dead["reason"], dead["tenant_id"]) == (reason, front.key.tenant_id)

    # These two ask for clean-up; of that tenant there is nothing to clean up.
    clean_up: list[Data] = [
        TurnCancelRequestedV1(reason="user"),
        TurnEndedV1(status="completed", reason=None, length=0, usage=None),
    ]
    for data in clean_up:
        event = front.event(turn.post.conversation_id, turn.row["id"], data)
        await front.publish(TURN_EVENTS, own, encode(event))
        await is_handled(house, event)

    assert await turn.status() == ("generating", None)
    house.provider.release()
    await asyncio.wait_for(turn.reader, 20)
    assert await turn.status() == ("completed", None)
    calls = [r for r in house.provider.requests if turn.marker in r.last_user_message]
    assert len(calls) == 1
    (await house.verdict()).require(one_terminal_per_turn=1, stream_equals_store=3)


async def is_handled(house: House, event: Event[Any]) -> None:
    """Wait until llm_gateway has decided about an event."""

    async def is_known() -> bool:
        rows = await house.rows("select 1 from llm_gateway.inbox where event_id = %s", event.id)
        return bool(rows)

    await until(is_known)


async def test_garbage_on_the_inner_topics_is_set_aside_and_the_partition_goes_on(
    house: House, visitor: Visitor
) -> None:
    client = await house.client("door-garbage")
    conversation = await client.conversation()
    own = str(conversation).encode()
    readers = {
        TURN_EVENTS: ("context_assembly", "llm_gateway"),
        CONTEXT_EVENTS: ("ingestion", "llm_gateway"),
        GENERATION_EVENTS: ("ingestion",),
    }

    for topic, schemas in readers.items():
        for value, reason in ((b"\xff\x00", "malformed"), (None, "malformed")):
            place = await visitor.front.publish(topic, own, value)
            for schema in schemas:
                dead = await house.dead_letter(schema, place)
                assert (dead["reason"], dead["value"]) == (reason, value)

    post = await client.say(conversation, "And still you answer?")
    assert post.stream is not None
    assert post.stream.done is not None
    assert post.stream.done["status"] == "completed"


@pytest.mark.parametrize(
    ("topic", "schema", "data"),
    [
        (CONTEXT_EVENTS, "llm_gateway", lambda row: planned(row, step_no=BEYOND_INT)),
        (GENERATION_EVENTS, "ingestion", lambda row: completed(row, attempt=BEYOND_INT)),
    ],
    ids=[CONTEXT_EVENTS, GENERATION_EVENTS],
)
async def test_an_inner_event_that_cannot_be_handled_ends_its_turn(
    house: House, visitor: Visitor, topic: str, schema: str, data: Callable[[Any], Any]
) -> None:
    turn = await running_turn(house, "poison")
    event = visitor.front.event(
        turn.post.conversation_id,
        turn.row["id"],
        data(turn.row),
        tenant_id=turn.row["tenant_id"],
    )

    place = await visitor.front.publish(
        topic, str(turn.post.conversation_id).encode(), encode(event)
    )
    dead = await house.dead_letter(schema, place)
    await asyncio.wait_for(turn.reader, 20)

    assert dead["reason"] == "bug"
    assert await turn.status() == ("failed", "dead_lettered")
    house.provider.release()
    after = await turn.client.say(turn.post.conversation_id, "And the next?")
    assert after.stream is not None
    assert after.stream.done is not None
    assert after.stream.done["status"] == "completed"


async def test_a_start_that_cannot_be_planned_ends_its_turn(house: House, visitor: Visitor) -> None:
    """The turn waits behind another one, so that it has no plan yet."""
    turn = await running_turn(house, "unplanned")
    waiting = await turn.client.send(turn.client.note(turn.post.conversation_id, "Next, please"))

    dead = await publish_start(house, visitor, waiting, branch_id=uuid4())
    await asyncio.wait_for(turn.client.follow(waiting), 20)

    assert dead["reason"] == "context.unknown_turn"
    ended = await turn.client.get(f"/v1/turns/{waiting.turn_id}")
    assert (ended["status"], ended["reason"]) == ("failed", "dead_lettered")
    assert await turn.status() == ("generating", None)
    house.provider.release()
    await asyncio.wait_for(turn.reader, 20)
    assert await turn.status() == ("completed", None)


async def test_a_start_that_breaks_even_the_end_of_its_turn_does_not_stop_the_partition(
    house: House, visitor: Visitor
) -> None:
    turn = await running_turn(house, "unending")
    waiting = await turn.client.send(turn.client.note(turn.post.conversation_id, "Next, please"))

    dead = await publish_start(house, visitor, waiting, base_seq=BEYOND_BIGINT)
    house.provider.release()
    await asyncio.wait_for(turn.reader, 20)
    await asyncio.wait_for(turn.client.follow(waiting), 20)

    assert dead["reason"] == "bug"
    ended = await turn.client.get(f"/v1/turns/{waiting.turn_id}")
    assert (ended["status"], ended["reason"]) == ("completed", None)
    (await house.verdict()).require(one_terminal_per_turn=2, stream_equals_store=6)


async def publish_start(
    house: House, visitor: Visitor, post: Post, **changes: Any
) -> dict[str, Any]:
    """Tell context_assembly of a start that is the turn's but for ``changes``; its dead letter."""
    (row,) = await house.rows("select * from ingestion.turns where id = %s", post.turn_id)
    event = visitor.front.event(
        post.conversation_id, row["id"], started(row, **changes), tenant_id=row["tenant_id"]
    )
    place = await visitor.front.publish(
        TURN_EVENTS, str(post.conversation_id).encode(), encode(event)
    )
    return await house.dead_letter("context_assembly", place)
