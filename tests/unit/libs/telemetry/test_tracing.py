"""How a trace is passed on, with and without somebody who records it."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs.errors import StoreUnavailable
from libs.telemetry import names
from libs.telemetry.names import Conventions
from libs.telemetry.recording import SdkRecorder
from libs.telemetry.tracing import (
    Tracing,
    TurnLife,
    configure_tracing,
    current_traceparent,
    format_traceparent,
    parse_traceparent,
    turn_traceparent,
)
from libs.traceparents import below_turn, given_or_turns

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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


def test_what_is_recorded_has_name_kind_attributes_and_failure(
    recorder: SdkRecorder, exporter: InMemorySpanExporter
):
    tracing = Tracing(recorder)
    with (
        pytest.raises(StoreUnavailable),
        tracing.span(
            names.process_span("turn.events"),
            kind="consumer",
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
    assert recorded.status.status_code.name == "ERROR"
    assert "canary" not in recorded.to_json()


def test_many_spans_may_be_open_beside_each_other_and_none_of_them_is_current(tracing: Tracing):
    with tracing.span("batch") as batch:
        first, second = (
            tracing.begin("send", kind="producer", parent_traceparent=VALID, attributes={})
            for _ in range(2)
        )
        assert current_traceparent() == batch.traceparent
    first.end()
    second.end()

    assert trace_id_of(first.traceparent) == trace_id_of(second.traceparent) == trace_id_of(VALID)
    assert first.traceparent != second.traceparent


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


def test_what_happens_before_a_turn_is_stored_and_what_it_causes_hang_below_its_span():
    turn = uuid4()

    assert given_or_turns(None, turn) == turn_traceparent(turn)
    assert given_or_turns("rubbish", turn) == turn_traceparent(turn)
    assert given_or_turns(VALID, turn) == VALID
    assert below_turn(turn, None) == turn_traceparent(turn)
    assert below_turn(turn, VALID) == f"00-{trace_id_of(VALID)}-{turn.hex[16:]}-01"
    assert below_turn(turn, VALID[:-2] + "00").endswith("-00")


@pytest.mark.parametrize("stored", [None, VALID, "own"])
def test_the_span_of_a_turn_stands_where_its_descendants_expect_it(
    recorder: SdkRecorder, exporter: InMemorySpanExporter, stored: str | None
):
    turn, tracing = uuid4(), Tracing(recorder)
    if stored == "own":  # the turn began its trace, in a span of the gateway below its own
        with tracing.span("post", parent_traceparent=given_or_turns(None, turn)) as post:
            stored = post.traceparent
    with tracing.span("chat", parent_traceparent=below_turn(turn, stored)):
        pass
    began, ended = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    life = TurnLife(turn, stored, began, ended, failure="deadline")

    tracing.add_turn(names.turn_span(), life, {names.TURN_ID: str(turn)})
    recorder.close()

    spans = {span.name: span for span in exporter.get_finished_spans()}
    whole, inner = spans["invoke_agent turnwire"], spans["chat"]
    assert inner.parent is not None
    assert inner.parent.span_id == whole.context.span_id
    assert inner.context.trace_id == whole.context.trace_id
    assert (whole.parent is None) is (stored != VALID)
    assert (whole.end_time or 0) - (whole.start_time or 0) == 2_000_000_000
    assert dict(whole.attributes or {})[names.ERROR_TYPE] == "deadline"


def test_without_a_recorder_the_span_of_a_turn_costs_nothing():
    now = datetime(2026, 1, 1, tzinfo=UTC)

    Tracing().add_turn("turn", TurnLife(uuid4(), None, now, now), {})


@pytest.mark.parametrize(
    ("opt_in", "capture", "wanted"),
    [
        ("", "", Conventions()),
        ("gen_ai_v1_36", "NO_CONTENT", Conventions(names.V1_36)),
        ("gen_ai_latest_experimental, langfuse", "", Conventions(langfuse=True)),
        ("openinference", "EVENT_ONLY", Conventions(openinference=True)),
        ("", "span_only", Conventions(shows_content=True)),
        ("", "SPAN_AND_EVENT", Conventions(shows_content=True)),
    ],
)
def test_names_dialects_and_texts_are_chosen_by_the_two_variables(
    opt_in: str, capture: str, wanted: Conventions
):
    assert names.conventions(opt_in, capture) == wanted


def test_each_dialect_adds_its_own_names_and_takes_none_away():
    plain, both = Conventions(), Conventions(openinference=True, langfuse=True)
    used = {"input": 3, "output": 2, "cached": 1}

    for told in (
        lambda c: c.turn("c1", version="1"),
        lambda c: c.call("c1", provider="p", model="m"),
        lambda c: c.usage(used),
    ):
        assert told(plain).items() <= told(both).items()
    assert both.usage(used)["llm.token_count.total"] == 5
    assert both.turn("c1", version="1")["session.id"] == "c1"
    assert "session.id" not in plain.turn("c1", version="1")
    assert (plain.person("p1"), both.person("p1")) == ({}, {"user.id": "p1"})
