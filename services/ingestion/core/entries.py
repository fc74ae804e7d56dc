"""The stream entries of a turn's beginning and of its place in the queue."""

from uuid import UUID

from libs import ids
from schemas.streams import Entry, message_started, queue_status

_FIRST_QUEUE_ENTRY = 2
"""Entry 1 of attempt 0 is ``message_started``."""


def opening(turn_id: UUID, *, seq: int, position: int) -> tuple[Entry, ...]:
    """Entries 0-1 and, for a turn that waits, 0-2. ``seq`` is the user message's."""
    first = message_started(
        turn_id=turn_id, message_id=ids.message_id(turn_id, "assistant"), seq=seq + 1
    )
    if position == 0:
        return (first,)
    return (first, queue_status(_FIRST_QUEUE_ENTRY, position=position))


def moving_up(*, queued_at: int, before: int, position: int) -> tuple[Entry, ...]:
    """One entry for each place that a waiting turn moved up, the last one with ``position``.

    Numbers follow from how far the turn is from where it queued, so they have no gap and two
    writers make the same entry.
    """
    return tuple(
        queue_status(_FIRST_QUEUE_ENTRY + queued_at - place, position=place)
        for place in range(before - 1, position - 1, -1)
    )
