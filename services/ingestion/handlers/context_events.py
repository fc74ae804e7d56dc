"""Topic ``context.events``: a planned step is progress, a refused one ends its turn."""

from collections.abc import Sequence

from libs.kafka import Delivery
from libs.kafka.spans import spans_of
from libs.outbox import OutboxMessage
from libs.postgres import Transaction
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from schemas.registry import CONTEXT_EVENTS
from schemas.steps import StepRefusedV1
from services.ingestion.core.answer import nothing
from services.ingestion.core.endings import of_failed
from services.ingestion.dead_letters import end_of_parked
from services.ingestion.handlers.screening import misplaced
from services.ingestion.settling import Proposal, Settler


class ContextEventHandler:
    """Handles what context_assembly tells."""

    consumer = "ingestion.context"
    topics = (CONTEXT_EVENTS,)

    def __init__(self, settler: Settler, *, tracing: Tracing, metrics: Metrics) -> None:
        self._settler = settler
        self._tracing = tracing
        self._metrics = metrics

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        """Refuse what stands in the wrong place."""
        return [misplaced(delivery) for delivery in deliveries]

    async def handle(self, batch: Sequence[Delivery]) -> None:
        """Move the turns of the batch; late and repeated events change nothing."""
        with spans_of(self._tracing, batch):
            await self._settler.settle(
                [_proposal(delivery) for delivery in batch], consumer=self.consumer
            )

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        """End the turn of a parked event: nobody else would tell how it went on."""
        del reason
        return await end_of_parked(self._settler, self._metrics, delivery, transaction)


def _proposal(delivery: Delivery) -> Proposal:
    event = delivery.event
    answer = (
        nothing(of_failed(event.data.reason)) if isinstance(event.data, StepRefusedV1) else None
    )
    return Proposal(event.id, event.tenant_id, event.conversation_id, event.turn_id, answer)
