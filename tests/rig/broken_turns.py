"""Six turns that end badly in the real house, each for another reason, as they do in real life."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

from schemas.envelope import encode
from schemas.registry import CONTEXT_EVENTS
from schemas.steps import StepPlannedV1
from tests.rig.client import Client
from tests.rig.front_end import FrontEnd, make_door_key
from tests.rig.house import House
from tests.rig.ledger import Post
from tests.rig.provider import Rule
from tests.rig.waiting import until

SHORT_DEADLINE_S = 2
TRIES = 5
"""Turns with that deadline at most: on a busy machine it may come before the provider is asked."""

ENDS_WITHIN_S = 45.0
BEYOND_INT = 2**40
"""A number that JSON can say and a column cannot hold: its handler fails."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A turn that has ended badly.

    Attributes:
        said: What its user wrote; an operator never sees it.
    """

    turn_id: UUID
    conversation_id: UUID
    key: str
    said: str


async def _said(house: House, name: str, rest: str = "") -> tuple[Client, Post]:
    client = await house.client(f"broken-{name}")
    conversation = await client.conversation()
    return client, client.note(conversation, f"{name} {uuid4().hex[:8]}{rest}")


async def _ended(client: Client, post: Post) -> Broken:
    async with asyncio.timeout(ENDS_WITHIN_S):
        if not post.replies:
            await client.send(post)
        await client.follow(post)
    assert post.turn_id is not None
    return Broken(post.turn_id, post.conversation_id, post.key, post.text)


async def provider_down(house: House) -> Broken:
    """Every request to the provider fails."""
    client, post = await _said(house, "provider-down")
    house.provider.script(Rule(match=post.text, status=503))
    return await _ended(client, post)


async def invariant(house: House) -> Broken:
    """A row says that a message of the history was replaced, and yet it is history."""
    client, post = await _said(house, "invariant")
    first = await client.say(post.conversation_id, "A good one first")
    await house.rows(
        "update ingestion.messages a set supersedes = q.id from ingestion.messages q "
        "where a.turn_id = %s and a.role = 'assistant' and q.turn_id = a.turn_id "
        "and q.role = 'user' returning 1",
        first.turn_id,
    )
    return await _ended(client, post)


async def deadline(house: House) -> Broken:
    """The provider says nothing until the turn's time is over."""
    process = house.process("ingestion")
    usual = house.environment("ingestion")
    short = {"TURNWIRE_INGESTION__TURN_DEADLINE_S": str(SHORT_DEADLINE_S)}
    await process.restart(env={**usual, **short})
    try:
        for _ in range(TRIES):
            client, post = await _said(house, "deadline")
            house.provider.script(Rule(match=post.text, hang_before_head=True))
            broken = await _ended(client, post)
            if any(one.last_user_message == post.text for one in house.provider.requests):
                return broken
        msg = f"of {TRIES} turns the provider was asked for none within {SHORT_DEADLINE_S} s"
        raise AssertionError(msg)
    finally:
        house.provider.release()
        await process.restart(env=usual)
        await house.all_ready()


async def poison_record(house: House) -> Broken:
    """A record about the turn that its consumer cannot handle."""
    client, post = await _said(house, "poison")
    house.provider.script(Rule(match=post.text, deltas=("So ", "far."), hang_after=1))
    await client.send(post)
    reader = asyncio.create_task(client.follow(post))

    async def is_running() -> bool:
        rows = await house.rows(
            "select 1 from llm_gateway.work where turn_id = %s and state = 'running'", post.turn_id
        )
        return bool(rows)

    await until(is_running)
    (row,) = await house.rows(
        "select t.*, s.step_id from ingestion.turns t "
        "join context_assembly.steps s on s.turn_id = t.id where t.id = %s",
        post.turn_id,
    )
    async with FrontEnd(house, await make_door_key(house, f"poison-{uuid4().hex[:6]}")) as front:
        event = front.event(
            post.conversation_id, row["id"], _poison(row), tenant_id=row["tenant_id"]
        )
        key = str(post.conversation_id).encode()
        place = await front.publish(CONTEXT_EVENTS, key, encode(event))
        await house.dead_letter("llm_gateway", place)
    await asyncio.wait_for(reader, ENDS_WITHIN_S)
    house.provider.release()
    return await _ended(client, post)


def _poison(row: Mapping[str, Any]) -> StepPlannedV1:
    return StepPlannedV1.model_validate(
        {
            "step_id": row["step_id"],
            "step_no": BEYOND_INT,
            "branch_id": row["branch_id"],
            "seq": row["seq"],
            "model": "scripted",
            "fingerprint": "0" * 64,
            "deadline_at": row["deadline_at"],
        }
    )


async def lost_worker(house: House) -> Broken:
    """The worker dies after part of the answer was shown."""
    client, post = await _said(house, "lost-worker")
    words = ("Harbor ", "lights ", "at ", "dusk ", "fade ", "slowly. ") * 10
    house.provider.script(Rule(match=post.text, deltas=words, delay_ms=80))
    armed = await house.arm("llm_gateway", "llm.after_delta:3:exit")
    reader = asyncio.create_task(_ended(client, post))
    await house.revive(armed)
    return await reader


async def context_too_large(house: House) -> Broken:
    """A message that no window holds."""
    rest = " ".join(f"word{n}" for n in range(20_000))
    client, post = await _said(house, "too-large", f" {rest}")
    return await _ended(client, post)


BROKEN: Mapping[str, Callable[[House], Awaitable[Broken]]] = MappingProxyType(
    {
        "provider_down": provider_down,
        "invariant": invariant,
        "deadline": deadline,
        "poison_record": poison_record,
        "lost_worker": lost_worker,
        "context_too_large": context_too_large,
    }
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What an operator reads about a turn.

    Attributes:
        lines: Texts that lines of the story hold, each of the named service.
    """

    status: str
    reason: str
    why: str
    lines: tuple[tuple[str, str], ...]


EXPECTED: Mapping[str, Expected] = {
    "provider_down": Expected(
        "failed",
        "provider_unavailable",
        "It was asked 3 times; the last time it failed by itself",
        (("llm_gateway", "attempt 1 failed: provider_unavailable"),),
    ),
    "invariant": Expected(
        "failed",
        "invariant",
        "It is superseded_excluded: something that was replaced or deleted would have been shown.",
        (("context_assembly", "step 1 refused: invariant"),),
    ),
    "deadline": Expected(
        "failed",
        "deadline",
        "was not done when its deadline came",
        (("ingestion", "turn started"), ("llm_gateway", "attempt 1 ")),
    ),
    "poison_record": Expected(
        "failed",
        "dead_lettered",
        "llm_gateway.steps refused record ",
        (("llm_gateway", "record of context.events set aside: bug"),),
    ),
    "lost_worker": Expected(
        "partial",
        "lease_expired",
        "The worker that was calling the model died or froze",
        (("llm_gateway", "attempt 1 interrupted: lease_expired"),),
    ),
    "context_too_large": Expected(
        "failed",
        "context_too_large",
        "does not fit into its window",
        (("context_assembly", "step 1 refused: context_too_large"),),
    ),
}
"""What is told of each; ``docs/operating.md`` quotes it."""
