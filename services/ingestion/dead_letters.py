"""Ends the turn of an internal event that had to be parked, in the parking transaction."""

from collections.abc import Sequence

from libs import ids
from libs.kafka import Delivery
from libs.outbox import OutboxMessage
from libs.postgres import Transaction
from libs.telemetry.metrics import Metrics
from services.ingestion.core.answer import nothing
from services.ingestion.core.endings import DEAD_LETTERED
from services.ingestion.settling import Proposal, Settler, TurnMismatch


async def end_of_parked(
    settler: Settler, metrics: Metrics, delivery: Delivery, transaction: Transaction
) -> Sequence[OutboxMessage]:
    """Write the end of the event's turn; the events that tell it are the caller's to store.

    The transaction has named the event's tenant.

    An event whose tenant, conversation and turn fit no row ends nothing: its producer is confused,
    and somebody else's turn must not pay for it. Live streams are not told; gateways find the end
    in the rows.
    """
    event = delivery.event
    proposal = Proposal(
        ids.caused_id(event.turn_id, DEAD_LETTERED.reason or ""),
        event.tenant_id,
        event.conversation_id,
        event.turn_id,
        nothing(DEAD_LETTERED),
    )
    try:
        settled = await settler.prepare(transaction, [proposal], consumer=None)
    except TurnMismatch:
        return ()
    await transaction.batch(settled.writes)
    settler.count(settled)
    if settled.ended:
        metrics.turn_recoveries_total.labels("dead_lettered").inc()
    return settled.messages
