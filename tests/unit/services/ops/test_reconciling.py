"""What is called a difference, and what is only work under way."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from libs.operating import end_ids
from services.ops.reconciling import (
    MAX_TOLD,
    Difference,
    Report,
    outbox_differences,
    turn_differences,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SINCE = NOW - timedelta(days=7)
TURN = uuid4()


def turn_row(age_s: float = 600.0, *, is_open: bool = False, **changed: Any) -> dict[str, Any]:
    ended = NOW - timedelta(seconds=age_s)
    return {"turn_id": TURN, "status": "failed", "ended_at": ended, "is_open": is_open, **changed}


def kinds(
    row: dict[str, Any],
    *,
    told: str | None = None,
    since: datetime | None = SINCE,
    events: set[UUID] | None = None,
) -> list[str]:
    ended = {} if told is None else {TURN: told}
    found = turn_differences([row], ended, since=since, events=events or set(), now=NOW)
    return [one.kind for one in found]


@pytest.mark.parametrize("event", end_ids(TURN), ids=["by its service", "by an operator"])
def test_an_end_that_waits_in_the_outbox_is_told(event: UUID) -> None:
    assert kinds(turn_row()) == ["end_not_told"]
    assert kinds(turn_row(), events={event}) == []
    assert kinds(turn_row(), events={uuid4()}) == ["end_not_told"]


def test_what_just_ended_or_is_older_than_the_topic_is_no_difference() -> None:
    assert kinds(turn_row(age_s=30.0)) == []
    assert kinds(turn_row(age_s=8 * 86_400.0)) == []
    assert kinds(turn_row(), since=None) == []


def test_rows_that_contradict_each_other_or_the_topic_are_named() -> None:
    assert kinds(turn_row(), told="failed") == []
    assert kinds(turn_row(), told="completed") == ["other_end"]
    assert kinds(turn_row(is_open=True), told="failed") == ["open_turn"]
    assert kinds(turn_row(ended_at=None, status="generating")) == ["open_turn"]
    assert kinds(turn_row(ended_at=None, status="generating", is_open=True)) == []


def test_events_that_wait_too_long_or_were_refused_are_named() -> None:
    event = {"service": "ingestion", "type": "turn.ended", "event_id": "e", "error": "too large"}
    waiting = [{**event, "age_s": 59.0}, {**event, "age_s": 61.0}]
    found = list(outbox_differences(waiting, [event]))
    assert [one.kind for one in found] == ["outbox_old", "outbox_refused"]


def test_many_differences_are_all_counted_and_some_told() -> None:
    report = Report()
    report.add(Difference("work_left", "here", str(n), "") for n in range(MAX_TOLD + 50))
    assert report.document()["counts"] == {"work_left": MAX_TOLD + 50}
    assert len(report.document()["differences"]) == MAX_TOLD
