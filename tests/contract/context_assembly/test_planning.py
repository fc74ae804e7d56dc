"""The handlers of turn.events over the in-memory store and over Postgres: one suite for both."""

import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from prometheus_client import CollectorRegistry

from libs import ids
from schemas.steps import StepPlannedV1, StepRefusedV1
from services.context_assembly.core.instructions import SystemPolicy
from services.context_assembly.core.payload import fingerprint
from services.context_assembly.core.posture import CaptureChoice
from services.context_assembly.handlers import UnknownTurn
from services.context_assembly.ports import (
    PAGE_ROWS,
    BatchEffects,
    BatchFacts,
    BatchQuestion,
    ConversationKey,
    Cursor,
    HistoryReader,
    PlanningStore,
    PlanningTransaction,
    StoredMessage,
    TextKey,
    TokenCounts,
)
from services.context_assembly.postures import FixedPostures
from tests.rig.parts import TestDatabase
from tests.rig.planning import (
    LIMITS,
    Chat,
    MemoryWorld,
    World,
    answered,
    delivery,
    ended,
    postgres_world,
    remember,
    start,
)
from tests.rig.planning_handlers import handlers


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def real_database(request: pytest.FixtureRequest) -> TestDatabase | None:
    """A database for the real store; none for its twin."""
    if request.param == "memory":
        return None
    database: TestDatabase = request.getfixturevalue("database")
    return database


@pytest.fixture
async def world(real_database: TestDatabase | None) -> AsyncIterator[World]:
    if real_database is None:
        yield MemoryWorld()
        return
    async with postgres_world(real_database) as real:
        yield real


def contents(payload: bytes) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in json.loads(payload)["messages"]]


async def test_a_started_turn_gets_a_plan_a_payload_and_one_event(world: World) -> None:
    chat = Chat()
    await remember(world, chat, ("My cat is Nilo.", "A fine name."))
    started = await start(world, chat, "What is my cat called?")

    await handlers(world).handle([started])

    turn = started.event.turn_id
    [told] = await world.told()
    data = told.event.data
    assert isinstance(data, StepPlannedV1)
    assert (told.event.turn_id, told.event.causation_id) == (turn, started.event.id)
    assert (told.event.tenant_id, told.event.conversation_id) == (chat.tenant_id, chat.id)
    assert (data.step_id, data.step_no) == (ids.step_id(turn, 1), 1)
    assert (data.branch_id, data.seq, data.model) == (chat.id, 3, "scripted")
    assert data.deadline_at < started.event.data.deadline_at
    payload = (await world.payloads(chat))[turn]
    assert data.fingerprint == fingerprint(payload)
    assert contents(payload) == [
        ("user", "My cat is Nilo."),
        ("assistant", "A fine name."),
        ("user", "What is my cat called?"),
    ]
    plan = (await world.plans(chat))[turn]
    assert plan["fingerprint"] == data.fingerprint
    assert (plan["count"], plan["seq_range"]) == (3, [1, 3])
    assert plan["message_ids"][-1] == str(started.event.data.user_message_id)


async def test_the_same_record_again_changes_nothing(world: World) -> None:
    chat = Chat()
    started = await start(world, chat, "Hello")
    service = handlers(world)

    await service.handle([started])
    await service.handle([started, started])

    assert len(await world.told()) == 1
    assert len(await world.payloads(chat)) == 1


async def test_the_same_turn_under_another_event_id_is_planned_once(world: World) -> None:
    chat = Chat()
    started = await start(world, chat, "Hello")
    again = delivery(replace(started.event, id=uuid4()))

    await handlers(world).handle([started])
    await handlers(world).handle([again])

    assert len(await world.told()) == 1


async def test_a_turn_that_has_ended_is_not_planned(world: World) -> None:
    chat = Chat()
    started = await start(world, chat, "Hello")
    await world.end_turn(chat, started.event.turn_id, status="failed")

    await handlers(world).handle([started])

    assert await world.told() == []
    assert await world.payloads(chat) == {}


async def test_an_event_that_does_not_match_its_owners_row_is_refused(world: World) -> None:
    chat, other = Chat(), Chat()
    started = await start(world, chat, "Hello")
    await start(world, other, "Other")

    moved = replace(started.event, conversation_id=other.id)
    foreign = replace(started.event, tenant_id=other.tenant_id)
    unknown = replace(started.event, correlation_id=uuid4())
    for event in (moved, foreign, unknown):
        with pytest.raises(UnknownTurn):
            await handlers(world).handle([delivery(event)])

    assert await world.told() == []


async def test_history_of_another_conversation_never_enters(world: World) -> None:
    tenant = uuid4()
    one, two = Chat(tenant), Chat(tenant)
    for number in (1, 2):
        await remember(world, one, (f"X{number}", "x"))
        await remember(world, two, (f"Y{number}", "y"))
    started = await start(world, one, "X3")

    await handlers(world).handle([started])

    plan = (await world.plans(one))[started.event.turn_id]
    payload = (await world.payloads(one))[started.event.turn_id]
    assert (plan["count"], plan["seq_range"]) == (5, [1, 5])
    assert [text for role, text in contents(payload) if role == "user"] == ["X1", "X2", "X3"]


async def test_a_batch_of_many_tenants_is_planned_in_one_go(world: World) -> None:
    chats = [Chat() for _ in range(8)]
    batch = []
    for number, chat in enumerate(chats):
        await remember(world, chat, (f"question {number}", f"answer {number}"))
        batch.append(await start(world, chat, f"current {number}"))

    await handlers(world).handle(batch)

    assert len(await world.told()) == len(chats)
    for number, (chat, started) in enumerate(zip(chats, batch, strict=True)):
        payload = (await world.payloads(chat))[started.event.turn_id]
        assert [text for _, text in contents(payload)] == [
            f"question {number}",
            f"answer {number}",
            f"current {number}",
        ]


async def test_two_turns_of_one_branch_in_one_batch_are_both_right(world: World) -> None:
    chat = Chat()
    first = await start(world, chat, "first")
    await world.end_turn(chat, first.event.turn_id, status="failed")
    second = await start(world, chat, "second")

    await handlers(world).handle([first, second])

    [told] = await world.told()
    assert told.event.turn_id == second.event.turn_id
    payload = (await world.payloads(chat))[second.event.turn_id]
    assert contents(payload) == [("user", "first"), ("user", "second")]


async def test_a_failed_answer_leaves_no_empty_message(world: World) -> None:
    chat = Chat()
    _, failed = answered(chat, "one", "", status="failed")
    await world.write_turn(chat, failed, status="failed")
    started = await start(world, chat, "two")
    alternating = replace(LIMITS, alternate_roles=True)

    await handlers(world, limits=alternating).handle([started])

    payload = (await world.payloads(chat))[started.event.turn_id]
    assert contents(payload) == [("user", "one"), ("assistant", "[no answer]"), ("user", "two")]


async def test_a_partial_answer_is_marked(world: World) -> None:
    chat = Chat()
    _, cut = answered(chat, "one", "half an ans", status="partial")
    await world.write_turn(chat, cut, status="partial")
    started = await start(world, chat, "two")

    await handlers(world).handle([started])

    payload = (await world.payloads(chat))[started.event.turn_id]
    assert contents(payload)[1] == ("assistant", "half an ans\n\n[interrupted]")


async def test_a_message_larger_than_the_window_is_refused_without_a_payload(
    world: World,
) -> None:
    chat = Chat()
    await remember(world, chat, ("short", "answer"))
    started = await start(world, chat, "word " * 9_000)

    await handlers(world).handle([started])

    [told] = await world.told()
    assert told.event.data == StepRefusedV1(reason="context_too_large")
    assert told.event.turn_id == started.event.turn_id
    assert await world.payloads(chat) == {}


async def test_a_long_message_that_fits_arrives_byte_for_byte(world: World) -> None:
    chat = Chat()
    text = "é漢👨‍👩‍👧‍👦 <|endoftext|>\r\n" * 1_500
    big = replace(LIMITS, window=200_000)
    started = await start(world, chat, text)

    await handlers(world, limits=big).handle([started])

    payload = (await world.payloads(chat))[started.event.turn_id]
    assert contents(payload) == [("user", text)]


async def test_a_plan_that_breaks_an_invariant_is_never_sent(world: World) -> None:
    chat = Chat()
    await remember(world, chat, ("question", "answer"))
    started = await start(world, chat, "current")
    registry = CollectorRegistry()
    world.store = DoublingStore(world.store)

    await handlers(world, registry=registry).handle([started])

    [told] = await world.told()
    assert told.event.data == StepRefusedV1(reason="invariant", invariant="history_contiguous")
    assert await world.payloads(chat) == {}
    assert (await world.captures(chat))[started.event.turn_id][1] == "invariant"
    name, label = "turnwire_invariant_violations_total", {"invariant": "history_contiguous"}
    assert registry.get_sample_value(name, label) == 1


async def test_a_plan_that_breaks_an_invariant_ends_the_turn_although_a_text_is_missing(
    world: World,
) -> None:
    chat = Chat()
    await remember(world, chat, ("question", "a long answer " * 800))
    started = await start(world, chat, "current")
    world.store = DoublingStore(world.store, has_texts=False)

    await handlers(world).handle([started])

    [told] = await world.told()
    assert told.event.data == StepRefusedV1(reason="invariant", invariant="history_contiguous")
    assert await world.payloads(chat) == await world.captures(chat) == {}
    assert started.event.turn_id in await world.plans(chat)


async def test_payloads_go_when_the_turn_ends_and_stay_after_a_failure(world: World) -> None:
    good, bad = Chat(), Chat()
    first = await start(world, good, "fine")
    second = await start(world, bad, "broken")
    service = handlers(world)
    await service.handle([first, second])
    payload = (await world.payloads(bad))[second.event.turn_id]

    await service.handle(
        [
            ended(good, first.event.turn_id, "completed"),
            ended(bad, second.event.turn_id, "failed", "provider_refused"),
        ]
    )

    assert await world.payloads(good) == await world.payloads(bad) == {}
    assert await world.captures(good) == {}
    assert await world.captures(bad) == {second.event.turn_id: (payload, "provider_refused")}
    assert second.event.turn_id in await world.plans(bad)


async def test_a_sampled_share_of_good_turns_is_captured(world: World) -> None:
    chat = Chat()
    started = await start(world, chat, "fine")
    service = handlers(world, postures=FixedPostures(CaptureChoice("failures", 1_000)))
    await service.handle([started])

    await service.handle([ended(chat, started.event.turn_id, "completed")])

    assert started.event.turn_id in await world.captures(chat)


async def test_the_end_of_one_turn_and_the_start_of_the_next_share_a_batch(world: World) -> None:
    chat = Chat()
    first = await start(world, chat, "one")
    service = handlers(world)
    await service.handle([first])
    await world.end_turn(chat, first.event.turn_id, status="completed")
    second = await start(world, chat, "two")

    await service.handle([ended(chat, first.event.turn_id, "completed"), second])

    assert set(await world.payloads(chat)) == {second.event.turn_id}


async def test_texts_in_another_tokenizer_are_counted_once(world: World) -> None:
    chat = Chat()
    await remember(world, chat, *((f"question {n}", f"answer {n}") for n in range(30)))
    service = handlers(world)

    started = await start(world, chat, "now with another model", model="other")
    await service.handle([started])
    counted = await world.counts()
    await world.end_turn(chat, started.event.turn_id, status="failed")
    again = await start(world, chat, "once more", model="other")
    await service.handle([again])

    assert counted == 61  # sixty messages and the current one
    assert await world.counts() == counted + 1
    plan = (await world.plans(chat))[started.event.turn_id]
    assert (plan["tokenizer"], plan["count"]) == ("cl100k_base", 61)
    assert (await world.plans(chat))[again.event.turn_id]["count"] == 62


async def test_a_replay_is_ignored(world: World) -> None:
    chat = Chat()
    started = await start(world, chat, "Hello")

    await handlers(world).handle([delivery(replace(started.event, replay=True))])

    assert await world.told() == []


async def test_the_policy_text_and_the_turns_options_reach_the_payload(world: World) -> None:
    chat = Chat()
    options = {"temperature": 0.2, "max_tokens": 64, "cancel_after_s": 5}
    started = await start(world, chat, "Hello", options=options)

    await handlers(world, policy=SystemPolicy("Be brief.", "7")).handle([started])

    body = json.loads((await world.payloads(chat))[started.event.turn_id])
    assert body == {
        "model": "scripted",
        "max_tokens": 64,
        "temperature": 0.2,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ],
    }


async def test_history_is_read_in_pages_until_the_budget_is_full(world: World) -> None:
    chat = Chat()
    await remember(world, chat, *((f"question {n}", f"answer {n}") for n in range(100)))
    started = await start(world, chat, "now")
    small = replace(LIMITS, window=1_024 + 3 + 500)

    await handlers(world, limits=small).handle([started])

    plan = (await world.plans(chat))[started.event.turn_id]
    history = plan["history"]
    assert 0 < history["kept"] < 100
    assert history["loaded"] - history["kept"] <= PAGE_ROWS
    assert plan["budget"]["used"] <= plan["budget"]["tokens"] == 500


async def test_a_long_branch_is_planned_the_same_when_its_length_is_remembered(
    world: World,
) -> None:
    chat = Chat()
    await remember(world, chat, *((f"question {n}", f"answer {n}") for n in range(PAGE_ROWS)))
    service = handlers(world)
    first = await start(world, chat, "first")
    await service.handle([first])
    await world.end_turn(chat, first.event.turn_id, status="failed")
    second = await start(world, chat, "second")

    await service.handle([second])

    payloads = await world.payloads(chat)
    shown = contents(payloads[first.event.turn_id])
    assert len(shown) == 2 * PAGE_ROWS + 1
    assert contents(payloads[second.event.turn_id]) == [*shown, ("user", "second")]


async def test_a_long_branch_is_planned_for_a_model_with_less_room_and_another_tokenizer(
    world: World,
) -> None:
    chat = Chat()
    await remember(world, chat, *((f"question {n}", f"answer {n}") for n in range(PAGE_ROWS)))
    small = replace(LIMITS, window=1_024 + 3 + 200, tokenizer="cl100k_base")
    service = handlers(world, limits=small)
    first = await start(world, chat, "first", model="other")
    await service.handle([first])
    await world.end_turn(chat, first.event.turn_id, status="failed")
    second = await start(world, chat, "second")

    await service.handle([second])

    plans = await world.plans(chat)
    assert plans[first.event.turn_id]["history"]["kept"] == 2 * PAGE_ROWS
    assert 0 < plans[second.event.turn_id]["history"]["kept"] < PAGE_ROWS


async def test_a_message_without_room_is_refused_although_nobody_counted_its_history(
    world: World,
) -> None:
    chat = Chat()
    await remember(world, chat, ("question", "answer"))
    small = replace(LIMITS, window=1_024 + 3 + 10, tokenizer="cl100k_base")
    started = await start(world, chat, "far too long for so little room " * 3)

    await handlers(world, limits=small).handle([started])

    [told] = await world.told()
    assert isinstance(told.event.data, StepRefusedV1)
    assert told.event.data.reason == "context_too_large"


class DoublingTransaction:
    """Shows the newest message of every conversation twice, as a double write would."""

    def __init__(self, inner: PlanningTransaction, *, has_texts: bool) -> None:
        self._inner = inner
        self._has_texts = has_texts

    async def facts(self, question: BatchQuestion) -> BatchFacts:
        facts = await self._inner.facts(question)
        return replace(facts, pages=[[*page[:1], *page] for page in facts.pages])

    async def pages(self, cursors: Sequence[Cursor]) -> list[list[StoredMessage]]:
        return await self._inner.pages(cursors)

    async def texts(self, keys: Collection[TextKey]) -> dict[TextKey, str]:
        return await self._inner.texts(keys) if self._has_texts else {}

    async def purged(
        self, conversations: Collection[ConversationKey]
    ) -> frozenset[ConversationKey]:
        return await self._inner.purged(conversations)

    async def commit(self, effects: BatchEffects) -> None:
        await self._inner.commit(effects)


class DoublingStore:
    """Another store with such transactions."""

    def __init__(self, inner: PlanningStore, *, has_texts: bool = True) -> None:
        self._inner = inner
        self._has_texts = has_texts

    @asynccontextmanager
    async def transaction(self, tenants: Collection[UUID]) -> AsyncIterator[DoublingTransaction]:
        async with self._inner.transaction(tenants) as transaction:
            yield DoublingTransaction(transaction, has_texts=self._has_texts)

    def reader(self, tenants: Collection[UUID]) -> HistoryReader:
        return self._inner.reader(tenants)

    def token_counts(self, tenants: Collection[UUID]) -> TokenCounts:
        return self._inner.token_counts(tenants)
