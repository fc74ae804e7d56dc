"""A collector of traces that keeps what it is sent, and says which of them are whole."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

PROTOBUF = "application/x-protobuf"
MAX_BODY_BYTES = 16 * 1024 * 1024
"""Of one export; a service sends at most 512 spans at once."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span as it arrived.

    Attributes:
        service: ``service.name`` of the process that sent it.
        parent_id: Empty for a root.
        failed: Whether its status says so.
    """

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, Any]
    failed: bool


LANGFUSE_PATH = "/api/public/otel"
"""Below which Langfuse takes traces; Phoenix and collectors take them at the root."""


class Collector:
    """Takes traces on a free port where back ends do, and reads them by OpenTelemetry's schema.

    Attributes:
        paths: At which they came.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[Mapping[str, Any]] = []
        self.bodies: list[bytes] = []
        self.headers: list[Mapping[str, str]] = []
        self.paths: set[str] = set()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/traces", self._take)
        app.router.add_post(f"{LANGFUSE_PATH}/v1/traces", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def url(self) -> str:
        """What ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set to, with Langfuse's path behind it or not."""
        assert self._runner is not None
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def _take(self, request: web.Request) -> web.Response:
        if request.content_type != PROTOBUF:
            return web.Response(status=415)
        body = await request.read()
        self.bodies.append(body)
        self.paths.add(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _plain(group.resource.attributes)
            self.resources.append(resource)
            for scope in group.scope_spans:
                self.spans += [_span(str(resource["service.name"]), one) for one in scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type=PROTOBUF)

    def by_trace(self) -> dict[str, list[Span]]:
        """All spans, by the id of their trace."""
        found: dict[str, list[Span]] = defaultdict(list)
        for span in self.spans:
            found[span.trace_id].append(span)
        return found

    def traces_by_turn(self) -> dict[str, set[str]]:
        """Ids of the traces in which each turn is named; a whole turn has one."""
        found: dict[str, set[str]] = defaultdict(set)
        for span in self.spans:
            if turn := span.attributes.get("turnwire.turn.id"):
                found[turn].add(span.trace_id)
        return found


def breaks(spans: Iterable[Span], *, above: str = "") -> list[str]:
    """Why the spans of one trace are not one tree; empty where they are.

    Args:
        above: The span of a client that was not recorded here and stands above the root.
    """
    known = {span.span_id: span for span in spans}
    roots = [span for span in known.values() if span.parent_id == above]
    found = [
        f"{span.service} {span.name} hangs below {span.parent_id}, which nobody sent"
        for span in known.values()
        if span.parent_id != above and span.parent_id not in known
    ]
    if len(roots) != 1:
        found.append(f"{len(roots)} roots: {sorted(span.name for span in roots)}")
    return found


def _span(service: str, one: Any) -> Span:
    return Span(
        service=service,
        name=one.name,
        kind=one.kind,
        trace_id=one.trace_id.hex(),
        span_id=one.span_id.hex(),
        parent_id=one.parent_span_id.hex(),
        began_ns=one.start_time_unix_nano,
        ended_ns=one.end_time_unix_nano,
        attributes=_plain(one.attributes),
        failed=one.status.code == one.status.STATUS_CODE_ERROR,
    )


def _plain(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
