"""What a client that watches a conversation is told, look by look."""

from typing import Any
from uuid import UUID, uuid4

import orjson
from hypothesis import given
from hypothesis import strategies as st

from services.frontend_gateway.core.activity import (
    GONE,
    ConversationActivity,
    TurnActivity,
    Watching,
)

BRANCH = uuid4()
TURNS = [uuid4() for _ in range(6)]


def turn(id_: UUID, status: str, seq: int = 2) -> TurnActivity:
    return TurnActivity(id_, BRANCH, "message", status, None, seq, None)


def look(*turns: TurnActivity) -> ConversationActivity:
    return ConversationActivity(is_deleted=False, turns=turns)


def told(watching: Watching, now: ConversationActivity) -> list[tuple[str, Any]]:
    return [(notice.event, notice.data.get("turn_id")) for notice in watching.changes(now)]


def test_the_state_names_open_turns_oldest_first() -> None:
    a, b, c = TURNS[:3]
    state = Watching().begin(
        BRANCH, look(turn(c, "generating", 6), turn(b, "pending", 4), turn(a, "completed"))
    )
    assert [one["turn_id"] for one in state.data["open"]] == [str(b), str(c)]
    assert state.data["last_turn_id"] == str(c)
    assert state.frame == b"event: state\ndata: " + orjson.dumps(state.data) + b"\n\n"


def test_beginnings_and_ends_are_told_once() -> None:
    a, b = TURNS[:2]
    watching = Watching()
    watching.begin(BRANCH, look(turn(a, "generating")))
    assert told(watching, look(turn(a, "generating"))) == []
    assert told(watching, look(turn(b, "pending", 4), turn(a, "completed"))) == [
        ("turn_ended", str(a)),
        ("turn_began", str(b)),
    ]
    assert told(watching, look(turn(b, "pending", 4), turn(a, "completed"))) == []


def test_a_turn_that_began_and_ended_between_two_looks_is_told_whole() -> None:
    watching = Watching()
    watching.begin(BRANCH, look())
    assert told(watching, look(turn(TURNS[0], "failed"))) == [
        ("turn_began", str(TURNS[0])),
        ("turn_ended", str(TURNS[0])),
    ]


def test_a_running_turn_that_is_out_of_sight_is_not_forgotten() -> None:
    a, b = TURNS[:2]
    watching = Watching()
    watching.begin(BRANCH, look(turn(a, "generating")))
    assert told(watching, look(turn(b, "completed", 4)))[0] == ("turn_began", str(b))
    assert told(watching, look(turn(b, "completed", 4), turn(a, "completed"))) == [
        ("turn_ended", str(a))
    ]


def test_a_deleted_conversation_is_the_last_that_is_told() -> None:
    watching = Watching()
    watching.begin(BRANCH, look())
    assert told(watching, GONE) == [("conversation_deleted", None)]
    assert watching.is_over


STATES = st.lists(
    st.dictionaries(st.sampled_from(TURNS), st.sampled_from(["generating", "completed"])),
    max_size=8,
)


@given(STATES)
def test_every_turn_begins_before_it_ends_and_each_once(states: list[dict[UUID, str]]) -> None:
    watching = Watching()
    watching.begin(BRANCH, look())
    known: dict[UUID, str] = {}
    events: list[tuple[str, Any]] = []
    for state in states:
        for id_, status in state.items():
            if known.get(id_) != "completed":
                known[id_] = status
        events += told(watching, look(*(turn(id_, status) for id_, status in known.items())))
    assert len(events) == len(set(events))
    for id_, status in known.items():
        began, ended = ("turn_began", str(id_)), ("turn_ended", str(id_))
        assert began in events
        assert (ended in events) == (status == "completed")
        if ended in events:
            assert events.index(began) < events.index(ended)
