"""What must survive: a process is killed at a named point, and every turn still ends once.

Each row arms one fail point, lets turns run into it, starts the process again and compares every
client's ledger with the database. Nobody repairs anything by hand.
"""

import asyncio
from uuid import uuid4

import pytest

from tests.rig.client import Client
from tests.rig.house import House
from tests.rig.ledger import Post
from tests.rig.provider import Rule
from tests.rig.scrape import counted
from tests.rig.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

ENDS_WITHIN_S = 30.0
"""From the restart to the terminal state, for every row."""

RUNNING_TURNS = 20
POOL_SIZE = 8
"""Connections of one gateway to Postgres, at most."""

SHOWN_DELTAS = ("Harbor ", "lights ", "at ", "dusk ", "fade ", "slowly.")


LONG_DELTAS = SHOWN_DELTAS * 10
"""For who dies at the third entry: a busy worker makes one of all that came while it slept."""


def slow_rule(marker: str, *, delay_ms: float = 80.0, is_long: bool = False) -> Rule:
    """An answer of six deltas or sixty, each late enough to be an entry of its own."""
    return Rule(match=marker, deltas=LONG_DELTAS if is_long else SHOWN_DELTAS, delay_ms=delay_ms)


async def asked(house: House, marker: str) -> tuple[Client, Post]:
    """A message with a marker the provider knows, noted but not sent."""
    client = await house.client()
    conversation = await client.conversation()
    return client, client.note(conversation, f"{marker}: what do you see?")


def calls(house: House, marker: str) -> int:
    return sum(marker in request.last_user_message for request in house.provider.requests)


async def ended(client: Client, post: Post) -> dict[str, object]:
    async with asyncio.timeout(ENDS_WITHIN_S + 10):
        await client.send(post)
        await client.follow(post)
    return await client.get(f"/v1/turns/{post.turn_id}")


ROWS = [
    ("gateway", "frontend_gateway", "gateway.after_publish:1:exit", {"completed"}, 1),
    ("ingestion-1", "ingestion", "ingestion.after_accept_commit:1:exit", {"completed"}, 1),
    ("ingestion-2", "ingestion", "ingestion.relay.after_publish:1:exit", {"completed"}, 1),
    ("ingestion-3", "ingestion", "ingestion.before_answer_commit:1:exit", {"completed"}, 1),
    ("ingestion-4", "ingestion", "ingestion.after_answer_commit:1:exit", {"completed"}, 1),
    ("context-1", "context_assembly", "context.before_commit:1:exit", {"completed"}, 1),
    ("context-2", "context_assembly", "context.after_commit:1:exit", {"completed"}, 1),
    (
        "context-3",
        "context_assembly",
        "context_assembly.relay.after_publish:1:exit",
        {"completed"},
        1,
    ),
    ("llm-1", "llm_gateway", "llm.after_accept:1:exit", {"completed"}, 1),
    ("llm-2", "llm_gateway", "llm.after_request_sent:1:exit", {"completed"}, 2),
    ("llm-3", "llm_gateway", "llm.after_delta:3:exit", {"partial"}, 1),
    ("llm-4", "llm_gateway", "llm.after_last_delta:1:exit", {"partial"}, 1),
    ("llm-5", "llm_gateway", "llm.after_final_commit:1:exit", {"completed"}, 1),
    ("llm-6", "llm_gateway", "llm_gateway.relay.after_publish:1:exit", {"completed"}, 1),
]


@pytest.mark.parametrize(
    ("row", "service", "point", "statuses", "provider_calls"), ROWS, ids=[row[2] for row in ROWS]
)
async def test_a_process_killed_at_a_named_point_costs_no_turn(
    house: House, row: str, service: str, point: str, statuses: set[str], provider_calls: int
) -> None:
    marker = f"{row}-{uuid4().hex[:6]}"
    house.provider.script(slow_rule(marker, is_long=point.startswith("llm.after_delta")))
    began = await house.moment()
    client, post = await asked(house, marker)
    armed = await house.arm(service, point)
    reader = asyncio.create_task(ended(client, post))

    await house.revive(armed)
    turn = await reader

    assert turn["status"] in statuses, turn
    assert calls(house, marker) == provider_calls
    (await house.verdict(since=began)).require(
        one_turn_per_key=5,
        one_terminal_per_turn=4,
        stream_equals_store=4,
        plan_deterministic=1 + provider_calls,
        tenant_isolation=8,
        canary_seen=1,
    )


async def test_a_worker_frozen_beyond_its_lease_writes_nothing_afterwards(house: House) -> None:
    marker = f"zombie-{uuid4().hex[:6]}"
    house.provider.script(Rule(match=marker, deltas=SHOWN_DELTAS, delay_ms=50, hang_after=3))
    client, post = await asked(house, marker)
    await client.send(post)
    reader = asyncio.create_task(client.follow(post))
    worker = house.process("llm_gateway")

    async def has_shown_three() -> bool:
        return post.stream is not None and len(post.stream.text.split()) == 3

    async def was_refused() -> bool:  # it wakes with its call, and writes when it comes to it
        return await counted(worker.url, "fence_refusals_total") > 0

    await until(has_shown_three, within_s=15)
    worker.pause()
    # A second worker sweeps what the frozen one still holds.
    await house.supervisor.start([house.spec("llm_gateway", 1)])
    try:
        await asyncio.wait_for(reader, ENDS_WITHIN_S)
        ended_as = await client.get(f"/v1/turns/{post.turn_id}")
        house.provider.release()  # the rest of the answer waits for the frozen worker
        worker.resume()
        await house.all_ready()
        (await house.verdict()).require(one_terminal_per_turn=1, stream_equals_store=3)
        afterwards = await client.get(f"/v1/turns/{post.turn_id}")
        await until(was_refused)
    finally:
        await house.supervisor.process("llm_gateway", 1).stop()

    assert (ended_as["status"], ended_as["reason"]) == ("partial", "lease_expired")
    assert afterwards == ended_as
    assert post.stream is not None
    assert post.stream.text == "Harbor lights at "


async def many_running(house: House, marker: str) -> tuple[Client, list[Post], asyncio.Task[None]]:
    """Twenty turns in twenty conversations, each seen to run before this returns."""
    house.provider.script(slow_rule(marker, delay_ms=250))
    client = await house.client()
    conversations = [await client.conversation() for _ in range(RUNNING_TURNS)]
    posts = [client.note(conversation, f"{marker} tell me") for conversation in conversations]

    async def one(post: Post) -> None:
        await client.send(post)
        await client.follow(post)

    async def all_of_them() -> None:
        await asyncio.gather(*(one(post) for post in posts))

    running = asyncio.create_task(all_of_them())

    async def all_are_running() -> bool:
        return calls(house, marker) == RUNNING_TURNS

    await until(all_are_running, within_s=30)
    return client, posts, running


async def test_kafka_killed_and_restarted_during_twenty_turns(house: House) -> None:
    marker = f"kafka-{uuid4().hex[:6]}"
    client, posts, running = await many_running(house, marker)

    await house.stack.kafka.kill()
    await house.stack.kafka.restart()
    await asyncio.wait_for(running, ENDS_WITHIN_S + 15)

    turns = [await client.get(f"/v1/turns/{post.turn_id}") for post in posts]
    assert {turn["status"] for turn in turns} == {"completed"}
    assert calls(house, marker) == RUNNING_TURNS
    (await house.verdict()).require(one_terminal_per_turn=RUNNING_TURNS)


async def test_kafka_restarted_with_all_its_data_gone_strands_no_turn(house: House) -> None:
    marker = f"wiped-{uuid4().hex[:6]}"
    client, posts, running = await many_running(house, marker)

    await house.stack.kafka.kill()
    await house.stack.kafka.wipe()
    await house.stack.kafka.restart()
    await asyncio.wait_for(running, ENDS_WITHIN_S + 30)

    turns = [await client.get(f"/v1/turns/{post.turn_id}") for post in posts]
    assert {turn["status"] for turn in turns} == {"completed"}
    assert calls(house, marker) == RUNNING_TURNS
    (await house.verdict()).require(one_terminal_per_turn=RUNNING_TURNS)


async def test_valkey_killed_and_restarted_empty_fails_no_turn(house: House) -> None:
    marker = f"valkey-{uuid4().hex[:6]}"
    client, posts, running = await many_running(house, marker)

    await house.stack.valkey.kill()
    await house.stack.valkey.restart()
    await asyncio.wait_for(running, ENDS_WITHIN_S)

    turns = [await client.get(f"/v1/turns/{post.turn_id}") for post in posts]
    assert {turn["status"] for turn in turns} == {"completed"}
    assert calls(house, marker) == RUNNING_TURNS
    (await house.verdict()).require(one_terminal_per_turn=RUNNING_TURNS)


async def test_postgres_stopped_at_once_and_restarted_during_twenty_turns(house: House) -> None:
    marker = f"postgres-{uuid4().hex[:6]}"
    client, posts, running = await many_running(house, marker)

    await house.stack.postgres.stop_immediately()
    await house.stack.postgres.start()
    await asyncio.wait_for(running, ENDS_WITHIN_S + 15)

    turns = [await client.get(f"/v1/turns/{post.turn_id}") for post in posts]
    assert {turn["status"] for turn in turns} <= {"completed", "partial"}
    assert calls(house, marker) == RUNNING_TURNS
    (await house.verdict()).require(one_terminal_per_turn=RUNNING_TURNS)

    async def no_connection_is_dead() -> bool:  # each tells so once, and the house is shared
        path = f"/v1/turns/{posts[0].turn_id}"
        asked = [client.request("GET", path, gateway=n % 2) for n in range(2 * POOL_SIZE)]
        return {(await one).status for one in asked} == {200}

    await until(no_connection_is_dead)
