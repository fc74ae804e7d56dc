"""Text, length, hash and stream ids of an attempt go together."""

import hashlib

from schemas.streams import EntryId, delta_text
from schemas.usage import Usage
from services.llm_gateway.core.attempt import AttemptText
from services.llm_gateway.core.usage import Price, estimated, priced


def test_a_fresh_attempt_covers_its_status_entry_and_no_text() -> None:
    text = AttemptText(3)

    assert (text.text, text.length, str(text.upto), text.is_shown) == ("", 0, "3-1", False)
    assert text.sha256 == hashlib.sha256(b"").hexdigest()


def test_entries_are_numbered_from_two_without_a_gap() -> None:
    text = AttemptText(3)
    entries = [text.append(piece) for piece in ("a", "€", "😀")]

    assert [str(entry.id) for entry in entries] == ["3-2", "3-3", "3-4"]
    assert "".join(map(delta_text, entries)) == text.text == "a€😀"
    assert (text.length, str(text.upto)) == (8, "3-4")
    assert text.sha256 == hashlib.sha256("a€😀".encode()).hexdigest()


def test_a_recovered_text_is_described_like_one_that_grew() -> None:
    grown = AttemptText(1)
    for piece in ("x", "é"):
        grown.append(piece)
    found = AttemptText(1, text="xé", upto=EntryId(1, 3))

    assert (found.length, found.sha256, found.upto) == (grown.length, grown.sha256, grown.upto)


def test_an_estimate_is_never_zero_for_a_request_that_was_sent() -> None:
    assert estimated(request_bytes=0, answer_bytes=0) == Usage(input=1, output=0, estimated=True)
    assert estimated(request_bytes=9, answer_bytes=5) == Usage(input=3, output=2, estimated=True)


def test_cached_tokens_have_their_own_price() -> None:
    usage = Usage(input=1_000_000, output=500_000, cached=400_000)

    assert priced(usage, Price(2.0, 0.5, 8.0)).cost_usd == 0.6 * 2.0 + 0.4 * 0.5 + 4.0
    assert priced(usage, Price(2.0, None, 8.0)).cost_usd == 6.0
    assert priced(usage, Price(2.0, None, None)).cost_usd is None
