"""Takes planned steps over, stops what is cancelled, and forgets what has ended."""

from collections.abc import Sequence
from contextlib import nullcontext

from libs.clock import Clock
from libs.errors import Terminal
from libs.kafka.records import Delivery
from libs.kafka.spans import spans_of
from libs.outbox import OutboxMessage, outbox_message
from libs.postgres import Transaction
from libs.telemetry.tracing import Tracing
from schemas.generations import GenerationFailedV1
from schemas.registry import CONTEXT_EVENTS, GENERATION_EVENTS, TURN_EVENTS
from schemas.steps import StepPlannedV1
from schemas.turns import TurnCancelRequestedV1, TurnEndedV1
from services.llm_gateway.core.outcomes import StepFacts, event_of
from services.llm_gateway.pool import Pool
from services.llm_gateway.recoverer import ready_ending
from services.llm_gateway.store import Store, matches_open_turn

CONTEXT_CONSUMER = "llm_gateway.steps"
TURN_CONSUMER = "llm_gateway.turns"
DEAD_LETTERED = "dead_lettered"
REPLAYED = "replayed"


class UnknownTurn(Terminal):
    """An event speaks of a turn that its tenant and conversation do not have."""

    code = "llm.unknown_turn"


def _screened(deliveries: Sequence[Delivery]) -> list[str | None]:
    """A replay rebuilds projections; a paid call is none."""
    return [REPLAYED if delivery.event.replay else None for delivery in deliveries]


class StepHandlers:
    """The batch handler of ``context.events``."""

    consumer = CONTEXT_CONSUMER
    topics = (CONTEXT_EVENTS,)

    def __init__(self, store: Store, pool: Pool, *, clock: Clock, tracing: Tracing) -> None:
        self._store = store
        self._pool = pool
        self._clock = clock
        self._tracing = tracing

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        """Refuse replays."""
        return _screened(deliveries)

    async def handle(self, batch: Sequence[Delivery]) -> None:
        """Accept planned steps and start those there is room for; ``step.refused`` is not for us.

        Raises:
            UnknownTurn: After the others of the batch were taken over: that record is to blame.
        """
        planned = [d for d in batch if isinstance(d.event.data, StepPlannedV1)]
        if not planned:
            return
        room = self._pool.reserve(len(planned))
        is_told = self._tracing.is_kept  # their ids are passed on to nobody
        try:
            with spans_of(self._tracing, planned) if is_told else nullcontext():
                accepted = await self._store.accept(
                    self.consumer, [delivery.event for delivery in planned], room=room
                )
        finally:
            self._pool.release(room)
        self._pool.start(accepted.claimed)
        if accepted.waiting:
            self._pool.work_waits()
        if accepted.unknown:
            turn_id = accepted.unknown[0]
            msg = (
                f"no turn {turn_id} in that tenant and conversation: its producer is not "
                "context_assembly, or ingestion lost the row; compare ingestion.turns"
            )
            raise UnknownTurn(msg)

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        """A parked step ends its turn as failed, if the turn is the one the event names."""
        del reason  # stands in the dead letter; the turn's reason is one of a closed list
        event = delivery.event
        if not isinstance(event.data, StepPlannedV1):
            return ()
        if not await matches_open_turn(transaction, event):
            return ()
        facts = StepFacts(
            step_id=event.data.step_id,
            tenant_id=event.tenant_id,
            conversation_id=event.conversation_id,
            turn_id=event.turn_id,
            attempt=0,
            model=event.data.model,
            causation_id=event.id,
            traceparent=event.traceparent,
        )
        data = GenerationFailedV1(step_id=facts.step_id, attempt=0, reason=DEAD_LETTERED)
        return [outbox_message(event_of(facts, data, now=self._clock.now()), GENERATION_EVENTS)]


class TurnHandlers:
    """The batch handler of ``turn.events``."""

    consumer = TURN_CONSUMER
    topics = (TURN_EVENTS,)

    def __init__(self, store: Store, pool: Pool) -> None:
        self._store = store
        self._pool = pool

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        """Refuse replays."""
        return _screened(deliveries)

    async def handle(self, batch: Sequence[Delivery]) -> None:
        """Cancel and forget. The other events of a turn are not for us."""
        cancels = [
            (d.event, d.event.data.reason)
            for d in batch
            if isinstance(d.event.data, TurnCancelRequestedV1)
        ]
        if cancels:
            waiting, running = await self._store.request_cancel(self.consumer, cancels)
            reasons = {event.turn_id: reason for event, reason in cancels}
            if waiting:
                await self._store.finish_ready(
                    [ready_ending(facts, reasons[facts.turn_id]) for facts in waiting]
                )
            self._pool.stop(running)
        ended = [d.event for d in batch if isinstance(d.event.data, TurnEndedV1)]
        if ended:
            self._pool.lose(await self._store.forget_turns(self.consumer, ended))

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        """Nothing: a turn that could not be cancelled or forgotten here is not failed by that."""
        del delivery, transaction, reason
        return ()
