"""What the span of a model call tells, and that it tells no text unless it was asked to."""

from uuid import UUID

import orjson
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from libs.telemetry.names import TURN_ID, Conventions
from libs.telemetry.recording import SdkRecorder
from libs.telemetry.tracing import Tracing
from schemas.usage import Usage
from services.llm_gateway.core.attempt import AttemptText
from services.llm_gateway.core.completions import Named
from services.llm_gateway.core.outcomes import Completed, Interrupted, Measured, Outcome, StepFacts
from services.llm_gateway.providers.memory import MemoryProvider
from services.llm_gateway.spans import call_attributes, tell_answer, tell_ending, tell_request
from services.llm_gateway.work import Claim, Ending

ID = UUID(int=7)
WHOLE = Completed("stop")
FACTS = StepFacts(ID, ID, ID, ID, 1, "small", ID, None)
CLAIM = Claim(FACTS, base_attempt=0, left_s=60.0, fingerprint="f" * 64, payload=b"")
PAYLOAD = orjson.dumps(
    {
        "model": "small",
        "max_tokens": 100,
        "temperature": 0.5,
        "messages": [{"role": "user", "content": "canary question"}],
    }
)


def ending(outcome: Outcome) -> Ending:
    text = AttemptText(1, text="canary answer")
    measured = Measured(requests=1, first_token_ms=250, duration_ms=900)
    return Ending(FACTS, outcome, text, Usage(input=20, output=4, cached=8), measured)


def told(
    recorder: SdkRecorder,
    exporter: InMemorySpanExporter,
    conventions: Conventions,
    *,
    payload: bytes = PAYLOAD,
    outcome: Outcome = WHOLE,
) -> dict[str, object]:
    """Attributes of the span of one call."""
    tracing = Tracing(recorder, conventions=conventions)
    given = call_attributes(conventions, CLAIM, MemoryProvider())
    with tracing.span("chat small", attributes=given) as span:
        tell_request(span, conventions, payload)
        tell_ending(span, conventions, ending(outcome))
        tell_answer(span, conventions, Named("answer-1", None), 3)
    recorder.close()
    (recorded,) = exporter.get_finished_spans()
    return dict(recorded.attributes or {})


def test_a_call_tells_its_knobs_its_usage_and_its_end_but_no_text(
    recorder: SdkRecorder, exporter: InMemorySpanExporter
):
    attributes = told(recorder, exporter, Conventions())

    assert (
        attributes.items()
        >= {
            TURN_ID: str(ID),
            "turnwire.plan.fingerprint": "f" * 64,
            "gen_ai.request.max_tokens": 100,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.response.time_to_first_chunk": 0.25,
            "gen_ai.usage.input_tokens": 20,
            "gen_ai.usage.output_tokens": 4,
            "gen_ai.usage.cache_read.input_tokens": 8,
            "gen_ai.usage.reasoning.output_tokens": 3,
            "gen_ai.response.id": "answer-1",
        }.items()
    )
    assert "gen_ai.request.top_p" not in attributes
    assert "gen_ai.response.model" not in attributes
    assert "canary" not in str(attributes)


def test_texts_are_told_where_somebody_asked_for_them(
    recorder: SdkRecorder, exporter: InMemorySpanExporter
):
    attributes = told(recorder, exporter, Conventions(shows_content=True))

    assert orjson.loads(str(attributes["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": "canary question"}]}
    ]
    (answer,) = orjson.loads(str(attributes["gen_ai.output.messages"]))
    assert answer["parts"] == [{"type": "text", "content": "canary answer"}]
    assert answer["finish_reason"] == "stop"


@pytest.mark.parametrize("payload", [b"", b"no json", b"[1]", b'{"messages": 3}'])
def test_a_payload_that_is_none_hurts_nobody(
    recorder: SdkRecorder, exporter: InMemorySpanExporter, payload: bytes
):
    attributes = told(recorder, exporter, Conventions(shows_content=True), payload=payload)

    assert "gen_ai.request.max_tokens" not in attributes


def test_a_cut_answer_fails_its_span_by_the_reason(
    recorder: SdkRecorder, exporter: InMemorySpanExporter
):
    attributes = told(recorder, exporter, Conventions(), outcome=Interrupted("provider_cut"))

    assert attributes["error.type"] == "provider_cut"


def test_a_span_that_nobody_keeps_is_told_nothing():
    conventions = Conventions(shows_content=True)
    with Tracing(conventions=conventions).span("chat small") as span:
        tell_request(span, conventions, b"not even read")
        tell_ending(span, conventions, ending(Completed("stop")))
        tell_answer(span, conventions, Named("answer-1", "small"), 3)
