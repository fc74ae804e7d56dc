"""Streams of OpenAI-compatible servers as typed parts."""

import json
from typing import Any

import pytest

from schemas.usage import Usage
from services.llm_gateway.core.completions import (
    CompletionReader,
    Done,
    Failed,
    Finished,
    Named,
    Part,
    TextDelta,
    UsageReported,
)
from services.llm_gateway.core.failures import FailureKind


def event(value: Any) -> bytes:
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()


def delta(text: str | None, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def parts(*values: Any) -> list[Part]:
    reader = CompletionReader()
    return [*reader.feed(b"".join(map(event, values))), *reader.close()]


def test_a_whole_answer() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }

    assert parts(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        delta("The "),
        delta("end"),
        delta(None, "stop"),
        {"choices": [], "usage": usage},
        "[DONE]",
    ) == [
        TextDelta("The "),
        TextDelta("end"),
        Finished("stop"),
        UsageReported(Usage(input=9, output=2, cached=4)),
        Done(),
    ]


def test_nothing_counts_after_the_end_marker() -> None:
    assert parts(delta("a"), "[DONE]", delta("b"), {"error": {"message": "late"}}) == [
        TextDelta("a"),
        Done(),
    ]


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("end_turn", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("content_filter", "content_filter"),
        ("SAFETY", "content_filter"),
        ("something new", "other"),
    ],
)
def test_stop_reasons_come_in_one_spelling(spelled: str, meant: str) -> None:
    assert parts(delta(None, spelled)) == [Finished(meant)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "m", "type": "server_error", "code": None}, FailureKind.SERVER_ERROR),
        ({"message": "m", "code": "rate_limit_exceeded"}, FailureKind.THROTTLED),
        ({"message": "m", "code": "context_length_exceeded"}, FailureKind.CONTEXT_LENGTH),
        (
            {"message": "m", "type": "exceed_context_size_error", "code": 400},
            FailureKind.CONTEXT_LENGTH,
        ),
        ({"message": "m", "code": "content_filter"}, FailureKind.SAFETY),
        ({"message": "m", "code": 429}, FailureKind.THROTTLED),
        ({"message": "m", "code": "503"}, FailureKind.SERVER_ERROR),
        ({"message": "m", "type": "invalid_request_error"}, FailureKind.BAD_REQUEST),
        ("just text", FailureKind.SERVER_ERROR),
    ],
)
def test_an_error_object_inside_the_stream_is_a_failure(error: Any, kind: FailureKind) -> None:
    [part] = parts({"error": error})

    assert isinstance(part, Failed)
    assert part.failure.kind == kind


@pytest.mark.parametrize("broken", ["{", "17", "null", '"text"', "[" * 100_000])
def test_what_is_not_a_chunk_is_a_malformed_answer(broken: str) -> None:
    [part] = parts(broken)

    assert isinstance(part, Failed)
    assert part.failure.kind == FailureKind.MALFORMED


def test_a_surrogate_pair_split_over_two_deltas_becomes_one_character() -> None:
    raw = b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n'
    raw += b'data: {"choices":[{"delta":{"content":"\\ude00b"}}]}\n\n'
    reader = CompletionReader()

    assert [*reader.feed(raw), *reader.close()] == [TextDelta("a"), TextDelta("😀b")]


def test_half_a_pair_at_the_end_becomes_one_replacement_character() -> None:
    raw = b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n'
    reader = CompletionReader()

    assert [*reader.feed(raw), *reader.close()] == [TextDelta("a"), TextDelta("\ufffd")]


def test_a_lone_low_half_becomes_one_replacement_character() -> None:
    raw = b'data: {"choices":[{"delta":{"content":"x\\ude00y"}}]}\n\n'

    assert CompletionReader().feed(raw) == [TextDelta("x\ufffdy")]


def test_the_null_character_is_left_out_because_it_cannot_be_stored() -> None:
    assert parts(delta("a\x00b"), delta("\x00")) == [TextDelta("ab")]


def test_only_the_first_choice_is_read() -> None:
    assert parts({"choices": [{"index": 1, "delta": {"content": "other"}}]}) == []


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"prompt_tokens": -1, "completion_tokens": 1}, {"prompt_tokens": "9"}, [], True],
)
def test_counts_that_are_none_are_not_reported(usage: Any) -> None:
    assert parts({"choices": [], "usage": usage}) == []


def test_an_answer_that_came_as_one_document_is_read_all_the_same() -> None:
    document = {
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }

    assert CompletionReader().read_whole(json.dumps(document).encode()) == [
        TextDelta("hi"),
        Finished("stop"),
        UsageReported(Usage(input=3, output=1)),
    ]


def test_a_provider_message_never_becomes_a_code() -> None:
    [part] = parts({"error": {"message": "m", "code": "the user said: hello"}})

    assert isinstance(part, Failed)
    assert part.failure.code is None


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (
            {"id": "chatcmpl-8a/1", "model": "gpt-4o:2024-08"},
            Named("chatcmpl-8a/1", "gpt-4o:2024-08"),
        ),
        ({}, Named()),
        ({"id": 7, "model": None}, Named()),
        ({"id": "what the user said", "model": "m" * 129}, Named()),
        ({"id": "line\nbreak", "model": "na\u00efve"}, Named()),
    ],
)
def test_what_an_answer_is_called_is_kept_only_where_it_looks_like_a_name(
    said: dict[str, Any], known: Named
) -> None:
    [finished] = parts({**delta(None, "stop"), **said})

    assert isinstance(finished, Finished)
    assert finished.named == known


@pytest.mark.parametrize(
    ("details", "known"),
    [({"reasoning_tokens": 5}, 5), ({"reasoning_tokens": "5"}, None), (7, None)],
)
def test_tokens_of_reasoning_are_read_where_the_provider_counts_them(
    details: Any, known: int | None
) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 9, "completion_tokens_details": details}
    [reported] = parts({"choices": [], "usage": usage})

    assert isinstance(reported, UsageReported)
    assert reported.reasoning == known
