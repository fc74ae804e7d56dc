"""Handles ends and deletions: payloads of ended turns go, and what was kept of deleted things.

An ended turn's payloads are deleted, or kept for a while where its tenant's posture says so. A
consumer of its own beside the one that plans: nobody waits for a clean-up, so it reads many ends
at once and leaves the cores to those who wait for a plan. The two may come to a turn in any order:
both take the conversation's lock, a plan of an ended turn is not made, and a payload that was
written after its clean-up is found by ``Retention``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from schemas.registry import TURN_EVENTS
from schemas.turns import (
    ConversationDeletedV1,
    ConversationPurgedV1,
    MessageDeletedV1,
    TurnEndedV1,
)
from services.context_assembly.ports import (
    BatchEffects,
    BatchQuestion,
    ConversationKey,
    EndedTurn,
    Forgotten,
    TurnKey,
)
from services.context_assembly.postures import capture_cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libs.kafka import Delivery
    from libs.outbox import OutboxMessage
    from libs.postgres import Transaction
    from libs.telemetry.metrics import Metrics
    from schemas.envelope import Event
    from services.context_assembly.estimates import EstimateWatch
    from services.context_assembly.ports import CapturePostures, PlanningStore

CONSUMER: Final = "context_assembly.endings"

Gone = MessageDeletedV1 | ConversationDeletedV1 | ConversationPurgedV1


class EndHandlers:
    """The batch handler of the ends and deletions on ``turn.events``."""

    consumer = CONSUMER
    topics = (TURN_EVENTS,)

    def __init__(
        self,
        store: PlanningStore,
        *,
        postures: CapturePostures,
        estimates: EstimateWatch,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._postures = postures
        self._estimates = estimates
        self._metrics = metrics

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        """Everything on this topic comes from one service and may be handled."""
        return [None] * len(deliveries)

    async def handle(self, batch: Sequence[Delivery]) -> None:
        """Clean up after ended turns, forget what was deleted; a repeat changes nothing.

        Raises:
            StoreUnavailable: Run the batch again.
        """
        read = {d.event.id: d.event for d in batch if not d.event.replay}.values()
        events = [event for event in read if isinstance(event.data, TurnEndedV1 | Gone)]
        if not events:
            return
        question = BatchQuestion(
            event_ids=[event.id for event in events],
            conversations={event.conversation_id for event in events},
        )
        async with self._store.transaction({event.tenant_id for event in events}) as transaction:
            facts = await transaction.facts(question)
            fresh = [event for event in events if event.id not in facts.seen]
            ended = [event for event in fresh if isinstance(event.data, TurnEndedV1)]
            if fresh:
                effects = BatchEffects(
                    [event.id for event in fresh],
                    ended=[self._ended(event) for event in ended],
                    forgotten=[_forgotten(e) for e in fresh if isinstance(e.data, Gone)],
                )
                await transaction.commit(effects)
        if repeats := len(events) - len(fresh):
            self._metrics.inbox_duplicates_total.labels(consumer=CONSUMER).inc(repeats)
        for event in ended:
            self._estimates.ended(event.turn_id, event.data)

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        """Nothing: the turn has ended already."""
        del delivery, transaction, reason
        return ()

    def _ended(self, event: Event[TurnEndedV1]) -> EndedTurn:
        cause = capture_cause(
            self._postures,
            ConversationKey(event.tenant_id, event.conversation_id),
            event.turn_id,
            status=event.data.status,
            reason=event.data.reason,
        )
        return EndedTurn(TurnKey(event.tenant_id, event.turn_id), cause)


def _forgotten(event: Event[Any]) -> Forgotten:
    conversation = ConversationKey(event.tenant_id, event.conversation_id)
    if isinstance(event.data, MessageDeletedV1):
        return Forgotten(conversation, message_id=event.data.message_id)
    if isinstance(event.data, ConversationPurgedV1):
        return Forgotten(conversation, turn_ids=event.data.turn_ids)
    return Forgotten(conversation)
