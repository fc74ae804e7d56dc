"""Server-sent events, cut wherever a network cuts them."""

import pytest

from services.llm_gateway.core.sse_decoder import EventTooLarge, SseDecoder

STREAM = (
    "data: 東京タワー\ndata: 🗼 and\n\n: a comment\nevent: x\ndata: second\nid: 7\n\ndata:third\n\n"
)
EXPECTED = ["東京タワー\n🗼 and", "second", "third"]


def decoded(*packets: bytes) -> list[str]:
    decoder = SseDecoder()
    return [event for packet in packets for event in decoder.feed(packet)]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_every_cut_gives_the_same_events(line_end: str) -> None:
    raw = STREAM.replace("\n", line_end).encode()

    for cut in range(len(raw) + 1):
        assert decoded(raw[:cut], raw[cut:]) == EXPECTED, cut


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_byte_by_byte_gives_the_same_events(line_end: str) -> None:
    raw = STREAM.replace("\n", line_end).encode()

    assert decoded(*(raw[i : i + 1] for i in range(len(raw)))) == EXPECTED


def test_line_ends_may_be_mixed() -> None:
    assert decoded(b"data: a\r\ndata: b\rdata: c\n\r\ndata: d\n\n") == ["a\nb\nc", "d"]


def test_a_carriage_return_ends_a_line_before_its_line_feed_arrives() -> None:
    decoder = SseDecoder()

    assert decoder.feed(b"data: a\r\n\r") == ["a"]
    assert decoder.feed(b"\ndata: b\r\n\r\n") == ["b"]


def test_one_byte_order_mark_at_the_start_is_dropped() -> None:
    raw = "\ufeffdata: a\n\n\ufeffdata: b\n\n".encode()

    assert decoded(raw) == ["a"]
    assert decoded(raw[:1], raw[1:2], raw[2:]) == ["a"]


def test_an_event_without_its_closing_line_does_not_count() -> None:
    assert decoded(b"data: whole\n\ndata: half") == ["whole"]
    assert decoded(b"data: whole\n\ndata: half\n") == ["whole"]


def test_only_one_space_after_the_colon_belongs_to_the_format() -> None:
    assert decoded(b"data:  two\n\ndata:none\n\ndata\n\n") == [" two", "none", ""]


def test_a_field_that_only_begins_like_data_is_another_field() -> None:
    assert decoded(b"database: x\ndata: y\n\n") == ["y"]


def test_a_line_without_end_is_refused_at_the_bound() -> None:
    decoder = SseDecoder(max_event_bytes=100)
    decoder.feed(b"data: " + b"x" * 90)

    with pytest.raises(EventTooLarge):
        decoder.feed(b"x" * 90)


def test_an_event_of_many_lines_is_refused_at_the_bound() -> None:
    decoder = SseDecoder(max_event_bytes=100)

    with pytest.raises(EventTooLarge):
        decoder.feed(b"data: xxxxxxxxx\n" * 20)


def test_bytes_that_are_not_utf_8_become_the_replacement_character() -> None:
    assert decoded(b"data: a\xff\xfeb\n\n") == ["a\ufffd\ufffdb"]
