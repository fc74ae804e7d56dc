"""Documents become values; what is missing or of another type is named, what is new is ignored."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from turnwire import Conversation, Message, Turn, UnexpectedAnswer
from turnwire.models import read

ID = "01890000-0000-7000-8000-000000000001"
TURN: dict[str, Any] = {
    "id": ID,
    "conversation_id": ID,
    "user_message_id": ID,
    "assistant_message_id": ID,
    "seq": 1,
    "status": "completed",
    "reason": None,
    "usage": {"input": 3, "output": 4, "estimated": True, "cached": 1},
    "created_at": "2026-01-31T09:40:00Z",
    "stream_url": "/v1/turns/x/events",
}


def test_ids_times_and_nested_values_are_read() -> None:
    turn = read(Turn, TURN)

    assert turn.id == UUID(ID)
    assert turn.created_at == datetime(2026, 1, 31, 9, 40, tzinfo=UTC)
    assert turn.usage is not None
    assert (turn.usage.output, turn.usage.estimated) == (4, True)
    assert turn.has_ended
    assert turn.kind == "message"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seq": "1"}, "Turn.seq of the answer is a str"),
        ({"seq": True}, "Turn.seq of the answer is a bool"),
        ({"id": "x"}, "Turn.id of the answer cannot be read"),
        ({"created_at": "yesterday"}, "Turn.created_at of the answer cannot be read"),
        ({"usage": [1]}, "no JSON object"),
    ],
)
def test_what_is_of_another_type_is_named(change: dict[str, Any], told: str) -> None:
    with pytest.raises(UnexpectedAnswer, match=told):
        read(Turn, TURN | change)


@pytest.mark.parametrize("kind", [Turn, Message, Conversation])
def test_a_field_that_is_missing_is_named(kind: type) -> None:
    with pytest.raises(UnexpectedAnswer, match="has no "):
        read(kind, {"id": ID})


def test_no_object_is_no_value() -> None:
    with pytest.raises(UnexpectedAnswer, match="no JSON object"):
        read(Turn, [TURN])
