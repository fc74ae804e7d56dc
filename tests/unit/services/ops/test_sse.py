"""A stream is understood however the network cuts it."""

import pytest

from services.ops import sse
from services.ops.sse import EventParser, StreamEvent, StreamTooLong

STREAM = (
    "retry: 2000\n\n: a comment\n\n"
    'id: 0-1\nevent: message_started\ndata: {"seq":2}\n\n'
    'id: 1-2\r\nevent: content_delta\r\ndata: {"text":"a\u2028b ü"}\r\n\r\n'
).encode()
EVENTS = [
    StreamEvent("0-1", "message_started", '{"seq":2}'),
    StreamEvent("1-2", "content_delta", '{"text":"a\u2028b ü"}'),
]


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_a_cut_at_any_byte_changes_nothing(at: int) -> None:
    parser = EventParser()
    assert [*parser.feed(STREAM[:at]), *parser.feed(STREAM[at:])] == EVENTS


def test_an_event_that_is_not_complete_is_not_told() -> None:
    assert list(EventParser().feed(b"id: 1-1\ndata: {}\n")) == []


def test_a_line_without_end_is_given_up() -> None:
    with pytest.raises(StreamTooLong):
        list(EventParser().feed(b"x" * (sse.MAX_LINE_BYTES + 1)))
