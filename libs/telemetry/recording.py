"""Spans that are kept and sent; imported only where there is somewhere to send them to."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, Status, StatusCode
from opentelemetry.util.re import parse_env_headers

from libs import traceparents
from libs.settings import with_files
from libs.telemetry.names import ERROR_TYPE, AttributeValue
from libs.telemetry.tracing import TurnLife, parse_traceparent

FLUSH_TIMEOUT_MS = 3_000
"""At the end of the process; spans are worth waiting for, but not a whole grace period."""

HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"

_NANOSECONDS = 1_000_000_000


class _GivenIds(IdGenerator):
    """Random ids, except where they were given."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self._trace_id: int | None = None
        self._span_id: int | None = None

    @contextlib.contextmanager
    def given(self, trace_id: int | None, span_id: int | None = None) -> Iterator[None]:
        """Use these ids for a span begun inside; nothing may be awaited between."""
        self._trace_id, self._span_id = trace_id, span_id
        try:
            yield
        finally:
            self._trace_id = self._span_id = None

    def generate_span_id(self) -> int:
        return self._span_id or self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        return self._trace_id or self._random.generate_trace_id()


class SdkRecorder:
    """Keeps spans with OpenTelemetry's own library and hands them to an exporter in batches."""

    def __init__(self, service: str, exporter: SpanExporter) -> None:
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            resource=Resource.create(
                {
                    "service.name": service,
                    "service.namespace": "turnwire",
                    "service.version": _version(),
                }
            ),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("turnwire")

    def start(
        self,
        name: str,
        *,
        parent: Context | None,
        trace_id: int | None,
        kind: trace.SpanKind,
    ) -> trace.Span:
        """Start a span; ``trace_id`` is used where there is no parent."""
        with self._ids.given(trace_id):
            return self._tracer.start_span(name, context=parent, kind=kind)

    def add_turn(self, name: str, life: TurnLife, attributes: Mapping[str, AttributeValue]) -> None:
        """Keep the span of a turn under the id that its descendants know."""
        above = traceparents.above_turn(life.turn_id, life.stored_traceparent)
        own = parse_traceparent(traceparents.below_turn(life.turn_id, life.stored_traceparent))
        if own is None:
            return  # a turn whose id ends in zeros has no span; no such id is ever made
        with self._ids.given(own.trace_id, own.span_id):
            span = self._tracer.start_span(
                name, context=_context(above), start_time=_nanoseconds(life.began_at)
            )
        span.set_attributes(attributes)
        if life.failure is not None:
            span.set_attribute(ERROR_TYPE, life.failure)
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(life.ended_at))

    def close(self) -> None:
        """Send what is left; blocks for at most about ``FLUSH_TIMEOUT_MS``."""
        self._provider.force_flush(FLUSH_TIMEOUT_MS)
        self._provider.shutdown()


def otlp_recorder(service: str) -> SdkRecorder:
    """A recorder that sends to where the ``OTEL_EXPORTER_OTLP_*`` variables say, over HTTP."""
    return SdkRecorder(service, exporter())


def exporter() -> SpanExporter:
    """What sends; the headers may stand in a file, since they hold the collector's key."""
    if HEADERS in os.environ:
        return OTLPSpanExporter()
    given = with_files(os.environ, (HEADERS,)).get(HEADERS, "")
    return OTLPSpanExporter(headers=parse_env_headers(given, liberal=True) or None)


def _context(traceparent: str | None) -> Context:
    above = parse_traceparent(traceparent)
    if above is None:
        return Context()
    return trace.set_span_in_context(NonRecordingSpan(above), Context())


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * _NANOSECONDS)


def _version() -> str:
    try:
        return version("turnwire")
    except PackageNotFoundError:
        return "unknown"
