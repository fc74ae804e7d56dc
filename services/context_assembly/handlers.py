"""Handles topic ``turn.events``: a started turn gets its plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from libs.errors import Retryable, Terminal
from libs.kafka.spans import attributes_of
from libs.telemetry import names
from libs.telemetry.logging import get_logger
from libs.tokens import count
from schemas.registry import TURN_EVENTS
from schemas.turns import TurnStartedV1
from services.context_assembly.core.plan import ASSEMBLY_REVISION, PromptPlan
from services.context_assembly.counting import COUNT_IN_TRANSACTION_CHARACTERS, Counter
from services.context_assembly.planning import (
    Judged,
    Moment,
    Outcome,
    Policies,
    Start,
    draft,
    finish,
    judge,
    refused,
)
from services.context_assembly.ports import (
    BatchEffects,
    BatchFacts,
    BatchQuestion,
    ConversationKey,
    TextKey,
)
from services.context_assembly.reading import FirstPages, read_histories
from services.context_assembly.store import (
    SQL,
    known_steps_statement,
    step_statements,
    turn_states,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from libs.clock import Clock
    from libs.kafka import Delivery
    from libs.outbox import OutboxMessage
    from libs.postgres import Transaction
    from libs.telemetry.metrics import Metrics
    from libs.telemetry.names import Attributes
    from libs.telemetry.tracing import Tracing
    from schemas.envelope import Event
    from services.context_assembly.estimates import EstimateWatch
    from services.context_assembly.ports import PlanningStore, PlanningTransaction

CONSUMER: Final = "context_assembly.turns"

DELETED: Final = "user"
"""Why a turn ends whose own message was deleted: as if its author had cancelled it."""

TERMINAL: Final = frozenset({"completed", "partial", "failed", "cancelled"})

MAX_LOGGED_IDS: Final = 20
"""Newest message ids in a plan's log line; the plan itself has all of them."""

ALWAYS_COUNTED: Final = frozenset({"system", "history", "current"})
"""Sections whose tokens are observed even where they are 0; others only where they are used."""


class UnknownTurn(Terminal):
    """An event speaks of a turn that its owner does not have, or has in another conversation."""

    code = "context.unknown_turn"


class TokensUncounted(Retryable):
    """History changed between counting and planning, so a message is not counted yet."""

    code = "context.tokens_uncounted"


class TurnHandlers:
    """The batch handler of ``turn.events``."""

    consumer = CONSUMER
    topics = (TURN_EVENTS,)

    def __init__(
        self,
        store: PlanningStore,
        *,
        policies: Policies,
        estimates: EstimateWatch,
        clock: Clock,
        metrics: Metrics,
        tracing: Tracing,
    ) -> None:
        self._store = store
        self._policies = policies
        self._estimates = estimates
        self._clock = clock
        self._metrics = metrics
        self._tracing = tracing
        self._log = get_logger()
        self._first_pages = FirstPages()
        self._told_of_records: Mapping[UUID, Attributes] = {}  # of the batch in hand, for its spans

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        """Everything on this topic comes from one service and may be handled."""
        return [None] * len(deliveries)

    async def handle(self, batch: Sequence[Delivery]) -> None:
        """Plan started turns; the same records again change nothing.

        Raises:
            UnknownTurn: A turn's identity does not match its owner's row.
            StoreUnavailable: Run the batch again.
        """
        if self._tracing.is_kept:
            self._told_of_records = {d.event.id: attributes_of(d) for d in batch}
        events = {d.event.id: d.event for d in batch if not d.event.replay}.values()
        started = [event for event in events if isinstance(event.data, TurnStartedV1)]
        for members in self._rounds(started):
            await self._handle(members)

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        """Refuse the step of a started turn that cannot be planned, where its rows match."""
        event = delivery.event
        if not isinstance(event.data, TurnStartedV1):
            return ()
        start = Start.of(event, self._policies)
        turns, known = await transaction.batch(
            [(SQL["turns"], {"turns": [event.turn_id]}), known_steps_statement([start.step])]
        )
        state = turn_states(turns).get(start.turn)
        is_ours = state is not None and state.conversation_id == event.conversation_id
        if state is None or not is_ours or state.status in TERMINAL or known:
            return ()
        moment = Moment(self._clock.now(), event.traceparent)
        step = refused(start, "dead_lettered", moment)
        await transaction.batch(list(step_statements([step])))
        self._log.error("context.turn_dead_lettered", **_identity(event), reason=reason)
        return (step.message,)

    def _rounds(self, started: Sequence[Event[TurnStartedV1]]) -> list[list[Event[TurnStartedV1]]]:
        """Turns that are planned together, in their order; see ``_rounds``.

        A round's token counts are those of one tokenizer.
        """
        models = {event.data.model for event in started}
        if len(models) <= 1:
            return _rounds(started, dict.fromkeys(models, ""))
        tokenizers = {model: self._policies.limits_of(model).tokenizer for model in models}
        return _rounds(started, tokenizers)

    async def _handle(self, started: Sequence[Event[TurnStartedV1]]) -> None:
        counted: dict[TextKey, int] = {}
        if await self._attempt(started, counted):
            return
        # Counting may take long, so no transaction is open meanwhile. Then once more from the
        # start, with everything counted.
        await self._count_all(started, counted)
        if not await self._attempt(started, counted):
            msg = "a message of the history is still not counted; the batch is read again"
            raise TokensUncounted(msg)

    async def _attempt(
        self, started: Sequence[Event[TurnStartedV1]], counted: dict[TextKey, int]
    ) -> bool:
        """Do all in one transaction; False, and nothing written, if a message is not counted."""
        starts = [self._start(event) for event in started]
        tenants = {event.tenant_id for event in started}
        async with self._store.transaction(tenants) as transaction:
            facts = await transaction.facts(_question(starts))
            due = _due(starts, facts, await self._purged(starts, facts, transaction))
            outcomes = [self._gone(start) for start in due if not _has_texts(start, facts)]
            due = [start for start in due if _has_texts(start, facts)]
            if not _set_own_tokens(due, facts, counted):
                return False
            await self._offer(due, transaction)
            if await read_histories([start.reading for start in due], transaction, counted):
                return False
            outcomes += await self._plan(due, transaction, facts, counted)
            fresh = [event.id for event in started if event.id not in facts.seen]
            if fresh:
                steps = [outcome.step for outcome in outcomes]
                await transaction.commit(BatchEffects(fresh, steps=steps))
        self._report_repeats(len(started) - len(fresh))
        for outcome in outcomes:
            self._report(outcome)
        return True

    def _start(self, event: Event[TurnStartedV1]) -> Start:
        first_rows = self._first_pages.rows_of(event.data.branch_id)
        return Start.of(event, self._policies, first_rows=first_rows)

    async def _purged(
        self, starts: Sequence[Start], facts: BatchFacts, transaction: PlanningTransaction
    ) -> frozenset[ConversationKey]:
        """Purged conversations of turns that nobody knows; asked only if there are such turns."""
        unknown = {start.conversation for start in starts if start.turn not in facts.turns}
        return await transaction.purged(unknown) if unknown else frozenset()

    async def _offer(self, due: Sequence[Start], transaction: PlanningTransaction) -> None:
        """Ask every data layer what it would like to show."""
        if not due:
            return
        for layer in self._policies.layers:
            found = await layer.candidates(due, transaction)
            for start in due:
                start.offered.extend(found.get(start.turn, ()))

    def _gone(self, start: Start) -> Outcome:
        """End a turn whose own message was deleted before it was planned."""
        moment = Moment(self._clock.now(), start.event.traceparent)
        return Outcome(start, refused(start, DELETED, moment), None)

    async def _plan(
        self,
        due: Sequence[Start],
        transaction: PlanningTransaction,
        facts: BatchFacts,
        counted: dict[TextKey, int],
    ) -> list[Outcome]:
        """Plan every step; long texts are read only of the chosen messages."""
        drafts = [draft(start, counted) for start in due]
        missing = set(chain.from_iterable(drafted.texts_missing for drafted in drafts))
        texts = dict(facts.texts)
        if missing:
            texts |= await transaction.texts(missing)
        asked_for: dict[UUID, dict[str, str]] = {}
        for key, text in texts.items():
            asked_for.setdefault(key.tenant_id, {})[str(key.message_id)] = text
        return [
            self._finish(
                judged,
                judged.start.reading.short_texts()
                | asked_for.get(judged.start.event.tenant_id, {}),
            )
            for judged in map(judge, drafts)
        ]

    def _finish(self, judged: Judged, texts: Mapping[str, str]) -> Outcome:
        """Render one plan, in a span of its turn's trace."""
        event = judged.start.event
        with self._tracing.span(
            names.process_span(TURN_EVENTS),
            kind="consumer",
            parent_traceparent=event.traceparent,
            turn_id=event.turn_id,
            attributes=self._told_of_records.get(event.id),
        ) as span:
            moment = Moment(self._clock.now(), span.traceparent)
            outcome = finish(judged, texts, moment=moment, limit=self._policies.step_limit)
            if self._policies.postures.choice_of(event.tenant_id).posture == "none":
                outcome = replace(outcome, step=replace(outcome.step, capture=None))
            if span.is_kept:
                plan = outcome.plan
                span.set(names.TENANT_ID, str(event.tenant_id))
                span.set(names.TURN_ID, str(event.turn_id))
                span.set(names.STEP_ID, str(outcome.step.step_id))
                span.set(names.PLAN_FINGERPRINT, plan.fingerprint if plan is not None else None)
            if outcome.step.reason is not None:
                span.fail(outcome.step.reason)
        return outcome

    async def _count_all(
        self, started: Sequence[Event[TurnStartedV1]], counted: dict[TextKey, int]
    ) -> None:
        tenants = {event.tenant_id for event in started}
        reader = self._store.reader(tenants)
        counter = Counter(reader, self._store.token_counts(tenants), pause=self._clock.sleep)
        starts = [self._start(event) for event in started]
        tokenizers = {key: start.reading.start.tokenizer for start in starts for key in start.own}
        counted.update(await counter.count(list(tokenizers), tokenizers))
        for start in starts:
            start.set_own_tokens(counted)
        await read_histories([start.reading for start in starts], reader, counted, counter=counter)

    def _report_repeats(self, repeats: int) -> None:
        if repeats:
            self._metrics.inbox_duplicates_total.labels(consumer=CONSUMER).inc(repeats)

    def _report(self, outcome: Outcome) -> None:
        """One line and the metrics of one committed step."""
        step, plan = outcome.step, outcome.plan
        if step.invariant is not None:
            self._metrics.invariant_violations_total.labels(invariant=step.invariant).inc()
        fields = _identity(outcome.start.event)
        if plan is not None:
            fields |= _facts_of(plan)
            self._estimates.planned(outcome.start.event.turn_id, plan)
            self._first_pages.shown(outcome.start.event.data.branch_id, plan.kept)
            for part in plan.sections:
                if part.used or part.section in ALWAYS_COUNTED:
                    self._metrics.plan_tokens.labels(section=part.section).observe(part.used)
            for reason, times in plan.excluded_counts.items():
                self._metrics.plan_excluded_total.labels(reason=reason).inc(times)
        if step.reason is None:
            self._log.info("context.step_planned", **fields)
        else:
            self._log.warning(
                "context.step_refused", **fields, reason=step.reason, invariant=step.invariant
            )


def _rounds(
    started: Iterable[Event[TurnStartedV1]], tokenizers: Mapping[str | None, str]
) -> list[list[Event[TurnStartedV1]]]:
    """Divide started turns so that no two of a round share a branch, and all share a tokenizer.

    Turns of one branch keep their order. Two of them meet only after an outage, when the first has
    ended meanwhile.

    Args:
        tokenizers: By model.
    """
    rounds: list[tuple[str, dict[UUID, Event[TurnStartedV1]]]] = []
    first_free: dict[UUID, int] = {}
    for event in started:
        branch, wanted = event.data.branch_id, tokenizers[event.data.model]
        open_to_it = range(first_free.get(branch, 0), len(rounds))
        place = next((no for no in open_to_it if rounds[no][0] == wanted), len(rounds))
        if place == len(rounds):
            rounds.append((wanted, {}))
        rounds[place][1][branch] = event
        first_free[branch] = place + 1
    return [list(members.values()) for _, members in rounds]


def _question(starts: Sequence[Start]) -> BatchQuestion:
    return BatchQuestion(
        event_ids=[start.event.id for start in starts],
        conversations={start.event.conversation_id for start in starts},
        turns=[start.turn for start in starts],
        steps=[start.step for start in starts],
        cursors=[start.reading.start for start in starts],
        own=[key for start in starts for key in start.own],
    )


def _due(
    starts: Sequence[Start], facts: BatchFacts, purged: frozenset[ConversationKey]
) -> list[Start]:
    """The turns that still need a plan, with their first page of history.

    None that has ended, that somebody wants to stop, or whose conversation is gone.

    Raises:
        UnknownTurn: Tenant, conversation or turn do not match the owner's row.
    """
    due = []
    for start, page in zip(starts, facts.pages, strict=True):
        state = facts.turns.get(start.turn)
        if state is None and start.conversation in purged:
            continue
        is_match = (
            state is not None
            and state.conversation_id == start.event.conversation_id
            and state.branch_id == start.event.data.branch_id
        )
        if state is None or not is_match:
            msg = f"turn {start.event.turn_id} is not known in this conversation; nothing planned"
            raise UnknownTurn(msg)
        is_done = start.event.id in facts.seen or start.step in facts.known_steps
        if not is_done and state.status not in TERMINAL and state.cancel_reason is None:
            start.set_instructions(state.instructions)
            start.reading.add(page, start.reading.start)
            due.append(start)
    return due


def _has_texts(start: Start, facts: BatchFacts) -> bool:
    """Whether everything that the turn shows itself is still there."""
    return all(key in facts.texts for key in start.own)


def _set_own_tokens(due: Iterable[Start], facts: BatchFacts, counted: dict[TextKey, int]) -> bool:
    """Count what turns show themselves; False if a text is too long to be counted under locks."""
    for start in due:
        for key in start.own:
            if key not in counted:
                text = facts.texts[key]
                if len(text) > COUNT_IN_TRANSACTION_CHARACTERS:
                    return False
                counted[key] = count(text, start.reading.start.tokenizer)
        start.set_own_tokens(counted)
    return True


def _identity(event: Event[Any]) -> dict[str, Any]:
    return {
        "tenant_id": str(event.tenant_id),
        "conversation_id": str(event.conversation_id),
        "turn_id": str(event.turn_id),
    }


def _facts_of(plan: PromptPlan) -> dict[str, Any]:
    """What a log line tells of a plan: ids, counts and hashes, never a text."""
    history = plan.history
    return {
        "step_id": str(plan.turn.step_id),
        "model": plan.limits.model,
        "message_ids": list(plan.message_ids[-MAX_LOGGED_IDS:]),
        "shown_count": len(plan.message_ids),
        "seq_range": list(plan.seq_range),
        "base_seq": plan.turn.base_seq,
        "loaded": plan.loaded,
        "trimmed": plan.trimmed,
        "budget_tokens": plan.budget_tokens,
        "used_tokens": plan.tokens,
        "history_before_tokens": history.before,
        "history_after_tokens": history.after,
        "fingerprint": plan.fingerprint,
        "assembly_revision": ASSEMBLY_REVISION,
    }
