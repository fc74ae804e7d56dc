"""Topic ``turn.requests``: checks who speaks and for whom, then has the requests decided."""

from collections.abc import Sequence
from dataclasses import replace

from libs.kafka import Delivery
from libs.kafka.spans import spans_of
from libs.outbox import OutboxMessage
from libs.postgres import Transaction
from libs.telemetry.tracing import Tracing
from schemas.registry import TURN_REQUESTS
from services.ingestion.accepting import Acceptor
from services.ingestion.core.door import Signature, refusal, signature_of
from services.ingestion.core.requests import read_request, wrong_ids
from services.ingestion.door_keys import DoorKeys
from services.ingestion.handlers.screening import misplaced

WRONG_IDS = "ids_mismatch"


class RequestHandler:
    """Handles what front ends ask for."""

    consumer = "ingestion.requests"
    topics = (TURN_REQUESTS,)

    def __init__(
        self, acceptor: Acceptor, door_keys: DoorKeys, *, master_key: bytes, tracing: Tracing
    ) -> None:
        self._acceptor = acceptor
        self._door_keys = door_keys
        self._master_key = master_key
        self._tracing = tracing

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        """Refuse what is not signed by a key that may speak for the tenant it names."""
        signatures = [signature_of(_present(delivery)) for delivery in deliveries]
        asked = {signature.key_id for signature in signatures if signature is not None}
        keys = await self._door_keys.for_records(asked)

        def verdict(delivery: Delivery, signature: Signature | None) -> str | None:
            refused = refusal(
                signature,
                delivery.value,
                delivery.event.tenant_id,
                keys=keys,
                master_key=self._master_key,
            )
            return refused or misplaced(delivery) or _id_fault(delivery)

        return [verdict(d, s) for d, s in zip(deliveries, signatures, strict=True)]

    async def handle(self, batch: Sequence[Delivery]) -> None:
        """Decide the whole batch; a record delivered again changes nothing."""
        with spans_of(self._tracing, batch) as spans:
            requests = [
                replace(read_request(delivery.event), traceparent=span.traceparent)
                for delivery, span in zip(batch, spans, strict=True)
            ]
            await self._acceptor.accept(requests, consumer=self.consumer)

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        """A request that cannot be handled was never accepted, so there is no turn to end."""
        del delivery, transaction, reason
        return ()


def _present(delivery: Delivery) -> list[tuple[str, bytes]]:
    return [(name, value) for name, value in delivery.headers if value is not None]


def _id_fault(delivery: Delivery) -> str | None:
    return WRONG_IDS if wrong_ids(delivery.event) else None
