"""Spans of records, each in its own trace: of sending them, and of handling them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from libs.errors import ChatError
from libs.kafka.publisher import Publisher, Record
from libs.kafka.records import Delivery
from libs.telemetry import names
from libs.telemetry.names import Attributes
from libs.telemetry.tracing import OpenSpan, Tracing
from libs.traceparents import given_or_turns
from schemas.envelope import Event

_TRACEPARENT: Final = "traceparent"


def traced(publisher: Publisher, tracing: Tracing) -> Publisher:
    """A publisher that tells of every record; the given one itself where nobody would keep it."""
    return TracedPublisher(publisher, tracing) if tracing.is_kept else publisher


class TracedPublisher:
    """Publishes through another publisher, with a span for each record that belongs to a trace."""

    def __init__(self, publisher: Publisher, tracing: Tracing) -> None:
        self._publisher = publisher
        self._tracing = tracing

    async def publish(self, records: Sequence[Record]) -> list[ChatError | None]:
        """See ``Publisher.publish``; spans end with the acknowledgement and fail without it."""
        spans = [self._begun(record) for record in records]
        try:
            results = await self._publisher.publish(records)
            for span, error in zip(spans, results, strict=True):
                if span is not None and error is not None:
                    span.fail(error.code)
        finally:
            for span in spans:
                if span is not None:
                    span.end()
        return results

    def _begun(self, record: Record) -> OpenSpan | None:
        found = next((value for name, value in record.headers if name == _TRACEPARENT), None)
        if found is None:
            return None  # it belongs to no turn: a dead letter's copy, the end of a conversation
        return self._tracing.begin(
            names.send_span(record.topic),
            kind="producer",
            parent_traceparent=found.decode(),
            attributes=names.record(record.topic, record.key.decode()),
        )


def attributes_of(delivery: Delivery) -> Attributes:
    """What the span of a handled record says of the record itself."""
    return names.handled_record(
        delivery.topic,
        str(delivery.event.conversation_id),
        partition=delivery.partition,
        offset=delivery.offset,
    )


@contextmanager
def spans_of(tracing: Tracing, batch: Sequence[Delivery]) -> Iterator[list[OpenSpan]]:
    """Open a span per record, from the first read to the commit; in the order of the batch."""
    is_kept = tracing.is_kept  # else they are ids alone, whose parent nobody asks for
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                tracing.span(
                    names.process_span(delivery.topic),
                    kind="consumer",
                    parent_traceparent=_parent(delivery.event)
                    if is_kept
                    else delivery.event.traceparent,
                    turn_id=delivery.event.turn_id,
                    attributes=_in_batch(delivery, len(batch)) if is_kept else None,
                )
            )
            for delivery in batch
        ]


def _in_batch(delivery: Delivery, size: int) -> Attributes:
    return {
        **attributes_of(delivery),
        names.TURN_ID: str(delivery.event.turn_id),
        names.BATCH_SIZE: size,
    }


def _parent(event: Event[Any]) -> str | None:
    """What came along; of a turn the span that it will have, of anything else nothing."""
    if event.turn_id == event.conversation_id:
        return event.traceparent
    return given_or_turns(event.traceparent, event.turn_id)
