"""Spans of sent and handled records, and that nothing is added where nobody keeps them."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs.kafka import Delivery, MemoryPublisher, Record
from libs.kafka.spans import TracedPublisher, spans_of, traced
from libs.telemetry.recording import SdkRecorder
from libs.telemetry.tracing import Tracing, turn_traceparent
from schemas.envelope import Event
from schemas.generations import GenerationFailedV1

TURN, CHAT = UUID(int=7), UUID(int=8)


def record(*headers: tuple[str, bytes]) -> Record:
    return Record("turn.events", str(CHAT).encode(), b"canary", headers)


OF_A_TURN = record(("ce_type", b"turn.ended"), ("traceparent", turn_traceparent(TURN).encode()))


async def test_a_record_is_sent_in_the_trace_of_its_turn(
    recorder: SdkRecorder, exporter: InMemorySpanExporter
):
    publisher = MemoryPublisher()
    publishing = TracedPublisher(publisher, Tracing(recorder))

    assert await publishing.publish([OF_A_TURN, record(("reason", b"malformed"))]) == [None, None]
    recorder.close()

    assert len(publisher.records) == 2
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind.name) == ("send turn.events", "PRODUCER")
    assert span.context.trace_id == TURN.int
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == TURN.hex[16:]
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.destination.name": "turn.events",
        "messaging.kafka.message.key": str(CHAT),
        "messaging.message.conversation_id": str(CHAT),
    }
    assert "canary" not in span.to_json()


async def test_a_record_that_the_broker_did_not_take_fails_its_span(
    recorder: SdkRecorder, exporter: InMemorySpanExporter
):
    publisher = MemoryPublisher()
    publisher.is_away = True

    (error,) = await TracedPublisher(publisher, Tracing(recorder)).publish([OF_A_TURN])
    recorder.close()

    assert error is not None
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes or {})["error.type"] == "queue.unavailable"
    assert span.status.status_code.name == "ERROR"


def test_where_no_span_is_kept_the_publisher_is_the_bare_one(recorder: SdkRecorder):
    publisher = MemoryPublisher()

    assert traced(publisher, Tracing()) is publisher
    assert isinstance(traced(publisher, Tracing(recorder)), TracedPublisher)


def test_every_record_of_a_batch_is_handled_in_the_trace_of_its_own_turn(
    recorder: SdkRecorder, exporter: InMemorySpanExporter
):
    turns = [uuid4(), uuid4()]
    batch = [delivery(turn, offset) for offset, turn in enumerate(turns)]

    with spans_of(Tracing(recorder), batch) as spans:
        assert [span.trace_id for span in spans] == [turn.hex for turn in turns]
    recorder.close()

    told = {span.context.trace_id: span for span in exporter.get_finished_spans()}
    for offset, turn in enumerate(turns):
        attributes = dict(told[turn.int].attributes or {})
        assert attributes["turnwire.turn.id"] == str(turn)
        assert attributes["messaging.kafka.offset"] == offset
        assert attributes["messaging.destination.partition.id"] == "3"
        assert attributes["messaging.batch.message_count"] == 2


def delivery(turn: UUID, offset: int) -> Delivery:
    event = Event(
        id=uuid4(),
        source="test",
        tenant_id=uuid4(),
        conversation_id=CHAT,
        correlation_id=turn,
        occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
        data=GenerationFailedV1(attempt=1, reason="deadline"),
    )
    return Delivery("generation.events", 3, offset, str(CHAT).encode(), (), b"", event)
