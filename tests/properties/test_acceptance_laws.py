"""Laws of acceptance: one turn per key, one number per message, whatever comes in which order."""

from collections import Counter
from dataclasses import replace
from typing import Any, get_args
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from libs import ids
from schemas.requests import Policy
from services.ingestion.core.decisions import Acceptance
from services.ingestion.core.policy import (
    MAX_OPEN_TURNS,
    Branches,
    Full,
    Refused,
    Replaces,
    Starts,
    Waits,
    place,
)
from services.ingestion.core.requests import Asked, Request, UserMessage, Wish
from services.ingestion.core.turn import Ending, TurnState
from tests.properties.conversations import TENANT, Rows

CONVERSATIONS = [UUID(int=10), UUID(int=11)]
PRINCIPALS = [UUID(int=20), UUID(int=21)]
KEYS = list("abcdefgh")
POLICIES: list[Policy] = list(get_args(Policy))
ENDINGS = [
    Ending(TurnState.COMPLETED),
    Ending(TurnState.PARTIAL, "provider_cut"),
    Ending(TurnState.PARTIAL, "idle_timeout"),
    Ending(TurnState.FAILED, "internal"),
]
STOPPED = Ending(TurnState.CANCELLED, "user")


def turn_of(conversation: UUID, key: str) -> UUID:
    return ids.turn_id(TENANT, conversation, key)


def request(
    number: int, conversation: UUID, principal: UUID, key: str | None, text: str, **fields: Any
) -> Request:
    """A message; without a key it creates the conversation."""
    said = {}
    if key is not None:
        said = {
            "asked": Asked(turn_of(conversation, key), key),
            "message": UserMessage(text, len(text.encode()), 0),
        }
    values: dict[str, Any] = {
        "wish": "create" if key is None else "message",
        "fingerprint": f"{key}:{text}",
        **said,
        **fields,
    }
    return Request(
        id=UUID(int=1000 + number),
        tenant_id=TENANT,
        principal_id=principal,
        conversation_id=conversation,
        **values,
    )


@st.composite
def batches(draw: st.DrawFn) -> list[Request]:
    shapes = draw(
        st.lists(
            st.tuples(
                st.sampled_from(CONVERSATIONS),
                st.sampled_from(PRINCIPALS),
                st.sampled_from([None, "a", "b", "c"]),
                st.sampled_from(["red", "blue"]),
            ),
            max_size=30,
        )
    )
    return [request(number, *shape) for number, shape in enumerate(shapes)]


@st.composite
def wishes(draw: st.DrawFn, number: int) -> Request:
    """Any request, about things that exist, do not exist, or exist elsewhere."""
    conversation = draw(st.sampled_from([CONVERSATIONS[0]] * 9 + [CONVERSATIONS[1]]))
    wish: Wish = draw(
        st.sampled_from(
            ["message"] * 6
            + ["edit"] * 4
            + ["regenerate"] * 4
            + ["continue"] * 6
            + ["cancel"] * 4
            + ["delete_message"] * 2
            + ["update", "delete", "restore", "restore"]
        )
    )
    key = draw(st.sampled_from(KEYS[3:] * 3 + KEYS))
    about = turn_of(conversation, draw(st.sampled_from(KEYS[:3] * 2 + KEYS)))
    role = draw(st.sampled_from(["user", "user", "user", "assistant"]))
    policy = draw(st.sampled_from([None, None, *POLICIES]))
    parent = draw(st.sampled_from([None] * 4 + [about]))
    asks = wish in ("message", "edit", "regenerate", "continue")
    says = wish in ("message", "edit")
    return Request(
        id=UUID(int=1000 + number),
        tenant_id=TENANT,
        principal_id=PRINCIPALS[0],
        conversation_id=conversation,
        wish=wish,
        fingerprint=f"{wish}:{about}:{role}:{policy}:{parent}",
        policy=policy,
        asked=(
            Asked(turn_of(conversation, key), key, None, parent if wish == "message" else None)
            if asks
            else None
        ),
        message=UserMessage("hi", 2, 0) if says else None,
        turn_id=about if wish in ("regenerate", "continue", "cancel") else None,
        message_id=(ids.message_id(about, role) if wish in ("edit", "delete_message") else None),
    )


Step = Request | tuple[int, Ending]
"""A request, or the end of one of the turns that run: which of them, and how."""


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """A few turns, answered or not, then requests and ends of running turns, in any order."""
    steps: list[Step] = []
    for number, key in enumerate(KEYS[: draw(st.integers(0, 4))]):
        steps.append(request(500 + number, CONVERSATIONS[0], PRINCIPALS[0], key, "red"))
        if draw(st.booleans()):
            steps.append((0, draw(st.sampled_from(ENDINGS))))
    for number in range(draw(st.integers(min_value=1, max_value=20))):
        if draw(st.integers(0, 2)) == 0:
            steps.append((draw(st.integers(0, 3)), draw(st.sampled_from(ENDINGS))))
        else:
            steps.append(draw(wishes(number)))
    return steps


def two_conversations() -> Rows:
    rows = Rows()
    rows.decide(
        [
            request(900 + n, conversation, PRINCIPALS[0], None, "red")
            for n, conversation in enumerate(CONVERSATIONS)
        ]
    )
    return rows


def play(rows: Rows, steps: list[Step]) -> list[Acceptance]:
    """Each request decided by itself; turns that are to stop while they wait end with the next."""
    told: list[Acceptance] = []
    for step in steps:
        if isinstance(step, Request):
            told.append(rows.decide([step]))
            continue
        which, ending = step
        running = [turn for turn, one in rows.open.items() if one.has_started]
        if running:
            rows.end([running[which % len(running)]], ending)
        marked = [turn for turn, one in rows.open.items() if one.row.is_cancelled]
        rows.end(marked, STOPPED, is_for_waiting=True)
    return told


@given(scripts())
def test_numbers_of_a_conversation_have_no_gap_whatever_is_asked(steps: list[Step]) -> None:
    rows = two_conversations()
    play(rows, steps)

    for (_, conversation), row in rows.conversations.items():
        seqs = sorted(m.seq for m in rows.messages.values() if m.conversation_id == conversation)
        assert seqs == list(range(1, row.next_seq))
    for turn in rows.turns.values():
        assert rows.messages[turn.answer_id].seq == turn.seq + 1
        assert turn.base_seq == rows.messages[turn.user_message_id].seq


@given(scripts())
def test_a_branch_has_one_head_that_runs_and_places_without_gap(steps: list[Step]) -> None:
    rows = two_conversations()
    for step in steps:
        play(rows, [step])

        branches: dict[UUID, list[int]] = {}
        for one in rows.open.values():
            branches.setdefault(one.row.branch_id, []).append(one.position)
            assert one.has_started <= (one.position == 0)
            assert one.has_started or one.position > 0 or one.row.is_cancelled
        for places in branches.values():
            assert sorted(places) == list(range(len(places)))
        assert len(rows.open) <= 2 * MAX_OPEN_TURNS


A_HEAD_THAT_IS_TO_STOP: list[Step] = [
    request(500, CONVERSATIONS[0], PRINCIPALS[0], "a", "red"),
    request(501, CONVERSATIONS[0], PRINCIPALS[0], "b", "red"),
    request(
        502,
        CONVERSATIONS[0],
        PRINCIPALS[0],
        None,
        "",
        wish="cancel",
        turn_id=turn_of(CONVERSATIONS[0], "b"),
    ),
    (0, ENDINGS[0]),
]


@given(scripts())
@example(A_HEAD_THAT_IS_TO_STOP)
def test_a_turn_that_is_to_stop_before_it_starts_never_starts(steps: list[Step]) -> None:
    rows = two_conversations()
    doomed: set[UUID] = set()
    for step in steps:
        play(rows, [step])

        assert not doomed & rows.started
        doomed |= {
            turn for turn, one in rows.open.items() if one.row.is_cancelled and not one.has_started
        }


@given(scripts())
def test_the_conversation_knows_the_last_turn_of_the_branch_it_goes_on_with(
    steps: list[Step],
) -> None:
    rows = two_conversations()
    play(rows, steps)

    for (_, conversation), row in rows.conversations.items():
        turns = [t for t in rows.turns.values() if t.request.conversation_id == conversation]
        for branch in {turn.branch_id for turn in turns}:
            newest = max((t for t in turns if t.branch_id == branch), key=lambda turn: turn.seq)
            known = row.last_turn_id if branch == row.branch_id else rows.lasts[branch]
            assert known == newest.turn_id
        assert row.branch_count == len({conversation} | {turn.branch_id for turn in turns})


@given(scripts())
def test_a_stop_is_told_once_and_a_deletion_never_twice(steps: list[Step]) -> None:
    rows = two_conversations()
    told = play(rows, steps)

    marks = Counter(mark.turn_id for acceptance in told for mark in acceptance.marks)
    gone = Counter(one.message_id for acceptance in told for one in acceptance.deletions)
    assert all(count == 1 for count in (*marks.values(), *gone.values()))


@given(scripts())
def test_nothing_that_runs_loses_a_message_it_needs(steps: list[Step]) -> None:
    rows = two_conversations()
    for step in steps:
        play(rows, [step])

        for turn in rows.open:
            needed = (rows.turns[turn].user_message_id, *rows.turns[turn].continues)
            assert not any(rows.messages[message].is_deleted for message in needed)


@given(scripts(), st.lists(wishes(number=0), max_size=8), st.integers(min_value=0, max_value=8))
def test_a_batch_cut_anywhere_is_decided_the_same_whatever_is_asked(
    steps: list[Step], drawn: list[Request], cut: int
) -> None:
    rows = two_conversations()
    play(rows, steps)
    batch = [replace(one, id=UUID(int=5000 + n)) for n, one in enumerate(drawn)]
    apart = rows.copy()

    whole = rows.decide(batch)
    first, second = apart.decide(batch[:cut]), apart.decide(batch[cut:])

    for part in ("decisions", "turns", "forks", "marks", "deletions", "turnings"):
        assert getattr(first, part) + getattr(second, part) == getattr(whole, part), part
    assert apart == rows


# Plain messages. --------------------------------------------------------------------------------


@given(batches())
def test_every_request_has_one_outcome_and_every_key_one_turn(batch: list[Request]) -> None:
    acceptance = Rows().decide(batch)

    assert [decision.request for decision in acceptance.decisions] == batch
    names = [(turn.request.conversation_id, turn.asked.key) for turn in acceptance.turns]
    assert len(names) == len(set(names))


@given(batches())
def test_seqs_of_a_conversation_have_no_gap_and_one_turn_starts(batch: list[Request]) -> None:
    acceptance = Rows().decide(batch)

    for conversation in CONVERSATIONS:
        turns = [t for t in acceptance.turns if t.request.conversation_id == conversation]
        assert [turn.seq for turn in turns] == [1 + 2 * n for n in range(len(turns))]
        assert [turn.position for turn in turns] == list(range(len(turns)))
        parents = [None, *(turn.turn_id for turn in turns)][: len(turns)]
        assert [turn.parent_turn_id for turn in turns] == parents


@given(batches(), st.integers(min_value=0, max_value=30))
def test_a_batch_cut_anywhere_is_decided_the_same(batch: list[Request], cut: int) -> None:
    whole = Rows().decide(batch)

    rows = Rows()
    first, second = rows.decide(batch[:cut]), rows.decide(batch[cut:])

    assert first.decisions + second.decisions == whole.decisions
    assert first.turns + second.turns == whole.turns


@given(batches())
def test_deciding_a_committed_batch_again_accepts_nothing(batch: list[Request]) -> None:
    made = [
        request(900 + n, conversation, PRINCIPALS[n], None, "red")
        for n, conversation in enumerate(CONVERSATIONS)
    ]
    batch = [*made, *batch]
    rows = Rows()
    first = rows.decide(batch)
    again = [replace(one, id=UUID(int=5000 + n)) for n, one in enumerate(batch)]

    second = rows.decide(again)

    assert second.turns == second.conversations == ()
    for before, now in zip(first.decisions, second.decisions, strict=True):
        if before.outcome in ("accepted", "replayed"):
            assert (now.outcome, now.turn_id) == ("replayed", before.turn_id)
        elif before.outcome == "conflict":
            assert now.outcome == "conflict"


@given(batches())
def test_nobody_learns_of_or_writes_to_a_conversation_of_somebody_else(
    batch: list[Request],
) -> None:
    acceptance = Rows().decide(batch)

    made = [new.request for new in acceptance.conversations]
    owners = {request.conversation_id: request.principal_id for request in made}
    for turn in acceptance.turns:
        assert owners[turn.request.conversation_id] == turn.request.principal_id
    for decision in acceptance.decisions:
        if decision.outcome == "not_found":
            assert decision.turn_id is None


def test_a_plain_batch_changes_nothing_but_turns_and_numbers() -> None:
    rows = two_conversations()

    plain = rows.decide(
        [request(n, CONVERSATIONS[0], PRINCIPALS[0], str(n), "x") for n in range(9)]
    )

    assert plain == Acceptance(plain.decisions, (), plain.turns, plain.tallies)


def test_a_conversation_holds_thirty_two_open_turns() -> None:
    conversation = CONVERSATIONS[0]
    batch = [request(0, conversation, PRINCIPALS[0], None, "")]
    batch += [
        request(n, conversation, PRINCIPALS[0], f"key {n}", "x")
        for n in range(1, MAX_OPEN_TURNS + 2)
    ]

    outcomes = [decision.outcome for decision in Rows().decide(batch).decisions]

    assert outcomes == ["accepted"] * (MAX_OPEN_TURNS + 1) + ["rejected"]


@given(st.sampled_from(POLICIES), st.integers(0, 5), st.integers(1, 4))
def test_a_turn_starts_when_nothing_is_open_and_else_goes_where_its_policy_says(
    policy: Policy, open_count: int, queue_depth: int
) -> None:
    open_turns = [UUID(int=n) for n in range(open_count)]

    placement = place(policy, open_turns, queue_depth=queue_depth)

    if open_count == 0:
        assert placement == Starts()
        return
    fits = open_count - 1 < queue_depth
    assert (
        placement
        == {
            "serialize": Waits(open_count),
            "queue": Waits(open_count, is_bounded=True) if fits else Full(open_count - 1),
            "reject": Refused(open_turns[0]),
            "branch": Branches(open_turns[0]),
            "replace": Replaces(tuple(open_turns)),
        }[policy]
    )
