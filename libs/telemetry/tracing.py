"""One trace per turn, over all services and restarts.

A trace is carried as a W3C ``traceparent``: in headers, outbox rows and leased work. The trace id
of a turn is the turn's own id unless its client brought a trace, so two gateways that get the same
request twice, and a service that was given no ``traceparent``, all write into one trace, and a
turn's trace is found without search. ``libs.traceparents`` says where spans hang in it.

Without an exporter nothing is recorded; spans then are only ids that are passed on and logged.
"""

import asyncio
import contextlib
import importlib
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Protocol
from uuid import UUID

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)

from libs import traceparents
from libs.errors import ChatError
from libs.telemetry.names import (
    ERROR_TYPE,
    AttributeValue,
    Conventions,
    GenAiNames,
    conventions,
)
from libs.traceparents import turn_traceparent

__all__ = [
    "AttributeValue",
    "Kind",
    "OpenSpan",
    "Recorder",
    "Tracing",
    "configure_tracing",
    "current_traceparent",
    "format_traceparent",
    "parse_traceparent",
    "turn_traceparent",
]

Kind = Literal["internal", "server", "client", "producer", "consumer"]

_KINDS: Final[Mapping[Kind, SpanKind]] = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Either of them says where spans go; without one none is kept."""

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def parse_traceparent(text: str | None) -> SpanContext | None:
    """Read a W3C ``traceparent``; None for anything that is not one."""
    known = traceparents.parse(text)
    if known is None:
        return None
    flags = TraceFlags(TraceFlags.SAMPLED if known.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(
        int(known.trace_id, 16), int(known.span_id, 16), is_remote=True, trace_flags=flags
    )


def format_traceparent(span_context: SpanContext) -> str:
    """A span's ``traceparent``."""
    return (
        f"00-{span_context.trace_id:032x}-{span_context.span_id:016x}"
        f"-{span_context.trace_flags & TraceFlags.SAMPLED:02x}"
    )


def current_traceparent() -> str | None:
    """The ``traceparent`` of the span that is open here; None if there is none."""
    span_context = trace.get_current_span().get_span_context()
    return format_traceparent(span_context) if span_context.is_valid else None


@dataclass(frozen=True, slots=True)
class TurnLife:
    """A turn that is over, as its span tells it.

    Attributes:
        stored_traceparent: Trace context of the turn's row.
        began_at: When it was accepted.
        failure: Stable name of why it failed; None for every other end.
    """

    turn_id: UUID
    stored_traceparent: str | None
    began_at: datetime
    ended_at: datetime
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span that is open: where to put what is learned on the way, and what to pass on."""

    _span: Span

    @property
    def traceparent(self) -> str:
        """To be passed to whatever this span causes."""
        return format_traceparent(self._span.get_span_context())

    @property
    def is_kept(self) -> bool:
        """Whether anybody will see what is noted here."""
        return self._span.is_recording()

    @property
    def trace_id(self) -> str:
        """As a person looks it up."""
        return f"{self._span.get_span_context().trace_id:032x}"

    def set(self, name: str, value: AttributeValue | None) -> None:
        """Note an attribute; None is left out. Never a body, a key or a secret."""
        if value is not None:
            self._span.set_attribute(name, value)

    def fail(self, error_type: str) -> None:
        """Mark the span as failed, with a stable name of the error, without its text."""
        self._span.set_attribute(ERROR_TYPE, error_type)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        """End a span that ``Tracing.begin`` opened."""
        self._span.end()


class Recorder(Protocol):
    """Keeps spans; see ``libs.telemetry.recording``."""

    def start(
        self,
        name: str,
        *,
        parent: Context | None,
        trace_id: int | None,
        kind: SpanKind,
    ) -> Span:
        """Start a span; ``trace_id`` is used where there is no parent."""
        ...

    def add_turn(self, name: str, life: TurnLife, attributes: Mapping[str, AttributeValue]) -> None:
        """Keep the span of a turn, which was never open in this process."""
        ...

    def close(self) -> None:
        """Send what is left; may block for some seconds."""
        ...


class Tracing:
    """Opens the spans of one process.

    Args:
        recorder: Where spans are kept; None records nothing and costs a few microseconds a span.
        conventions: Attribute names of turns and model calls, and whether their texts are shown.
    """

    def __init__(
        self, recorder: Recorder | None = None, *, conventions: Conventions | None = None
    ) -> None:
        self.conventions = conventions or Conventions()
        self._recorder = recorder

    @property
    def names(self) -> GenAiNames:
        """Attribute names of turns and model calls."""
        return self.conventions.names

    @property
    def is_kept(self) -> bool:
        """Whether spans of this process are kept at all."""
        return self._recorder is not None

    @contextlib.contextmanager
    def span(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        parent_traceparent: str | None = None,
        turn_id: UUID | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> Iterator[OpenSpan]:
        """Open a span for the body of the ``with``.

        Its parent is, in this order: ``parent_traceparent`` if it is valid; else, if ``turn_id`` is
        given, none: the span is a root of the turn's own trace; else the span that is open here.
        An error that leaves the body marks the span as failed by its type, and goes on.

        Args:
            name: From ``libs.telemetry.names``.
            kind: Role of the process in the exchange.
            parent_traceparent: What came with a request, a record or leased work.
            turn_id: Of a turn that begins here, or came without a ``traceparent``.
            attributes: Ids, counts, names; never a body, a key or a secret.
        """
        parent = _parent(parent_traceparent, is_root=turn_id is not None)
        span = self._started(name, kind=kind, parent=parent, turn_id=turn_id)
        if attributes and span.is_recording():
            span.set_attributes(attributes)
        token = otel_context.attach(trace.set_span_in_context(span, parent))
        opened = OpenSpan(span)
        try:
            yield opened
        except BaseException as error:
            opened.fail(error.code if isinstance(error, ChatError) else type(error).__qualname__)
            raise
        finally:
            otel_context.detach(token)
            span.end()

    def begin(
        self,
        name: str,
        *,
        kind: Kind,
        parent_traceparent: str,
        attributes: Mapping[str, AttributeValue],
    ) -> OpenSpan:
        """Open a span that is current nowhere, one of many at once; its caller ends it."""
        parent = _parent(parent_traceparent, is_root=True)
        span = self._started(name, kind=kind, parent=parent, turn_id=None)
        span.set_attributes(attributes)
        return OpenSpan(span)

    def _started(
        self, name: str, *, kind: Kind, parent: Context | None, turn_id: UUID | None
    ) -> Span:
        if self._recorder is None:
            return _unrecorded(parent, turn_id)
        trace_id = turn_id.int if turn_id is not None else None
        return self._recorder.start(name, parent=parent, trace_id=trace_id, kind=_KINDS[kind])

    def add_turn(self, name: str, life: TurnLife, attributes: Mapping[str, AttributeValue]) -> None:
        """Write the span of a turn that has ended; everything it caused hangs below it.

        Called once for a turn, after the commit of its end.
        """
        if self._recorder is not None:
            self._recorder.add_turn(name, life, attributes)

    def traceparent(self, span: OpenSpan | None = None) -> str | None:
        """Of the given span, else of the one that is open here."""
        return span.traceparent if span is not None else current_traceparent()

    async def close(self) -> None:
        """Send what is left; takes some seconds at most."""
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)


def _unrecorded(parent: Context | None, turn_id: UUID | None) -> Span:
    above = trace.get_current_span(parent).get_span_context()
    if above.is_valid:
        trace_id, flags = above.trace_id, above.trace_flags
    else:
        trace_id = turn_id.int if turn_id is not None else random.getrandbits(128) or 1
        flags = _SAMPLED  # another service may record what this one does not
    span_id = random.getrandbits(64) or 1  # zero is no id
    return NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags))


def _parent(traceparent: str | None, *, is_root: bool) -> Context | None:
    remote = parse_traceparent(traceparent)
    if remote is not None:
        return trace.set_span_in_context(NonRecordingSpan(remote))
    return Context() if is_root else None


def configure_tracing(service: str) -> Tracing:
    """Tracing as the ``OTEL_*`` variables say; without an endpoint nothing leaves the process."""
    chosen = conventions(
        os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", ""),
        os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", ""),
    )
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return Tracing(conventions=chosen)
    # Half a second of imports that a process without an exporter does not pay.
    recording = importlib.import_module("libs.telemetry.recording")
    return Tracing(recording.otlp_recorder(service), conventions=chosen)
