"""One suite for both stores: times of a turn, its attempts, and history without its texts."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID, uuid4

import psycopg
import pytest

from services.frontend_gateway.core.timeline import AttemptView, StepView, Transition
from services.frontend_gateway.ports import HistoryEnd
from services.frontend_gateway.store import PostgresStore
from tests.contract.frontend_gateway.worlds import AT, MemoryWorld, PostgresWorld, Said, World

TENANT, PRINCIPAL = uuid4(), uuid4()
STEP, SECOND = uuid4(), uuid4()


class Stories(World, Protocol):
    """Rows of what happened to a turn."""

    async def happened(
        self,
        tenant: UUID,
        turn: UUID,
        transitions: list[Transition],
        steps: list[StepView],
        attempts: list[AttemptView],
    ) -> None:
        """States, steps and attempts of a turn."""
        ...

    async def counted(self, tenant: UUID, message: UUID, tokenizer: str, tokens: int) -> None:
        """The size of a message in a tokenizer."""
        ...

    async def opened(self, tenant: UUID, conversation: UUID, turn: UUID) -> None:
        """A turn that has not ended."""
        ...


class MemoryStories(MemoryWorld):
    async def happened(
        self,
        tenant: UUID,
        turn: UUID,
        transitions: list[Transition],
        steps: list[StepView],
        attempts: list[AttemptView],
    ) -> None:
        del tenant
        self._memory.transition_rows[turn] = transitions
        self._memory.step_rows[turn] = steps
        self._memory.attempt_rows[turn] = attempts

    async def counted(self, tenant: UUID, message: UUID, tokenizer: str, tokens: int) -> None:
        del tenant
        self._memory.token_rows[message, tokenizer] = tokens

    async def opened(self, tenant: UUID, conversation: UUID, turn: UUID) -> None:
        del tenant, conversation
        row = self._memory.turn_rows[turn]
        self._memory.turn_rows[turn] = replace(row, status="generating", ended_at=None)


class PostgresStories(PostgresWorld):
    async def happened(
        self,
        tenant: UUID,
        turn: UUID,
        transitions: list[Transition],
        steps: list[StepView],
        attempts: list[AttemptView],
    ) -> None:
        for one in transitions:
            await self._run(
                "insert into ingestion.transitions values (%s, %s, %s, %s, %s, %s)",
                tenant, turn, one.status, one.reason, uuid4(), one.at,
            )  # fmt: skip
        for step in steps:
            await self._run(
                "insert into context_assembly.steps (tenant_id, step_id, turn_id, step_no, "
                "conversation_id, branch_id, seq, model, state, reason, invariant, deadline_at, "
                "event_id, told_at, created_at, ended_at) "
                "values (%s, %s, %s, %s, %s, %s, 1, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                tenant, step.step_id, turn, step.step_no, uuid4(), uuid4(), step.model, step.state,
                step.reason, step.invariant, AT, uuid4(), AT, step.created_at, step.ended_at,
            )  # fmt: skip
        for attempt in attempts:
            await (self._work if attempt.outcome == "running" else self._attempt)(
                tenant, turn, attempt
            )

    async def _attempt(self, tenant: UUID, turn: UUID, one: AttemptView) -> None:
        await self._run(
            "insert into llm_gateway.attempts (tenant_id, turn_id, step_id, attempt, model, "
            "outcome, reason, failure, requests, first_token_ms, duration_ms, ended_at) "
            "values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            tenant, turn, one.step_id, one.attempt, one.model, one.outcome, one.reason,
            one.failure, one.requests, one.first_token_ms, one.duration_ms, one.ended_at,
        )  # fmt: skip
        if one.input_tokens is not None:
            await self._run(
                "insert into llm_gateway.usage values (%s, %s, %s, %s, %s, %s, %s, 0, null, "
                "false, %s)",
                tenant, turn, one.step_id, one.attempt, one.model, one.input_tokens,
                one.output_tokens, AT,
            )  # fmt: skip

    async def _work(self, tenant: UUID, turn: UUID, one: AttemptView) -> None:
        await self._run(
            "insert into llm_gateway.work (step_id, tenant_id, conversation_id, turn_id, lane, "
            "step_no, seq, model, fingerprint, causation_id, deadline_at, state, base_attempt, "
            "attempt, worker_id, run_after, created_at, claimed_at, progressed_at) values "
            "(%s, %s, %s, %s, %s, 1, 1, %s, '', %s, %s, 'running', 0, %s, %s, %s, %s, %s, %s)",
            one.step_id, tenant, uuid4(), turn, uuid4(), one.model, uuid4(), AT, one.attempt,
            uuid4(), AT, AT, one.began_at, AT,
        )  # fmt: skip

    async def counted(self, tenant: UUID, message: UUID, tokenizer: str, tokens: int) -> None:
        await self._run(
            "insert into ingestion.message_tokens values (%s, %s, %s, %s)",
            tenant, message, tokenizer, tokens,
        )  # fmt: skip

    async def opened(self, tenant: UUID, conversation: UUID, turn: UUID) -> None:
        await self._run(
            "insert into ingestion.open_turns (turn_id, tenant_id, conversation_id, branch_id, "
            "state, position, progressed_at) values (%s, %s, %s, %s, 'generating', 0, %s)",
            turn, tenant, conversation, conversation, AT,
        )  # fmt: skip


@pytest.fixture
def world(opened: tuple[PostgresStore, psycopg.AsyncConnection[Any]] | None) -> Stories:
    return MemoryStories() if opened is None else PostgresStories(*opened)


def after(ms: int) -> Any:
    return AT + timedelta(milliseconds=ms)


def transitions() -> list[Transition]:
    return [
        Transition("pending", None, AT),
        Transition("generating", None, after(4)),
        Transition("partial", "provider_cut", after(1_900)),
    ]


def steps() -> list[StepView]:
    return [
        StepView(STEP, 1, "ended", None, None, "m", after(31), after(1_910)),
        StepView(SECOND, 2, "refused", "invariant", "plan_within_budget", "m", after(1_950)),
    ]


def attempts() -> list[AttemptView]:
    return [
        AttemptView(STEP, 1, "m", "repeated", "lease_expired", requests=0, ended_at=after(100)),
        AttemptView(
            STEP, 2, "m", "interrupted", "provider_cut", "http.500", 2, 412, 1_000, after(200),
            after(1_200), 40, 7,
        ),
        AttemptView(STEP, 3, "m", "running", began_at=after(1_300)),
    ]  # fmt: skip


async def test_what_happened_to_a_turn_is_told_in_order(world: Stories) -> None:
    _, turn = await world.conversation(TENANT, PRINCIPAL, [Said()])
    await world.happened(TENANT, turn, transitions(), steps(), attempts())

    assert list(await world.store.transitions(TENANT, turn)) == transitions()
    assert list(await world.store.steps(TENANT, turn)) == steps()
    assert list(await world.store.attempts(TENANT, [STEP, SECOND])) == attempts()
    assert list(await world.store.attempts(TENANT, [])) == []


async def test_what_happened_is_told_to_its_tenant_alone(world: Stories) -> None:
    _, turn = await world.conversation(TENANT, PRINCIPAL, [Said()])
    await world.happened(TENANT, turn, transitions(), steps(), attempts())
    other = uuid4()

    assert list(await world.store.transitions(other, turn)) == []
    assert list(await world.store.steps(other, turn)) == []
    assert list(await world.store.attempts(other, [STEP])) == []


async def test_history_is_listed_without_texts_newest_first(world: Stories) -> None:
    conversation, *turns = await world.conversation(
        TENANT,
        PRINCIPAL,
        [Said(), Said(question="ÄÖ", answer=""), Said(status="partial", answer="Well,")],
    )
    view = await world.store.turn(TENANT, turns[1])
    assert view is not None
    await world.counted(TENANT, view.user_message_id, "o200k_base", 3)
    end = HistoryEnd(conversation, conversation, 7)

    rows = await world.store.history_facts(TENANT, end, "o200k_base", 10)

    assert [(row.seq, row.role, row.status, row.tokens, row.length) for row in rows] == [
        (6, "assistant", "partial", None, 5),
        (5, "user", "completed", None, 6),
        (3, "user", "completed", 3, 4),
        (2, "assistant", "completed", None, 3),
        (1, "user", "completed", None, 6),
    ]
    assert {row.said_at for row in rows} == {AT}
    few = await world.store.history_facts(TENANT, replace(end, below_seq=6), "cl100k_base", 2)
    assert [(row.seq, row.tokens) for row in few] == [(5, None), (3, None)]


async def test_history_is_counted_up_to_a_bound(world: Stories) -> None:
    conversation, *_ = await world.conversation(TENANT, PRINCIPAL, [Said()] * 4)
    end = HistoryEnd(conversation, conversation, 8)

    assert await world.store.history_count(TENANT, end, 100) == 7
    assert await world.store.history_count(TENANT, end, 5) == 5
    assert await world.store.history_count(TENANT, replace(end, below_seq=1), 100) == 0


async def test_history_of_a_fork_is_that_of_its_path(world: Stories) -> None:
    conversation, *_ = await world.conversation(TENANT, PRINCIPAL, [Said()] * 3)
    fork = await world.fork(TENANT, conversation, below=3)
    end = HistoryEnd(conversation, fork, 7)

    rows = await world.store.history_facts(TENANT, end, "o200k_base", 10)

    assert [row.seq for row in rows] == [2, 1]
    assert await world.store.history_count(TENANT, end, 10) == 2


async def test_deleted_answers_and_open_turns_are_no_history(world: Stories) -> None:
    conversation, *turns = await world.conversation(TENANT, PRINCIPAL, [Said()] * 3)
    await world.delete_answer(TENANT, turns[0])
    await world.opened(TENANT, conversation, turns[2])
    end = HistoryEnd(conversation, conversation, 7)

    rows = await world.store.history_facts(TENANT, end, "o200k_base", 10)

    assert [row.seq for row in rows] == [4, 3, 1]
    assert await world.store.history_count(TENANT, end, 10) == 3


async def test_history_is_seen_by_its_tenant_alone(world: Stories) -> None:
    conversation, *_ = await world.conversation(TENANT, PRINCIPAL, [Said()])
    end = HistoryEnd(conversation, conversation, 7)

    assert list(await world.store.history_facts(uuid4(), end, "o200k_base", 10)) == []
    assert await world.store.history_count(uuid4(), end, 10) == 0


async def test_excerpts_are_cut_and_stay_inside_a_conversation(world: Stories) -> None:
    conversation, *turns = await world.conversation(
        TENANT, PRINCIPAL, [Said(question="ÄÖÜäöü"), Said()]
    )
    elsewhere, other = await world.conversation(TENANT, PRINCIPAL, [Said()])
    await world.delete_answer(TENANT, turns[1])
    views = [await world.store.turn(TENANT, turn) for turn in (*turns, other)]
    ids = [
        id_
        for view in views
        if view is not None
        for id_ in (view.user_message_id, view.assistant_message_id)
    ]

    found = await world.store.excerpts(TENANT, conversation, ids, 4)

    assert found == {ids[0]: "ÄÖÜä", ids[1]: "Hi.", ids[2]: "Hell"}
    assert set(await world.store.excerpts(TENANT, elsewhere, ids, 4)) == set(ids[4:])
    assert await world.store.excerpts(uuid4(), conversation, ids, 4) == {}
