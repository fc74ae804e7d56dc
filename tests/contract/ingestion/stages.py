"""Scenes that tests of a conversation's life begin with, and what they look at afterwards."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import UUID, uuid4

import psycopg

from libs import ids
from libs.kafka import Delivery
from tests.contract.ingestion.rig import TENANT, Rig, create, generated, interrupted, post
from tests.rig.waiting import until

Act = Callable[[], Coroutine[Any, Any, Any]]


async def opened(rig: Rig, *keys: str, **fields: Any) -> tuple[UUID, list[UUID]]:
    """A conversation with open turns, the first of them started."""
    conversation = uuid4()
    await rig.ingestion.requests.handle(
        [create(conversation), *(post(conversation, key, f"text {key}", **fields) for key in keys)]
    )
    rig.ingestion.relay.messages.clear()
    return conversation, [ids.turn_id(TENANT, conversation, key) for key in keys]


async def complete(rig: Rig, conversation: UUID, turn: UUID, text: str = "an answer") -> None:
    """The turn's answer is whole."""
    data = rig.result(turn, text)
    await rig.ingestion.generation.handle([generated(conversation, turn, data)])


async def cut(rig: Rig, conversation: UUID, turn: UUID, text: str = "half an ans") -> None:
    """The turn's answer breaks off."""
    data = interrupted(rig.result(turn, text), "provider_cut")
    await rig.ingestion.generation.handle([generated(conversation, turn, data)])


async def answered(rig: Rig, *keys: str) -> tuple[UUID, list[UUID]]:
    """A conversation whose turns have all been answered, one after the other."""
    conversation, _ = await opened(rig)
    turns = [ids.turn_id(TENANT, conversation, key) for key in keys]
    for key, turn in zip(keys, turns, strict=True):
        await rig.ingestion.requests.handle([post(conversation, key, f"text {key}")])
        await complete(rig, conversation, turn, f"answer {key}")
    rig.ingestion.relay.messages.clear()
    return conversation, turns


def question(turn: UUID) -> UUID:
    """The message that a turn made for what the user said."""
    return ids.message_id(turn, "user")


def answer(turn: UUID) -> UUID:
    """The message that holds a turn's answer."""
    return ids.message_id(turn, "assistant")


def state(rig: Rig, turn: UUID) -> tuple[str, str | None]:
    """Where a turn stands."""
    (row,) = rig.rows("select status, reason from ingestion.turns where id = %s", turn)
    return row["status"], row["reason"]


def outcome(rig: Rig, request: Delivery) -> tuple[str, str | None]:
    """Outcome of a request and the slug of its problem."""
    (row,) = rig.rows(
        "select outcome, problem->>'code' as code from ingestion.request_outcomes "
        "where request_id = %s",
        request.event.id,
    )
    return row["outcome"], row["code"]


def waiting(rig: Rig, conversation: UUID) -> list[tuple[UUID, int, bool]]:
    """The open turns: turn, position, and whether it has started."""
    rows = rig.rows(
        "select turn_id, position, deadline_at is not null as started from ingestion.open_turns "
        "where conversation_id = %s order by branch_id = conversation_id desc, branch_id, position",
        conversation,
    )
    return [(row["turn_id"], row["position"], row["started"]) for row in rows]


def ends(rig: Rig, turn: UUID) -> int:
    """How many ends of a turn were told and recorded; anything but one of each is a lie."""
    told = rig.rows(
        "select convert_from(payload, 'utf8')::jsonb->>'correlation_id' as turn "
        "from ingestion.outbox where type = 'turn.ended'"
    )
    events = sum(row["turn"] == str(turn) for row in told)
    recorded: int = rig.one(
        "select count(*) from ingestion.transitions where turn_id = %s "
        "and status in ('completed', 'partial', 'failed', 'cancelled')",
        turn,
    )
    assert events == recorded
    return recorded


async def in_order(rig: Rig, conversation: UUID, first: Act, second: Act) -> None:
    """Let two acts meet at the conversation's row and take it one after the other.

    Somebody else holds the row until both stand in line for it, so each has read and prepared what
    it does before the lock, and the second sees there what the first has committed.
    """
    holder = await psycopg.AsyncConnection.connect(rig.test_database.admin_url)
    try:
        await holder.execute(
            "select from ingestion.conversations where id = %s for update", (conversation,)
        )
        acts: list[asyncio.Task[Any]] = []
        for number, act in enumerate((first, second), start=1):
            acts.append(asyncio.create_task(act()))
            await until(_in_line(rig, number))
        await holder.commit()
        await asyncio.gather(*acts)
    finally:
        await holder.close()


def _in_line(rig: Rig, number: int) -> Callable[[], Awaitable[bool]]:
    async def are_waiting() -> bool:
        waiting_now: int = rig.one(
            "select count(distinct pid) from pg_locks where not granted "
            "and locktype in ('transactionid', 'tuple')"
        )
        return waiting_now == number

    return are_waiting


def history(rig: Rig, turn: UUID) -> list[int]:
    """Numbers of the messages that a started turn's plan may show beside its question."""
    (row,) = rig.rows(
        "select conversation_id, branch_id, base_seq from ingestion.turns where id = %s", turn
    )
    with psycopg.connect(rig.test_database.url_of("context_assembly")) as context:
        context.execute("select set_config('app.tenant_ids', %s, true)", (str(TENANT),))
        rows = context.execute(
            "select seq from ingestion.history_v1(%s::uuid[], %s::uuid[], %s::uuid[], "
            "%s::bigint[], array['o200k_base'], 100) order by seq",
            ([TENANT], [row["conversation_id"]], [row["branch_id"]], [row["base_seq"]]),
        ).fetchall()
    return [number for (number,) in rows]
