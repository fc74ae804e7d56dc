"""Moves and ends turns: lock, read, decide, write, for events, sweeps and dead letters alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from libs import inbox
from libs.errors import Terminal
from libs.failpoints import failpoint
from libs.outbox import OutboxMessage, closing_statements, outbox_message
from libs.postgres import Database, Row, Statement, Transaction
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from schemas.registry import TURN_EVENTS
from schemas.streams import Entry, TurnEnd, terminal_entries
from services.ingestion import store
from services.ingestion.announcer import Announcer
from services.ingestion.core import events
from services.ingestion.core.answer import Answer
from services.ingestion.core.entries import moving_up
from services.ingestion.core.settlement import (
    Ended,
    Settlement,
    Signal,
    TurnFacts,
    settle,
)
from services.ingestion.core.standing import ConversationKey
from services.ingestion.locked import purged_keys, purged_statement
from services.ingestion.ports import HandOver
from services.ingestion.turn_spans import Life, trace_turn


class TurnMismatch(Terminal):
    """An event names a turn that does not exist, or another tenant's or conversation's."""

    code = "turn_mismatch"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What somebody wants to happen to a turn.

    Attributes:
        id: The event's id, or an id that follows from the turn for what a sweep wants.
        answer: The end it proposes; None for progress.
        is_for_waiting: Means only a turn that has not started, as the locked rows say.
    """

    id: UUID
    tenant_id: UUID
    conversation_id: UUID
    turn_id: UUID
    answer: Answer | None = None
    is_for_waiting: bool = False


@dataclass(frozen=True, slots=True)
class ShortTexts:
    """Answers short enough to be read, compared and counted while the locks are held.

    Attributes:
        statement: Reads them, in the round trip that locks.
        proposed: The same proposals, completed with what the rows say.
    """

    statement: Statement
    proposed: Callable[[Sequence[Row]], Sequence[Proposal]]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a transaction is about to write, and what is told once it has.

    Attributes:
        fresh: Ids of the proposals that were not handled before.
        unproven: Ends of ``ended`` whose stored text is not the one that was told.
        lives: Of each of ``ended``, in the same order.
    """

    writes: tuple[Statement, ...]
    messages: tuple[OutboxMessage, ...]
    entries: tuple[tuple[UUID, tuple[Entry, ...]], ...]
    fresh: tuple[UUID, ...]
    ended: tuple[Ended, ...]
    unproven: tuple[Ended, ...]
    lives: tuple[Life, ...]


class Settler:
    """Settles batches of proposals, each in one transaction of two round trips."""

    def __init__(
        self,
        database: Database,
        relay: HandOver,
        announcer: Announcer,
        *,
        metrics: Metrics,
        tracing: Tracing,
        turn_deadline_s: float,
    ) -> None:
        self._tracing = tracing
        self._database = database
        self._relay = relay
        self._announcer = announcer
        self._metrics = metrics
        self._turn_deadline_s = turn_deadline_s

    async def settle(
        self,
        proposals: Sequence[Proposal],
        *,
        consumer: str | None,
        texts: ShortTexts | None = None,
    ) -> Settled:
        """Carry out proposals in order and tell about them.

        Args:
            consumer: Whose inbox knows these events; None for sweeps, which look at rows instead.
            texts: Completes the proposals inside the transaction.

        Raises:
            TurnMismatch: A proposal fits no turn; nothing was written.
            StoreUnavailable: Whether it was committed is unknown; doing it again is safe.
        """
        settled = await self._run(proposals, (), consumer, texts)
        repeats = len(proposals) - len(settled.fresh)
        if repeats and consumer is not None:
            self._metrics.inbox_duplicates_total.labels(consumer).inc(repeats)
        return settled

    async def start_heads(self, conversations: Sequence[ConversationKey]) -> Settled:
        """Start the first turn of every branch of these conversations that has not started."""
        return await self._run((), conversations, None)

    async def _run(
        self,
        proposals: Sequence[Proposal],
        conversations: Sequence[ConversationKey],
        consumer: str | None,
        texts: ShortTexts | None = None,
    ) -> Settled:
        tenants = {p.tenant_id for p in proposals} | {tenant for tenant, _ in conversations}
        async with self._database.transaction(tenants) as transaction:
            settled = await self.prepare(
                transaction,
                proposals,
                consumer=consumer,
                conversations=conversations,
                texts=texts,
            )
            statements = list(settled.writes)
            if consumer is not None and settled.fresh:
                statements.append(inbox.record_statement(consumer, settled.fresh))
            if settled.ended:
                failpoint("ingestion.before_answer_commit")
            if statements:
                acknowledged = self._relay.take_acknowledged()
                statements += closing_statements(settled.messages, acknowledged)
                rows = await transaction.commit_with(statements)
        if settled.ended:
            failpoint("ingestion.after_answer_commit")
        if settled.messages:
            self._relay.hand_over(settled.messages, [row["id"] for row in rows[-1]])
        await self._announcer.announce(settled.entries)
        self.count(settled)
        return settled

    async def prepare(
        self,
        transaction: Transaction,
        proposals: Sequence[Proposal],
        *,
        consumer: str | None,
        conversations: Sequence[ConversationKey] = (),
        texts: ShortTexts | None = None,
    ) -> Settled:
        """Lock, read and decide inside the caller's transaction, which must write the result.

        Args:
            conversations: Whose queues are looked at though no proposal names them.
            texts: Completes the proposals, once they are locked.
        """
        locked = [*conversations, *((p.tenant_id, p.conversation_id) for p in proposals)]
        reads = [
            *store.lock_statements(locked),
            store.now_statement(),
            *store.settlement_reads(
                [(p.tenant_id, p.turn_id) for p in proposals], [key[1] for key in locked]
            ),
        ]
        if consumer is not None:
            reads.append(inbox.seen_statement(consumer, [p.id for p in proposals]))
        if texts is not None:
            reads.append(texts.statement)
        rows = await transaction.batch(reads)
        if texts is not None:
            proposals = texts.proposed(rows[-1])
        seen = {row["event_id"] for row in rows[4]} if consumer is not None else set()
        standing = store.standing_rows(rows[2], rows[3])
        fresh = {p.id: p for p in proposals if p.id not in seen}
        known = await _known(transaction, list(fresh.values()), standing)
        settlement = settle(
            [_signal(proposal) for proposal in known],
            turns=standing.turns,
            queues=standing.queues,
        )
        answers = {p.id: p.answer for p in fresh.values() if p.answer is not None}
        return self._settled(settlement, answers, standing, now=rows[1][0]["now"], fresh=fresh)

    def _settled(
        self,
        settlement: Settlement,
        answers: Mapping[UUID, Answer],
        standing: store.Standing,
        *,
        now: datetime,
        fresh: Mapping[UUID, Proposal],
    ) -> Settled:
        messages: list[OutboxMessage] = []
        entries: list[tuple[UUID, tuple[Entry, ...]]] = []
        for end in settlement.ended:
            answer = answers[end.signal.event_id]
            told = events.End(end.ending, answer.length, answer.usage, end.signal.event_id)
            trace = standing.traceparents[end.turn.id]
            event = events.ended(end.turn, told, at=now, traceparent=trace)
            messages.append(outbox_message(event, TURN_EVENTS))
            entries.append((end.turn.id, terminal_entries(_turn_end(end, answer))))
        for advanced in settlement.advanced:
            queued_at = standing.queued_at[advanced.turn_id]
            moves = moving_up(
                queued_at=queued_at, before=advanced.before, position=advanced.position
            )
            entries.append((advanced.turn_id, moves))
        deadline_at = now + timedelta(seconds=self._turn_deadline_s)
        for start in settlement.started:
            turn = standing.startable[start.turn_id]
            event_started = events.started(turn, at=now, deadline_at=deadline_at)
            messages.append(outbox_message(event_started, TURN_EVENTS))
        writes = store.settlement_writes(
            settlement, answers, standing, deadline_s=self._turn_deadline_s
        )
        return Settled(
            writes=tuple(writes),
            messages=tuple(messages),
            entries=tuple(entries),
            fresh=tuple(fresh),
            ended=settlement.ended,
            unproven=tuple(
                end for end in settlement.ended if answers[end.signal.event_id].is_unproven
            ),
            lives=tuple(
                Life(
                    standing.created_at[end.turn.id],
                    now,
                    answers[end.signal.event_id].first_token_at,
                    standing.traceparents[end.turn.id],
                    answers[end.signal.event_id].usage,
                )
                for end in settlement.ended
            ),
        )

    def count(self, settled: Settled) -> None:
        """Count the ends of a settlement in the metrics, and write the spans of their turns."""
        metrics = self._metrics
        for end, life in zip(settled.ended, settled.lives, strict=True):
            metrics.turns_terminal_total.labels(end.ending.status, end.ending.reason).inc()
            metrics.turn_duration_seconds.observe(_seconds(life.accepted_at, life.ended_at))
            if life.first_token_at is not None:
                waited_s = _seconds(life.accepted_at, life.first_token_at)
                metrics.turn_time_to_first_token_seconds.observe(waited_s)
            trace_turn(self._tracing, end, life)


def _seconds(earlier: datetime, later: datetime) -> float:
    """Between two moments, which two clocks may have told: never below zero."""
    return max(0.0, (later - earlier).total_seconds())


async def _known(
    transaction: Transaction, proposals: Sequence[Proposal], standing: store.Standing
) -> list[Proposal]:
    """The proposals whose turn has a row, without those of conversations that are gone for good.

    Raises:
        TurnMismatch: A proposal fits no row, and not because its conversation was purged.
    """
    known = [proposal for proposal in proposals if _has_row(proposal, standing)]
    if len(known) == len(proposals):
        return known
    strays = [proposal for proposal in proposals if not _has_row(proposal, standing)]
    asked = purged_statement([(stray.tenant_id, stray.conversation_id) for stray in strays])
    purged = purged_keys((await transaction.batch([asked]))[0])
    if all((stray.tenant_id, stray.conversation_id) in purged for stray in strays):
        return known
    msg = "the event's tenant, conversation and turn fit no row; its producer is confused"
    raise TurnMismatch(msg)


def _has_row(proposal: Proposal, standing: store.Standing) -> bool:
    turn: TurnFacts | None = standing.turns.get((proposal.tenant_id, proposal.turn_id))
    return turn is not None and turn.conversation_id == proposal.conversation_id


def _signal(proposal: Proposal) -> Signal:
    ending = None if proposal.answer is None else proposal.answer.ending
    turn = (proposal.tenant_id, proposal.turn_id)
    return Signal(proposal.id, turn, ending, is_for_waiting=proposal.is_for_waiting)


def _turn_end(end: Ended, answer: Answer) -> TurnEnd:
    return TurnEnd(
        status=end.ending.status,
        reason=end.ending.reason,
        length=answer.length,
        sha256=answer.sha256,
        usage=answer.usage,
    )
