"""Laws of reading a provider's stream and of writing ours."""

import json

from hypothesis import given
from hypothesis import strategies as st

from libs.errors import ChatError
from schemas.streams import Entry, EntryId, content_delta, delta_text, fence, generating
from services.llm_gateway.core.attempt import AttemptText
from services.llm_gateway.core.coalesce import Coalescer
from services.llm_gateway.core.completions import CompletionReader, TextDelta
from services.llm_gateway.core.failures import (
    MAX_REQUESTS,
    RETRIED,
    Failure,
    FailureKind,
    GiveUp,
    Repeat,
    after_failure,
)
from services.llm_gateway.core.recovery import Checkpoint, KeepShown, StartAgain, judge
from services.llm_gateway.core.sse_decoder import SseDecoder

TEXT = st.text(
    alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20
)
LINE_END = st.sampled_from(["\n", "\r\n", "\r"])
SECONDS = st.floats(0, 1_000, allow_nan=False)


def packets(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(raw) + 1) for cut in cuts})
    return [raw[a:b] for a, b in zip([0, *places], [*places, len(raw)], strict=True)]


@given(st.lists(TEXT, max_size=6), st.lists(LINE_END, min_size=1), st.lists(st.integers(0)))
def test_cuts_never_change_the_text(texts: list[str], ends: list[str], cuts: list[int]) -> None:
    raw = b""
    for i, text in enumerate(texts):
        chunk = json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False)
        raw += f"data: {chunk}{ends[i % len(ends)] * 2}".encode()
    reader = CompletionReader()

    parts = [part for packet in packets(raw, cuts) for part in reader.feed(packet)]

    assert [p.text for p in parts if isinstance(p, TextDelta)] == [text for text in texts if text]


@given(st.binary(max_size=200), st.lists(st.integers(0)))
def test_any_bytes_decode_alike_however_they_are_cut(raw: bytes, cuts: list[int]) -> None:
    whole, cut = SseDecoder(), SseDecoder()

    expected = whole.feed(raw)

    assert [event for packet in packets(raw, cuts) for event in cut.feed(packet)] == expected


@given(st.binary(max_size=200))
def test_a_reader_answers_any_bytes_with_parts(raw: bytes) -> None:
    try:
        parts = CompletionReader().feed(b"data: " + raw + b"\n\n")
    except ChatError as error:
        raise AssertionError("a short packet is never too large") from error

    assert all(part.text for part in parts if isinstance(part, TextDelta))


@given(st.lists(st.tuples(TEXT.filter(bool), st.floats(0, 0.1)), max_size=30))
def test_coalescing_loses_and_reorders_nothing(deltas: list[tuple[str, float]]) -> None:
    coalescer = Coalescer()
    now, sent = 0.0, []
    for text, pause in deltas:
        now += pause
        if (piece := coalescer.add(text, now)) is not None:
            sent.append(piece)
    if (piece := coalescer.flush(now)) is not None:
        sent.append(piece)

    assert "".join(sent) == "".join(text for text, _ in deltas)
    assert coalescer.due_at is None
    if deltas:
        assert sent[0] == deltas[0][0]


@given(st.lists(st.tuples(TEXT.filter(bool), st.floats(0, 0.02)), min_size=1, max_size=60))
def test_text_is_held_for_forty_milliseconds_or_256_characters_at_most(
    deltas: list[tuple[str, float]],
) -> None:
    coalescer = Coalescer()
    now, held, sent_at = 0.0, 0, None
    for text, pause in deltas:
        now += pause
        piece = coalescer.add(text, now)
        held = 0 if piece is not None else held + len(text)
        sent_at = now if piece is not None else sent_at
        assert held < 256
        assert coalescer.due_at is None or (
            sent_at is not None and coalescer.due_at <= sent_at + 0.04
        )


@given(st.lists(TEXT.filter(bool), max_size=20))
def test_an_attempt_describes_exactly_what_its_entries_say(pieces: list[str]) -> None:
    text = AttemptText(1)
    entries = [text.append(piece) for piece in pieces]

    assert "".join(map(delta_text, entries)) == text.text
    assert text.length == len(text.text.encode())
    assert [entry.id.n for entry in entries] == list(range(2, len(pieces) + 2))
    assert text.upto == EntryId(1, len(pieces) + 1)


@given(
    st.sampled_from(list(FailureKind)),
    st.integers(1, 5),
    st.booleans(),
    SECONDS,
    st.floats(0, 1, exclude_max=True),
    st.none() | SECONDS,
)
def test_a_failure_is_repeated_only_where_that_can_help(
    kind: FailureKind,
    requests: int,
    shown: bool,
    left_s: float,
    jitter: float,
    asked_s: float | None,
) -> None:
    fate = after_failure(
        Failure(kind, retry_after_s=asked_s),
        requests=requests,
        shown=shown,
        left_s=left_s,
        jitter=jitter,
    )

    if isinstance(fate, Repeat):
        assert kind in RETRIED
        assert not shown
        assert requests < MAX_REQUESTS
        assert fate.delay_s < left_s
        assert asked_s is None or fate.delay_s >= asked_s
    else:
        assert isinstance(fate, GiveUp)
        if kind is FailureKind.IDLE:
            assert fate.reason == "idle_timeout"
        else:
            assert (fate.reason == "provider_cut") == shown


@given(
    st.lists(TEXT.filter(bool), max_size=8),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 8),
)
def test_recovery_keeps_a_prefix_and_never_less_than_the_checkpoint(
    pieces: list[str], lost: int, arrived: int, stored: int
) -> None:
    """``arrived`` entries reached the stream, of which the first ``lost`` are gone again."""
    written = [content_delta(EntryId(1, n), text) for n, text in enumerate(pieces, start=2)]
    head: list[Entry] = [] if lost else [generating(1)]
    in_stream = written[lost:arrived]
    stored = min(stored, len(pieces))
    checkpoint = Checkpoint(EntryId(1, stored + 1), "".join(pieces[:stored])) if stored else None

    fate = judge(
        1,
        entries=[*head, *in_stream, fence(2)],
        checkpoint=checkpoint,
        attempts_made=1,
        late_reason=None,
    )

    if isinstance(fate, StartAgain):
        assert not in_stream
        assert checkpoint is None
    else:
        assert isinstance(fate, KeepShown)
        assert fate.text == "".join(pieces[: fate.upto.n - 1])
        assert fate.upto.n >= stored + 1
