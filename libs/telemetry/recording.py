"""Spans that are kept and sent; imported only where there is somewhere to send them to."""

import contextlib
from collections.abc import Iterator, Sequence

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

FLUSH_TIMEOUT_MS = 3_000
"""At the end of the process; spans are worth waiting for, but not a whole grace period."""


class _GivenIds(IdGenerator):
    """Random ids, except where a trace's id was given."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self._trace_id: int | None = None

    @contextlib.contextmanager
    def given(self, trace_id: int | None) -> Iterator[None]:
        """Use this id for a trace begun inside; nothing may be awaited between."""
        self._trace_id = trace_id
        try:
            yield
        finally:
            self._trace_id = None

    def generate_span_id(self) -> int:
        return self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        return self._trace_id or self._random.generate_trace_id()


class SdkRecorder:
    """Keeps spans with OpenTelemetry's own library and hands them to an exporter in batches."""

    def __init__(self, service: str, exporter: SpanExporter) -> None:
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service, "service.namespace": "turnwire"}),
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
        links: Sequence[trace.SpanContext],
    ) -> trace.Span:
        """Start a span; ``trace_id`` is used where there is no parent."""
        with self._ids.given(trace_id):
            return self._tracer.start_span(
                name, context=parent, kind=kind, links=[trace.Link(link) for link in links]
            )

    def close(self) -> None:
        """Send what is left; blocks for at most about ``FLUSH_TIMEOUT_MS``."""
        self._provider.force_flush(FLUSH_TIMEOUT_MS)
        self._provider.shutdown()


def otlp_recorder(service: str) -> SdkRecorder:
    """A recorder that sends to where the ``OTEL_EXPORTER_OTLP_*`` variables say, over HTTP."""
    return SdkRecorder(service, OTLPSpanExporter())
