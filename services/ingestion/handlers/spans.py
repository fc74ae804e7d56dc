"""One span for every record of a batch, each in the trace of its own turn."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from libs.kafka import Delivery
from libs.telemetry import names
from libs.telemetry.tracing import OpenSpan, Tracing


@contextmanager
def spans_of(tracing: Tracing, batch: Sequence[Delivery]) -> Iterator[list[OpenSpan]]:
    """Open a span per record, from the first read to the commit; in the order of the batch."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                tracing.span(
                    names.process_span(delivery.topic),
                    kind="consumer",
                    parent_traceparent=delivery.event.traceparent,
                    turn_id=delivery.event.turn_id,
                    attributes={
                        names.MESSAGING_SYSTEM: "kafka",
                        names.MESSAGING_DESTINATION: delivery.topic,
                        names.MESSAGING_PARTITION: str(delivery.partition),
                        names.MESSAGING_OFFSET: delivery.offset,
                        names.MESSAGING_CONVERSATION: str(delivery.event.conversation_id),
                        names.TURN_ID: str(delivery.event.turn_id),
                        names.BATCH_SIZE: len(batch),
                    },
                )
            )
            for delivery in batch
        ]
