"""Handles ``turn.ended``: the payloads of an ended turn are deleted, or kept where they should be.

A consumer of its own beside the one that plans: nobody waits for a clean-up, so it reads many ends
at once and leaves the cores to those who wait for a plan. The two may come to a turn in any order:
both take the conversation's lock, a plan of an ended turn is not made, and a payload that was
written after its clean-up is found by ``Retention``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from schemas.registry import TURN_EVENTS
from schemas.turns import TurnEndedV1
from services.context_assembly.core.posture import keeps_payload
from services.context_assembly.ports import BatchEffects, BatchQuestion, EndedTurn, TurnKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libs.kafka import Delivery
    from libs.outbox import OutboxMessage
    from libs.postgres import Transaction
    from libs.telemetry.metrics import Metrics
    from schemas.envelope import Event
    from services.context_assembly.estimates import EstimateWatch
    from services.context_assembly.ports import PlanningStore

CONSUMER: Final = "context_assembly.endings"


class EndHandlers:
    """The batch handler of the ends on ``turn.events``."""

    consumer = CONSUMER
    topics = (TURN_EVENTS,)

    def __init__(
        self,
        store: PlanningStore,
        *,
        estimates: EstimateWatch,
        metrics: Metrics,
        sampled_per_mille: int,
    ) -> None:
        """``sampled_per_mille``: share of payloads kept although nothing went wrong."""
        self._store = store
        self._estimates = estimates
        self._metrics = metrics
        self._sampled_per_mille = sampled_per_mille

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        """Everything on this topic comes from one service and may be handled."""
        return [None] * len(deliveries)

    async def handle(self, batch: Sequence[Delivery]) -> None:
        """Clean up after ended turns; the same records again change nothing.

        Raises:
            StoreUnavailable: Run the batch again.
        """
        events = {d.event.id: d.event for d in batch if not d.event.replay}.values()
        ended = [event for event in events if isinstance(event.data, TurnEndedV1)]
        if not ended:
            return
        question = BatchQuestion(
            event_ids=[event.id for event in ended],
            conversations={event.conversation_id for event in ended},
        )
        async with self._store.transaction({event.tenant_id for event in ended}) as transaction:
            facts = await transaction.facts(question)
            fresh = [event for event in ended if event.id not in facts.seen]
            if fresh:
                gone = [self._ended(event) for event in fresh]
                await transaction.commit(BatchEffects([e.id for e in fresh], ended=gone))
        if repeats := len(ended) - len(fresh):
            self._metrics.inbox_duplicates_total.labels(consumer=CONSUMER).inc(repeats)
        for event in fresh:
            self._estimates.ended(event.turn_id, event.data)

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        """Nothing: the turn has ended already."""
        del delivery, transaction, reason
        return ()

    def _ended(self, event: Event[TurnEndedV1]) -> EndedTurn:
        data = event.data
        is_kept = keeps_payload(
            event.turn_id,
            data.status,
            data.reason,
            sampled_per_mille=self._sampled_per_mille,
        )
        key = TurnKey(event.tenant_id, event.turn_id)
        return EndedTurn(key, (data.reason or data.status) if is_kept else None)
