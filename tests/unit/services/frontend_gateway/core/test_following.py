"""What a client gets next, entry by entry."""

import pytest

from schemas.streams import (
    BEFORE_ALL,
    Entry,
    EntryId,
    content_delta,
    fence,
    generating,
    queue_status,
    snapshot,
)
from services.frontend_gateway.core.following import (
    Backlog,
    Position,
    Verdict,
    advanced,
    is_next,
    judge,
)


def at(text: str) -> EntryId:
    return EntryId.parse(text)


def entry(text: str) -> Entry:
    id_ = at(text)
    return content_delta(id_, "x") if id_.n > 1 else Entry(id_, "status", b"{}")


@pytest.mark.parametrize(
    ("last", "following", "verdict"),
    [
        ("0-1", "0-1", Verdict.SKIP),
        ("1-5", "1-4", Verdict.SKIP),
        ("1-5", "2-0", Verdict.SKIP),
        ("0-1", "0-2", Verdict.SEND),
        ("0-1", "0-5", Verdict.SEND),
        ("0-2", "1-1", Verdict.SEND),
        ("0-2", "1-2", Verdict.SEND),
        ("0-2", "1-3", Verdict.GAP),
        ("1-4", "1-5", Verdict.SEND),
        ("1-4", "1-6", Verdict.GAP),
        ("1-4", "2-1", Verdict.SEND),
        ("1-4", "2-9", Verdict.GAP),
        ("1-4", "2147483647-1", Verdict.END),
        ("1-4", "2147483646-0", Verdict.SKIP),
    ],
)
def test_an_entry_is_sent_only_if_no_text_is_missing_before_it(
    last: str, following: str, verdict: Verdict
) -> None:
    assert judge(at(last), entry(following)) is verdict


def test_only_the_very_next_id_of_an_attempt_is_certain() -> None:
    assert is_next(at("1-4"), at("1-5"))
    assert not is_next(at("1-4"), at("2-1"))
    assert not is_next(at("1-4"), at("1-6"))
    assert not is_next(at("2147483647-1"), at("2147483647-2"))


def test_length_counts_bytes_and_a_snapshot_sets_it() -> None:
    position = Position(BEFORE_ALL, 0)
    position = advanced(position, content_delta(at("1-2"), "é😀"))
    assert position == Position(at("1-2"), 6)
    assert advanced(position, generating(2)).length == 6
    assert advanced(position, snapshot(at("1-9"), "abc")) == Position(at("1-9"), 3)
    unknown = Position(at("1-2"), None)
    assert advanced(unknown, content_delta(at("1-3"), "a")).length is None
    assert advanced(unknown, snapshot(at("1-9"), "abc")).length == 3


def walked(wanted: str, *held: Entry) -> Backlog:
    backlog = Backlog.of(at(wanted))
    for one in held:
        backlog = backlog.seen(one)
        if one.id > backlog.wanted:
            break
    return backlog


WHOLE = (entry("0-1"), queue_status(2, position=1), entry("1-1"), entry("1-2"), entry("1-3"))


def test_a_held_id_is_known_with_the_text_before_it() -> None:
    assert walked("1-3", *WHOLE).position(None) == Position(at("1-3"), 2)
    assert walked("1-2", *WHOLE).position(None) == Position(at("1-2"), 1)
    assert walked("0-1", *WHOLE).position(None) == Position(at("0-1"), 0)


@pytest.mark.parametrize("wanted", ["1-4", "0-3", "2-1", "1-999"])
def test_an_id_after_or_between_what_was_issued_is_unknown(wanted: str) -> None:
    assert walked(wanted, *WHOLE).position(None) is None


def test_what_the_rows_cover_was_issued() -> None:
    assert walked("1-4", *WHOLE).position(at("1-6")) == Position(at("1-4"), None)
    assert walked("1-7", *WHOLE).position(at("1-6")) is None
    assert walked("2-3", *WHOLE).position(at("1-6")) is None


@pytest.mark.parametrize("wanted", ["0-2", "1-1", "1-2", "1-4"])
def test_before_the_first_held_entry_nothing_can_be_denied(wanted: str) -> None:
    assert walked(wanted, entry("1-5"), entry("1-6")).position(None) == Position(at(wanted), None)


def test_inside_missing_entries_of_an_attempt_nothing_can_be_denied() -> None:
    held = (entry("0-1"), entry("1-1"), entry("1-2"), entry("1-9"))
    assert walked("1-5", *held).position(None) == Position(at("1-5"), None)
    assert walked("1-9", *held).position(None) == Position(at("1-9"), None)


def test_without_a_stream_nothing_can_be_denied() -> None:
    assert walked("7-7").position(None) == Position(at("7-7"), None)
    assert walked("7-7", fence(3)).position(None) == Position(at("7-7"), None)
