"""The pure rules of the live stream's port."""

import pytest

from libs.redis.ports import (
    ENDED_EXPIRE_S,
    STREAM_EXPIRE_S,
    bell_body,
    expiry,
    is_fenced,
    parse_bell,
)
from schemas.streams import (
    TERMINAL_ATTEMPT,
    EntryId,
    TurnEnd,
    content_delta,
    fence,
    generating,
    terminal_entries,
)

DONE = terminal_entries(
    TurnEnd(status="failed", reason="deadline", length=0, sha256=None, usage=None)
)


def test_a_bell_is_the_entry_itself():
    entry = content_delta(EntryId(3, 14), "two words")

    assert bell_body(entry) == b'3-14 content_delta {"text":"two words"}'
    assert parse_bell(bell_body(entry)) == entry


@pytest.mark.parametrize("body", [b"", b"1-1", b"1-1 status", b"x status {}", b"\xff \xff {}"])
def test_what_is_no_bell_is_refused(body: bytes):
    with pytest.raises(ValueError, match="a bell is an entry id"):
        parse_bell(body)


def test_the_end_shortens_a_streams_life_and_never_lengthens_it():
    assert expiry([generating(1)], STREAM_EXPIRE_S) == STREAM_EXPIRE_S
    assert expiry(DONE, STREAM_EXPIRE_S) == ENDED_EXPIRE_S
    assert expiry(DONE, 60) == 60


def test_only_a_higher_attempt_than_all_entries_fences():
    mine = [generating(2), content_delta(EntryId(2, 2), "x")]

    assert is_fenced(mine, accepted=0, last=EntryId(3, 0))
    assert is_fenced(mine, accepted=0, last=EntryId(TERMINAL_ATTEMPT, 1))
    assert not is_fenced(mine, accepted=0, last=EntryId(2, 2))  # written before: a repeat
    assert not is_fenced(mine, accepted=1, last=EntryId(2, 2))
    assert not is_fenced([fence(3), generating(3)], accepted=0, last=EntryId(3, 1))
