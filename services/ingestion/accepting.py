"""Accepts a batch of requests: lock, read, decide, write, in one transaction of two round trips."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from libs import inbox
from libs.failpoints import failpoint
from libs.outbox import OutboxMessage, closing_statements, outbox_message
from libs.postgres import Database, Statement, Transaction
from libs.telemetry.metrics import Metrics
from schemas.envelope import Event
from schemas.registry import TURN_EVENTS
from services.ingestion import store
from services.ingestion.announcer import Announcer
from services.ingestion.core import events
from services.ingestion.core.acceptance import decide
from services.ingestion.core.decisions import Acceptance, NewTurn
from services.ingestion.core.entries import opening
from services.ingestion.core.requests import Request
from services.ingestion.core.spots import Rules
from services.ingestion.locked import LockedReads
from services.ingestion.ports import HandOver, Tokens


@dataclass(frozen=True, slots=True)
class _Counts:
    """Tokenizer and tokens of each request's message, by request."""

    by_request: dict[UUID, tuple[str, int]]

    def of(self, turns: Iterable[NewTurn]) -> list[store.Counted]:
        """As rows for the messages that were accepted."""
        return [
            store.Counted(
                turn.request.tenant_id, turn.user_message_id, *self.by_request[turn.request.id]
            )
            for turn in turns
            if turn.request.id in self.by_request
        ]


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms requests are accepted.

    Attributes:
        on_marks: Called once turns that are to stop have been marked, after the commit.
    """

    rules: Rules
    limits: store.TimeLimits
    on_marks: Callable[[], None]


class Acceptor:
    """Turns requests into outcomes, each exactly once."""

    def __init__(
        self,
        database: Database,
        relay: HandOver,
        announcer: Announcer,
        *,
        tokens: Tokens,
        metrics: Metrics,
        terms: Terms,
    ) -> None:
        self._database = database
        self._relay = relay
        self._announcer = announcer
        self._tokens = tokens
        self._metrics = metrics
        self._terms = terms

    async def accept(self, requests: Sequence[Request], *, consumer: str) -> Acceptance:
        """Decide requests in order and tell their outcomes.

        Requests that ``consumer`` has handled before change nothing and have no decision.

        Raises:
            StoreUnavailable: Whether it was committed is unknown; doing it again is safe.
        """
        counts = self._count_tokens(requests)  # before the transaction: it takes milliseconds
        tenants = {request.tenant_id for request in requests}
        async with self._database.transaction(tenants) as transaction:
            acceptance, now = await self._decide(transaction, requests, consumer)
            messages = self._messages(acceptance, now)
            if acceptance.decisions:
                rows = await transaction.commit_with(
                    self._writes(acceptance, counts, messages, consumer)
                )
        failpoint("ingestion.after_accept_commit")
        if messages:
            self._relay.hand_over(messages, [row["id"] for row in rows[-1]])
            await self._relay.let_pass()  # planning waits for this; the announcement comes after
        if acceptance.marks:
            self._terms.on_marks()
        await self._announcer.announce(
            [
                (turn.turn_id, opening(turn.turn_id, seq=turn.seq, position=turn.position))
                for turn in acceptance.turns
            ],
            outcomes=[(d.request.id, d.outcome) for d in acceptance.decisions],
            forgotten=[gone.turn_id for gone in acceptance.deletions if gone.role == "assistant"],
        )
        self._count(acceptance, repeats=len(requests) - len(acceptance.decisions), by=consumer)
        return acceptance

    def _count_tokens(self, requests: Sequence[Request]) -> _Counts:
        return _Counts(
            {
                request.id: self._tokens.count(request.message.text, request.model)
                for request in requests
                if request.message is not None and request.fault is None
            }
        )

    async def _decide(
        self, transaction: Transaction, requests: Sequence[Request], consumer: str
    ) -> tuple[Acceptance, datetime]:
        locks = store.lock_statements(
            [(request.tenant_id, request.conversation_id) for request in requests],
            created=[request.conversation_id for request in requests if request.creates],
        )
        reads = LockedReads.of(requests)
        rows = await transaction.batch(
            [
                *locks,
                store.now_statement(),
                inbox.seen_statement(consumer, [request.id for request in requests]),
                *reads.statements,
            ]
        )
        conversations, now, seen, *others = rows[len(locks) - 1 :]
        handled = {row["event_id"] for row in seen}
        fresh = {request.id: request for request in requests if request.id not in handled}
        locked = reads.locked(conversations, others)
        return decide(fresh.values(), locked, self._terms.rules), now[0]["now"]

    def _messages(self, acceptance: Acceptance, now: datetime) -> list[OutboxMessage]:
        limits = self._terms.limits
        deadline_at = now + timedelta(seconds=limits.deadline_s)
        messages: list[OutboxMessage] = []
        for turn in acceptance.turns:
            messages.append(outbox_message(events.accepted(turn, at=now), TURN_EVENTS))
            if turn.position == 0:
                started = events.started(events.startable(turn), at=now, deadline_at=deadline_at)
                messages.append(outbox_message(started, TURN_EVENTS))
        purge_at = now + timedelta(seconds=limits.restore_s)
        told: list[Event[Any]] = [
            *(events.cancel_requested(mark, at=now) for mark in acceptance.marks),
            *(events.message_deleted(deletion, at=now) for deletion in acceptance.deletions),
            *(events.turned(one, at=now, purge_at=purge_at) for one in acceptance.turnings),
        ]
        return [*messages, *(outbox_message(event, TURN_EVENTS) for event in told)]

    def _writes(
        self,
        acceptance: Acceptance,
        counts: _Counts,
        messages: Sequence[OutboxMessage],
        consumer: str,
    ) -> list[Statement]:
        return [
            *store.acceptance_writes(acceptance, counts.of(acceptance.turns), self._terms.limits),
            inbox.record_statement(consumer, [d.request.id for d in acceptance.decisions]),
            *closing_statements(messages, self._relay.take_acknowledged()),
        ]

    def _count(self, acceptance: Acceptance, *, repeats: int, by: str) -> None:
        for turn in acceptance.turns:
            self._metrics.turns_accepted_total.labels(turn.policy).inc()
        for decision in acceptance.decisions:
            if decision.outcome in ("replayed", "conflict"):
                self._metrics.idempotent_replays_total.labels(decision.outcome).inc()
        if repeats:
            self._metrics.inbox_duplicates_total.labels(by).inc(repeats)
