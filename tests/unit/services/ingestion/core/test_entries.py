"""Entries of the live stream that ingestion writes."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from libs import ids
from services.ingestion.core.entries import moving_up, opening

TURN = UUID(int=5)


def test_a_turn_opens_with_the_assistant_message_and_its_seq() -> None:
    (entry,) = opening(TURN, seq=7, position=0)

    assert (str(entry.id), entry.event) == ("0-1", "message_started")
    assert str(ids.message_id(TURN, "assistant")).encode() in entry.data
    assert b'"seq":8' in entry.data


@given(st.integers(min_value=1, max_value=31), st.data())
def test_a_waiting_turn_is_told_every_place_once_with_contiguous_ids(
    queued_at: int, data: st.DataObject
) -> None:
    ids_seen = [entry.id for entry in opening(TURN, seq=1, position=queued_at)]
    place = queued_at
    while place > 0:
        following = data.draw(st.integers(min_value=0, max_value=place - 1))
        ids_seen += [
            entry.id for entry in moving_up(queued_at=queued_at, before=place, position=following)
        ]
        place = following

    assert [entry_id.attempt for entry_id in ids_seen] == [0] * len(ids_seen)
    assert [entry_id.n for entry_id in ids_seen] == list(range(1, queued_at + 3))
