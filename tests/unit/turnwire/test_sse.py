"""The parser gives the same events wherever the bytes are cut and however lines end."""

import pytest

from turnwire.errors import UnexpectedAnswer
from turnwire.sse import MAX_LINE_CHARACTERS, EventParser, RawEvent

STREAM = 'retry: 2000\n\n: ping\n\nid: 1-2\nevent: content_delta\ndata: {"text":"渡🛶"}\n\n'
EVENT = RawEvent("1-2", "content_delta", '{"text":"渡🛶"}')


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_one_event_for_every_cut_and_every_line_end(end: str) -> None:
    raw = STREAM.replace("\n", end).encode() + b": the end\n"

    for cut in range(len(raw)):
        parser = EventParser()
        assert [*parser.feed(raw[:cut]), *parser.feed(raw[cut:])] == [EVENT]


def test_byte_by_byte_is_the_same() -> None:
    parser = EventParser()

    assert [event for byte in STREAM.encode() for event in parser.feed(bytes([byte]))] == [EVENT]


def test_data_of_several_lines_is_joined_and_an_event_without_data_is_none() -> None:
    parser = EventParser()

    assert list(parser.feed(b"event: x\n\nid: 7\ndata: a\ndata:  b\n\n")) == [
        RawEvent("7", "message", "a\n b")
    ]


def test_a_line_without_end_is_refused() -> None:
    parser = EventParser()

    with pytest.raises(UnexpectedAnswer, match="longer than"):
        list(parser.feed(b"data: " + b"x" * MAX_LINE_CHARACTERS))
