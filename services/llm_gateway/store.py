"""The service's tables: every statement is set-based, every write of an attempt is fenced."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from libs import inbox
from libs.failpoints import failpoint
from libs.outbox import (
    OutboxMessage,
    Relay,
    append_statement,
    closing_statements,
    outbox_message,
)
from libs.postgres import Database, Row, Statement, Transaction, load_queries
from schemas.envelope import Event
from schemas.registry import GENERATION_EVENTS, decode
from schemas.steps import StepPlannedV1
from services.llm_gateway.core.outcomes import (
    Failed,
    StepFacts,
    ending_event,
    outcome_name,
    reason_of,
    state_of,
)
from services.llm_gateway.work import (
    DEADLINE,
    STEP_DEADLINE,
    Abandoned,
    Claim,
    Ending,
    RecoveryFacts,
)

_SQL = load_queries("services.llm_gateway")

SWEEP_ROWS = 100
"""Rows that one look of a sweep takes; more wait for the next look."""

STUCK_GRACE_S = 10.0
"""A worker past a step's deadline may still end it itself; the turn's reaper comes at 15 s."""

REQUEUED = "repeated"
CLOSED_STATE = "cancelled"

_DEADLINE_REASONS = {"turn": DEADLINE, "step": STEP_DEADLINE}

TERMINAL_STATUSES = frozenset({"completed", "partial", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of a batch of planned steps.

    Attributes:
        claimed: Steps to start now.
        waiting: How many new steps were left for a later claim.
        unknown: Turns that no row of their tenant and conversation stands for, though it was not
            purged: of a purged one nothing is left to be done.
    """

    claimed: tuple[Claim, ...] = ()
    waiting: int = 0
    unknown: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """One row that this worker should be running."""

    step_id: UUID
    attempt: int
    cancel_reason: str | None


class Store:
    """Reads and writes of one worker process."""

    def __init__(
        self, database: Database, relay: Relay, *, worker_id: UUID, now: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._relay = relay
        self._worker_id = worker_id
        self._now = now

    async def accept(
        self, consumer: str, events: Sequence[Event[StepPlannedV1]], *, room: int
    ) -> Accepted:
        """Take planned steps over and claim up to ``room`` of them, in one round trip.

        A repeat and a step of an ended turn change nothing; the event of an unknown turn is not
        noted. A step in a lane that is busy, or beyond the room, waits for ``claim``.
        """
        asked = list({event.id: event for event in events}.values())
        statements = [
            _lock({event.conversation_id for event in asked}),
            (_SQL["accept"], _accept_parameters(consumer, asked)),
        ]
        if room > 0:
            step_ids = [event.data.step_id for event in asked]
            statements += [
                (
                    _SQL["claim_accepted"],
                    {"step_ids": step_ids, "room": room, "worker_id": self._worker_id},
                ),
                (
                    _SQL["payloads"],
                    {"tenants": [event.tenant_id for event in asked], "step_ids": step_ids},
                ),
            ]
        async with self._database.transaction({event.tenant_id for event in asked}) as tx:
            # Nothing is left to decide between reading and writing, so one round trip does both.
            results = await tx.commit_with(
                [*statements, *closing_statements((), self._relay.take_acknowledged())]
            )
        failpoint("llm.after_accept")
        judged = results[1]
        claimed = _claims(results[2], results[3]) if room > 0 else ()
        inserted = sum(row["step_id"] is not None for row in judged)
        without = {row["turn_id"] for row in judged if row["status"] is None}
        unknown = await self._unpurged([event for event in asked if event.turn_id in without])
        return Accepted(claimed, max(0, inserted - len(claimed)), unknown)

    async def _unpurged(self, events: Sequence[Event[StepPlannedV1]]) -> tuple[UUID, ...]:
        """Turns of these events whose conversation was not purged."""
        if not events:
            return ()
        wanted = {
            "tenants": [event.tenant_id for event in events],
            "conversation_ids": [event.conversation_id for event in events],
        }
        rows = await self._database.fetch(
            _SQL["purged_conversations"], wanted, tenants={event.tenant_id for event in events}
        )
        purged = {row["conversation_id"] for row in rows}
        return tuple(event.turn_id for event in events if event.conversation_id not in purged)

    async def claim(self, room: int) -> tuple[Claim, ...]:
        """Claim up to ``room`` waiting steps whose lane is free, with their payloads."""
        async with self._database.transaction() as tx:
            rows = await tx.fetch(_SQL["claim_ready"], {"room": room, "worker_id": self._worker_id})
            if not rows:
                return ()
            return await self._with_payloads(tx, rows)

    async def adopt(self, step_ids: Sequence[UUID]) -> tuple[Claim, ...]:
        """Claims of ours whose answer was lost on the way; their attempt stays what it is."""
        async with self._database.transaction() as tx:
            rows = await tx.fetch(
                _SQL["claims_of"], {"step_ids": list(step_ids), "worker_id": self._worker_id}
            )
            if not rows:
                return ()
            return await self._with_payloads(tx, rows)

    async def _with_payloads(self, tx: Transaction, rows: Sequence[Row]) -> tuple[Claim, ...]:
        await tx.name_tenants({row["tenant_id"] for row in rows})
        parameters = {
            "tenants": [row["tenant_id"] for row in rows],
            "step_ids": [row["step_id"] for row in rows],
        }
        payloads = (await tx.commit_with([(_SQL["payloads"], parameters)]))[0]
        return _claims(rows, payloads)

    async def own_running(self) -> list[Running]:
        """Every row that is running under this worker's name."""
        rows = await self._database.fetch(_SQL["own_running"], {"worker_id": self._worker_id})
        return [Running(r["step_id"], r["attempt"], r["cancel_reason"]) for r in rows]

    async def finish(self, endings: Sequence[Ending]) -> set[UUID]:
        """Store and tell the ends of running attempts, in one transaction.

        Returns:
            The steps that were ours to end; the others are fenced out, nothing of them is written.
        """
        return await self._finish(endings, fence="finish")

    async def finish_ready(self, endings: Sequence[Ending]) -> set[UUID]:
        """The same for work that never started: cancelled, or past its deadline."""
        return await self._finish(endings, fence="finish_ready")

    async def _finish(self, endings: Sequence[Ending], *, fence: str) -> set[UUID]:
        messages = {e.facts.step_id: self._message(e) for e in endings}
        async with self._database.transaction({e.facts.tenant_id for e in endings}) as tx:
            rows = (
                await tx.batch(
                    [
                        _lock({e.facts.conversation_id for e in endings}),
                        (
                            _SQL[fence],
                            {
                                "step_ids": [e.facts.step_id for e in endings],
                                "attempts": [e.facts.attempt for e in endings],
                                "states": [state_of(e.outcome) for e in endings],
                                "events": [messages[e.facts.step_id].payload for e in endings],
                            },
                        ),
                    ]
                )
            )[1]
            passed = {row["step_id"] for row in rows}
            ours = [e for e in endings if e.facts.step_id in passed]
            told = [messages[e.facts.step_id] for e in ours]
            if not ours:
                return set()
            results = await tx.commit_with(
                [
                    (_SQL["record_attempts"], _attempt_parameters(ours)),
                    *_usage_statements(ours),
                    *_result_statements(ours),
                    *closing_statements(told, self._relay.take_acknowledged()),
                ]
            )
        failpoint("llm.after_final_commit")
        self._relay.hand_over(told, [row["id"] for row in results[-1]])
        return passed

    async def close_ended(self, facts: Sequence[StepFacts]) -> None:
        """Close claimed work whose turn has ended meanwhile; nothing is told."""
        parameters = {
            "step_ids": [f.step_id for f in facts],
            "attempts": [f.attempt for f in facts],
            "states": [CLOSED_STATE] * len(facts),
            "events": [None] * len(facts),
        }
        await self._database.fetch(_SQL["finish"], parameters)

    async def requeue(self, steps: Sequence[StepFacts], *, reason: str) -> set[UUID]:
        """Give attempts back of which nothing was shown; the next claim makes a higher one.

        Returns:
            The steps that were still running at that attempt.
        """
        parameters = {
            "step_ids": [s.step_id for s in steps],
            "attempts": [s.attempt for s in steps],
        }
        async with self._database.transaction({s.tenant_id for s in steps}) as tx:
            rows = await tx.fetch(_SQL["requeue"], parameters)
            passed = {row["step_id"] for row in rows}
            ours = [s for s in steps if s.step_id in passed]
            if ours:
                await tx.commit_with([(_SQL["record_attempts"], _repeated(ours, reason))])
        return passed

    async def checkpoint(self, endings: Sequence[tuple[StepFacts, str, str]]) -> None:
        """Store ``(facts, upto, text)`` of running attempts; what is fenced out is left alone."""
        ordered = sorted(endings, key=lambda one: one[0].step_id)
        facts = [one[0] for one in ordered]
        await self._database.fetch(
            _SQL["checkpoint"],
            {
                "tenants": [f.tenant_id for f in facts],
                "turn_ids": [f.turn_id for f in facts],
                "step_ids": [f.step_id for f in facts],
                "attempts": [f.attempt for f in facts],
                "uptos": [one[1] for one in ordered],
                "texts": [one[2] for one in ordered],
            },
            tenants={f.tenant_id for f in facts},
        )

    async def request_cancel(
        self, consumer: str, events: Sequence[tuple[Event[Any], str]]
    ) -> tuple[list[StepFacts], dict[UUID, str]]:
        """Mark the work of turns as unwanted; ``events`` come with their reason.

        Returns:
            Steps that wait, to be ended by the caller; and running steps with their reason,
            wherever they run.
        """
        wanted = {event.id: (event, reason) for event, reason in events}
        async with self._database.transaction({e.tenant_id for e, _ in wanted.values()}) as tx:
            fresh = await self._unseen(tx, consumer, [e for e, _ in wanted.values()])
            if not fresh:
                return [], {}
            rows, *_ = await tx.commit_with(
                [
                    (
                        _SQL["request_cancel"],
                        {**_pairs_of(fresh), "reasons": [wanted[e.id][1] for e in fresh]},
                    ),
                    *self._recorded(consumer, fresh),
                ]
            )
        running = {r["step_id"]: r["cancel_reason"] for r in rows if r["state"] == "running"}
        return [_facts(row) for row in rows if row["state"] == "ready"], running

    async def forget_turns(self, consumer: str, events: Sequence[Event[Any]]) -> list[UUID]:
        """Delete work, checkpoints and results of ended turns.

        Returns:
            Steps that were deleted.
        """
        by_id = {event.id: event for event in events}
        async with self._database.transaction({e.tenant_id for e in by_id.values()}) as tx:
            fresh = await self._unseen(tx, consumer, list(by_id.values()))
            if not fresh:
                return []
            pairs = _pairs_of(fresh)
            rows = await tx.commit_with(
                [
                    (_SQL["delete_work"], pairs),
                    (_SQL["delete_results"], pairs),
                    (_SQL["delete_partials"], pairs),
                    *self._recorded(consumer, fresh),
                ]
            )
        return [row["step_id"] for row in rows[0]]

    async def _unseen(
        self, tx: Transaction, consumer: str, events: Sequence[Event[Any]]
    ) -> list[Event[Any]]:
        _, rows = await tx.batch(
            [
                _lock({e.conversation_id for e in events}),
                inbox.seen_statement(consumer, [e.id for e in events]),
            ]
        )
        seen = {row["event_id"] for row in rows}
        return [event for event in events if event.id not in seen]

    async def abandoned(self) -> list[Abandoned]:
        """Running work of dead workers, and work that is stuck past its deadline in live ones."""
        rows = await self._database.fetch(
            _SQL["abandoned"], {"grace_s": STUCK_GRACE_S, "max_rows": SWEEP_ROWS}
        )
        return [self._abandoned(row) for row in rows]

    async def abandoned_own(self, steps: Sequence[tuple[UUID, int]]) -> list[Abandoned]:
        """Those of the given steps and attempts that still run under this worker's name."""
        rows = await self._database.fetch(
            _SQL["abandoned_own"],
            {
                "step_ids": [step_id for step_id, _ in steps],
                "attempts": [attempt for _, attempt in steps],
                "worker_id": self._worker_id,
            },
        )
        return [self._abandoned(row) for row in rows]

    async def recovery_facts(self, facts: StepFacts) -> RecoveryFacts:
        """The checkpoint of an attempt and the size of its request."""
        rows = await self._database.fetch(
            _SQL["recovery_facts"],
            {
                "tenants": [facts.tenant_id],
                "turn_ids": [facts.turn_id],
                "step_ids": [facts.step_id],
                "attempts": [facts.attempt],
            },
            tenants=(facts.tenant_id,),
        )
        return RecoveryFacts(rows[0]["upto"], rows[0]["text"], rows[0]["payload_bytes"] or 0)

    async def late_ready(self) -> list[tuple[StepFacts, str]]:
        """Waiting work past its deadline, each with the reason of its end."""
        rows = await self._database.fetch(_SQL["late_ready"], {"max_rows": SWEEP_ROWS})
        return [(_facts(row), row["cancel_reason"] or row["deadline_reason"]) for row in rows]

    async def tell_again(self, *, silent_s: float) -> int:
        """Append the last event of ended attempts once more whose turn is open and silent.

        The event ids stay, so a consumer that had them drops the repeat. Returns how many.
        """
        async with self._database.transaction() as tx:
            rows = await tx.fetch(_SQL["untold"], {"silent_s": silent_s, "max_rows": SWEEP_ROWS})
            if not rows:
                return 0
            messages = [outbox_message(decode(row["event"]), GENERATION_EVENTS) for row in rows]
            results = await tx.commit_with(
                [
                    _lock({row["conversation_id"] for row in rows}),
                    (_SQL["told_again"], {"step_ids": [row["step_id"] for row in rows]}),
                    append_statement(messages),
                ]
            )
        self._relay.hand_over(messages, [row["id"] for row in results[2]])
        return len(messages)

    async def forget_ended(self, *, keep_s: float) -> int:
        """Delete old work whose turn is not open, with its texts; returns how many rows."""
        async with self._database.transaction() as tx:
            rows = await tx.fetch(_SQL["forget_ended"], {"keep_s": keep_s, "max_rows": SWEEP_ROWS})
            if not rows:
                return 0
            await tx.name_tenants({row["tenant_id"] for row in rows})
            pairs = {
                "tenants": [row["tenant_id"] for row in rows],
                "turn_ids": [row["turn_id"] for row in rows],
            }
            await tx.commit_with(
                [(_SQL["delete_results"], pairs), (_SQL["delete_partials"], pairs)]
            )
        return len(rows)

    async def purge(self, *, texts_s: float, attempts_s: float, workers_s: float) -> None:
        """Drop what is merely old: texts, rows of attempts, leases of dead workers."""
        await self._database.fetch(_SQL["forget_workers"], {"keep_s": workers_s})
        parameters = {"texts_s": texts_s, "attempts_s": attempts_s, "max_rows": PURGE_ROWS}
        await self._database.fetch(_SQL["purge"], parameters)

    def _message(self, ending: Ending) -> OutboxMessage:
        event = ending_event(
            ending.facts,
            ending.outcome,
            text=ending.text,
            usage=ending.usage,
            measured=ending.measured,
            now=self._now(),
        )
        return outbox_message(event, GENERATION_EVENTS)

    def _recorded(self, consumer: str, events: Sequence[Event[Any]]) -> list[Statement]:
        """What ends a transaction that tells nothing."""
        done = inbox.record_statement(consumer, [event.id for event in events])
        return [done, *closing_statements((), self._relay.take_acknowledged())]

    def _abandoned(self, row: Row) -> Abandoned:
        return Abandoned(
            facts=_facts(row),
            base_attempt=row["base_attempt"],
            left_s=row["left_s"],
            silent_s=row["silent_s"],
            cancel_reason=row["cancel_reason"],
            is_ours=row["worker_id"] == self._worker_id,
            deadline_reason=row["deadline_reason"],
        )


PURGE_ROWS = 1_000
"""Rows of each kind that one purge deletes, so that its transaction stays short."""


async def matches_open_turn(tx: Transaction, event: Event[Any]) -> bool:
    """Whether the turn an event names exists in its tenant and conversation and has not ended."""
    rows = await tx.fetch(_SQL["known_turns"], _turns_of([event]))
    return rows[0]["status"] is not None and rows[0]["status"] not in TERMINAL_STATUSES


def _lock(conversation_ids: Collection[UUID]) -> Statement:
    return _SQL["lock_conversations"], {"conversation_ids": list(conversation_ids)}


def _turns_of(events: Sequence[Event[Any]]) -> dict[str, list[UUID]]:
    return {
        "tenants": [event.tenant_id for event in events],
        "conversation_ids": [event.conversation_id for event in events],
        "turn_ids": [event.turn_id for event in events],
    }


def _pairs_of(events: Sequence[Event[Any]]) -> dict[str, list[UUID]]:
    return {
        "tenants": [event.tenant_id for event in events],
        "turn_ids": [event.turn_id for event in events],
    }


def _accept_parameters(
    consumer: str, events: Sequence[Event[StepPlannedV1]]
) -> dict[str, str | list[Any]]:
    return {
        "consumer": consumer,
        "ended_statuses": sorted(TERMINAL_STATUSES),
        "step_ids": [e.data.step_id for e in events],
        "tenants": [e.tenant_id for e in events],
        "conversation_ids": [e.conversation_id for e in events],
        "turn_ids": [e.turn_id for e in events],
        "lanes": [e.data.branch_id for e in events],
        "step_nos": [e.data.step_no for e in events],
        "seqs": [e.data.seq for e in events],
        "models": [e.data.model for e in events],
        "fingerprints": [e.data.fingerprint for e in events],
        "event_ids": [e.id for e in events],
        "traceparents": [e.traceparent for e in events],
        "deadlines": [e.data.deadline_at for e in events],
        "deadline_reasons": [_DEADLINE_REASONS[e.data.limited_by] for e in events],
    }


def _facts(row: Row) -> StepFacts:
    return StepFacts(
        step_id=row["step_id"],
        tenant_id=row["tenant_id"],
        conversation_id=row["conversation_id"],
        turn_id=row["turn_id"],
        attempt=row["attempt"],
        model=row["model"],
        causation_id=row["causation_id"],
        traceparent=row["traceparent"],
    )


def _claims(rows: Sequence[Row], payloads: Sequence[Row]) -> tuple[Claim, ...]:
    payload_of = {row["step_id"]: bytes(row["payload"]) for row in payloads}
    return tuple(
        Claim(
            facts=_facts(row),
            base_attempt=row["base_attempt"],
            left_s=row["left_s"],
            fingerprint=row["fingerprint"],
            payload=payload_of.get(row["step_id"]),
            cancel_after_s=row["cancel_after_s"],
            deadline_reason=row["deadline_reason"],
        )
        for row in rows
    )


def _keys_of(endings: Sequence[Ending]) -> dict[str, list[Any]]:
    return {
        "tenants": [e.facts.tenant_id for e in endings],
        "turn_ids": [e.facts.turn_id for e in endings],
        "step_ids": [e.facts.step_id for e in endings],
        "attempts": [e.facts.attempt for e in endings],
    }


def _attempt_parameters(endings: Sequence[Ending]) -> dict[str, list[Any]]:
    return {
        **_keys_of(endings),
        # Work that never started has attempt 0 of a first step; its row says so with 1.
        "attempts": [max(1, e.facts.attempt) for e in endings],
        "models": [e.facts.model for e in endings],
        "outcomes": [outcome_name(e.outcome) for e in endings],
        "reasons": [reason_of(e.outcome) for e in endings],
        "failures": [e.measured.failure for e in endings],
        "requests": [e.measured.requests for e in endings],
        "first_token_ms": [e.measured.first_token_ms for e in endings],
        "duration_ms": [e.measured.duration_ms for e in endings],
    }


def _repeated(steps: Sequence[StepFacts], reason: str) -> dict[str, list[Any]]:
    count = len(steps)
    return {
        "tenants": [s.tenant_id for s in steps],
        "turn_ids": [s.turn_id for s in steps],
        "step_ids": [s.step_id for s in steps],
        "attempts": [s.attempt for s in steps],
        "models": [s.model for s in steps],
        "outcomes": [REQUEUED] * count,
        "reasons": [reason] * count,
        "failures": [None] * count,
        "requests": [0] * count,
        "first_token_ms": [None] * count,
        "duration_ms": [None] * count,
    }


def _usage_statements(endings: Sequence[Ending]) -> list[Statement]:
    counted = [(e, e.usage) for e in endings if e.usage is not None]
    if not counted:
        return []
    parameters = {
        **_keys_of([e for e, _ in counted]),
        "models": [e.facts.model for e, _ in counted],
        "inputs": [usage.input for _, usage in counted],
        "outputs": [usage.output for _, usage in counted],
        "cached": [usage.cached for _, usage in counted],
        "costs": [usage.cost_usd for _, usage in counted],
        "estimated": [usage.estimated for _, usage in counted],
    }
    return [(_SQL["record_usage"], parameters)]


def _result_statements(endings: Sequence[Ending]) -> list[Statement]:
    with_text = [e for e in endings if not isinstance(e.outcome, Failed)]
    if not with_text:
        return []
    parameters = {
        **_keys_of(with_text),
        "texts": [e.text.text for e in with_text],
        "lengths": [e.text.length for e in with_text],
        "sha256s": [e.text.sha256 for e in with_text],
    }
    return [(_SQL["record_results"], parameters)]
