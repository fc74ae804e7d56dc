"""One trace per turn, over all services and restarts.

A trace is carried as a W3C ``traceparent``: in headers, outbox rows and leased work. The trace id
of a turn is the turn's own id, so two gateways that get the same request twice, and a service that
was given no ``traceparent``, all write into one trace, and a turn's trace is found without search.

Without an exporter nothing is recorded; spans then are only ids that are passed on and logged.
"""

import asyncio
import contextlib
import importlib
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

from libs.errors import ChatError
from libs.telemetry.names import ERROR_TYPE, LATEST, GenAiNames, gen_ai_names

Kind = Literal["internal", "server", "client", "producer", "consumer"]
AttributeValue = str | int | float | bool | Sequence[str]

_KINDS: Final[Mapping[Kind, SpanKind]] = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def parse_traceparent(text: str | None) -> SpanContext | None:
    """Read a W3C ``traceparent``; None for anything that is not one, so that no caller can hurt us.

    Later versions are read as version 0, as the standard asks for; ``ff`` and all-zero ids are
    invalid.
    """
    match = _TRACEPARENT.fullmatch(text or "")
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    parsed = SpanContext(
        int(match[2], 16), int(match[3], 16), is_remote=True, trace_flags=_flags(match[4])
    )
    return parsed if parsed.is_valid else None


def _flags(text: str) -> TraceFlags:
    return TraceFlags(int(text, 16) & TraceFlags.SAMPLED)


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


def turn_traceparent(turn_id: UUID) -> str:
    """The ``traceparent`` of a turn that came without one: a pure function of its id."""
    return f"00-{turn_id.hex}-{turn_id.hex[16:]}-01"


@dataclass(frozen=True, slots=True)
class OpenSpan:
    """A span that is open: where to put what is learned on the way, and what to pass on."""

    _span: Span

    @property
    def traceparent(self) -> str:
        """To be passed to whatever this span causes."""
        return format_traceparent(self._span.get_span_context())

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


class Recorder(Protocol):
    """Keeps spans; see ``libs.telemetry.recording``."""

    def start(
        self,
        name: str,
        *,
        parent: Context | None,
        trace_id: int | None,
        kind: SpanKind,
        links: Sequence[SpanContext],
    ) -> Span:
        """Start a span; ``trace_id`` is used where there is no parent."""
        ...

    def close(self) -> None:
        """Send what is left; may block for some seconds."""
        ...


class Tracing:
    """Opens the spans of one process.

    Args:
        recorder: Where spans are kept; None records nothing and costs a few microseconds a span.
        names: Attribute names of model calls, by version of the conventions.
    """

    def __init__(self, recorder: Recorder | None = None, *, names: GenAiNames = LATEST) -> None:
        self.names = names
        self._recorder = recorder

    @contextlib.contextmanager
    def span(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        parent_traceparent: str | None = None,
        turn_id: UUID | None = None,
        links: Sequence[str] = (),
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
            links: Traceparents of other causes, of a batch for instance; invalid ones are left out.
            attributes: Ids, counts, names; never a body, a key or a secret.
        """
        parent = _parent(parent_traceparent, is_root=turn_id is not None)
        if self._recorder is None:
            span = _unrecorded(parent, turn_id)
        else:
            span = self._recorder.start(
                name,
                parent=parent,
                trace_id=turn_id.int if turn_id is not None else None,
                kind=_KINDS[kind],
                links=[parsed for link in links if (parsed := parse_traceparent(link))],
            )
            span.set_attributes(attributes or {})
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
    names = gen_ai_names(os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", ""))
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        return Tracing(names=names)
    # Half a second of imports that a process without an exporter does not pay.
    recording = importlib.import_module("libs.telemetry.recording")
    return Tracing(recording.otlp_recorder(service), names=names)
