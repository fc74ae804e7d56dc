"""How a trace is passed on, with and without somebody who records it."""

import asyncio
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs.errors import StoreUnavailable
from libs.telemetry import names
from libs.telemetry.recording import SdkRecorder
from libs.telemetry.tracing import (
    Tracing,
    configure_tracing,
    current_traceparent,
    format_traceparent,
    parse_traceparent,
    turn_traceparent,
)

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def recorder(exporter: InMemorySpanExporter) -> Iterator[SdkRecorder]:
    recorder = SdkRecorder("test", exporter)
    yield recorder
    recorder.close()


@pytest.fixture(params=["recorded", "unrecorded"])
def tracing(request, recorder: SdkRecorder) -> Tracing:
    return Tracing(recorder if request.param == "recorded" else None)


def trace_id_of(traceparent: str | None) -> str:
    assert traceparent is not None
    return traceparent.split("-")[1]


def test_a_span_continues_the_trace_it_was_given(tracing: Tracing):
    with tracing.span("work", parent_traceparent=VALID) as span:
        passed_on = span.traceparent

    assert trace_id_of(passed_on) == trace_id_of(VALID)
    assert passed_on != VALID
    assert parse_traceparent(passed_on) is not None


def test_inner_spans_belong_to_the_outer_one_and_nothing_stays_open(tracing: Tracing):
    assert current_traceparent() is None
    with tracing.span("outer") as outer:
        with tracing.span("inner") as inner:
            assert trace_id_of(inner.traceparent) == trace_id_of(outer.traceparent)
            assert current_traceparent() == inner.traceparent == tracing.traceparent()
        assert current_traceparent() == outer.traceparent == tracing.traceparent(outer)
    assert current_traceparent() is None


def test_what_is_not_sampled_stays_so(tracing: Tracing):
    with tracing.span("work", parent_traceparent=VALID[:-2] + "00") as span:
        assert span.traceparent.endswith("-00")


def test_a_turn_has_one_trace_whoever_begins_it(tracing: Tracing):
    turn = uuid4()
    with tracing.span("post", turn_id=turn) as first:
        pass
    with tracing.span("post again", turn_id=turn) as second:
        pass
    with tracing.span("plan", parent_traceparent=turn_traceparent(turn)) as elsewhere:
        pass

    assert {span.trace_id for span in (first, second, elsewhere)} == {turn.hex}
    assert first.traceparent != second.traceparent


def test_a_turn_that_begins_inside_another_span_has_a_trace_of_its_own(tracing: Tracing):
    turn = uuid4()
    with tracing.span("batch") as batch, tracing.span("turn", turn_id=turn) as span:
        assert span.trace_id == turn.hex != batch.trace_id


def test_a_valid_parent_wins_over_the_turns_own_trace(tracing: Tracing):
    with tracing.span("work", parent_traceparent=VALID, turn_id=uuid4()) as span:
        assert span.trace_id == trace_id_of(VALID)


def test_an_invalid_parent_is_as_good_as_none(tracing: Tracing):
    turn = uuid4()
    with tracing.span("work", parent_traceparent="rubbish", turn_id=turn) as span:
        assert span.trace_id == turn.hex


async def test_concurrent_tasks_do_not_mix_their_spans(tracing: Tracing):
    turns = [uuid4() for _ in range(20)]

    async def work(turn: UUID) -> str:
        with tracing.span("work", turn_id=turn):
            await asyncio.sleep(0)
            with tracing.span("inner"):
                await asyncio.sleep(0)
                return trace_id_of(current_traceparent())

    assert await asyncio.gather(*(work(turn) for turn in turns)) == [turn.hex for turn in turns]


def test_what_is_recorded_has_name_kind_attributes_links_and_failure(
    recorder: SdkRecorder, exporter: InMemorySpanExporter
):
    tracing = Tracing(recorder)
    with (
        pytest.raises(StoreUnavailable),
        tracing.span(
            names.process_span("turn.events"),
            kind="consumer",
            links=[VALID, "rubbish"],
            attributes={names.TURN_ID: "t1"},
        ) as span,
    ):
        span.set(names.TURN_STATUS, "failed")
        span.set(names.TURN_REASON, None)
        raise StoreUnavailable("canary")
    recorder.close()

    (recorded,) = exporter.get_finished_spans()
    assert (recorded.name, recorded.kind.name) == ("process turn.events", "CONSUMER")
    assert dict(recorded.attributes or {}) == {
        names.TURN_ID: "t1",
        names.TURN_STATUS: "failed",
        names.ERROR_TYPE: "store.unavailable",
    }
    assert [format_traceparent(link.context)[:52] for link in recorded.links] == [VALID[:52]]
    assert recorded.status.status_code.name == "ERROR"
    assert "canary" not in recorded.to_json()


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "rubbish",
        VALID.upper(),
        VALID[:-1],
        VALID + "-more",
        VALID + "\n",
        "ff" + VALID[2:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    ],
)
def test_anything_that_is_no_traceparent_is_none(text: str | None):
    assert parse_traceparent(text) is None


def test_a_traceparent_of_a_later_version_is_read():
    parsed = parse_traceparent("01" + VALID[2:] + "-more")

    assert parsed is not None
    assert format_traceparent(parsed) == VALID


def test_without_an_endpoint_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http,gen_ai_v1_36")

    tracing = configure_tracing("test")

    assert tracing.names.provider_name == "gen_ai.system"
    with tracing.span("work") as span:
        assert parse_traceparent(span.traceparent) is not None


async def test_with_an_endpoint_spans_are_sent_there(monkeypatch: pytest.MonkeyPatch):
    received: list[bytes] = []

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        received.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(collect, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        tracing = configure_tracing("test")
        with tracing.span("work"):
            pass
        await tracing.close()

    assert received[0].startswith(b"POST /v1/traces ")
