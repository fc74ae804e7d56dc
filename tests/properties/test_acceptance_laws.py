"""Laws of acceptance: one turn per key, one number per message, whatever comes in which order."""

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from libs import ids
from services.ingestion.core.acceptance import (
    Acceptance,
    ConversationRow,
    Locked,
    TurnRow,
    decide,
)
from services.ingestion.core.policy import MAX_OPEN_TURNS, Starts, Waits, place
from services.ingestion.core.requests import Request, UserMessage

TENANT = UUID(int=1)
CONVERSATIONS = [UUID(int=10), UUID(int=11)]
PRINCIPALS = [UUID(int=20), UUID(int=21)]
EMPTY = Locked({}, {}, {})


def request(
    number: int, conversation: UUID, principal: UUID, key: str | None, text: str
) -> Request:
    """A request; without a key it creates the conversation."""
    message = None
    if key is not None:
        turn_id = ids.turn_id(TENANT, conversation, key)
        message = UserMessage(turn_id, key, text, len(text.encode()), 0, None, None)
    return Request(
        id=UUID(int=1000 + number),
        tenant_id=TENANT,
        principal_id=principal,
        conversation_id=conversation,
        creates=key is None,
        fingerprint=f"{key}:{text}",
        title=None,
        policy=None,
        model=None,
        message=message,
        said_at=None,
        time_zone=None,
        traceparent=None,
        fault=None,
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


def after_commit(before: Locked, acceptance: Acceptance) -> Locked:
    """The rows that the next batch would lock."""
    conversations = dict(before.conversations)
    turns = dict(before.turns)
    open_turns = {key: list(queue) for key, queue in before.open_turns.items()}
    for new in acceptance.conversations:
        key = (new.request.tenant_id, new.request.conversation_id)
        conversations[key] = ConversationRow(
            new.request.principal_id, new.policy, None, new.request.fingerprint, 1, None
        )
    for turn in acceptance.turns:
        key = (turn.request.tenant_id, turn.request.conversation_id)
        turns[key, turn.message.key] = TurnRow(turn.message.turn_id, turn.request.fingerprint)
        open_turns.setdefault(key, []).append(turn.message.turn_id)
    for tally in acceptance.tallies:
        key = (tally.tenant_id, tally.conversation_id)
        conversations[key] = replace(
            conversations[key], next_seq=tally.next_seq, last_turn_id=tally.last_turn_id
        )
    return Locked(conversations, turns, open_turns)


@given(batches())
def test_every_request_has_one_outcome_and_every_key_one_turn(batch: list[Request]) -> None:
    acceptance = decide(batch, EMPTY)

    assert [decision.request for decision in acceptance.decisions] == batch
    names = [(turn.request.conversation_id, turn.message.key) for turn in acceptance.turns]
    assert len(names) == len(set(names))


@given(batches())
def test_seqs_of_a_conversation_have_no_gap_and_one_turn_starts(batch: list[Request]) -> None:
    acceptance = decide(batch, EMPTY)

    for conversation in CONVERSATIONS:
        turns = [t for t in acceptance.turns if t.request.conversation_id == conversation]
        assert [turn.seq for turn in turns] == [1 + 2 * n for n in range(len(turns))]
        assert [turn.position for turn in turns] == list(range(len(turns)))
        parents = [None, *(turn.message.turn_id for turn in turns)][: len(turns)]
        assert [turn.parent_turn_id for turn in turns] == parents


@given(batches(), st.integers(min_value=0, max_value=30))
def test_a_batch_cut_anywhere_is_decided_the_same(batch: list[Request], cut: int) -> None:
    whole = decide(batch, EMPTY)

    first = decide(batch[:cut], EMPTY)
    second = decide(batch[cut:], after_commit(EMPTY, first))

    assert first.decisions + second.decisions == whole.decisions
    assert first.turns + second.turns == whole.turns


@given(batches())
def test_deciding_a_committed_batch_again_accepts_nothing(batch: list[Request]) -> None:
    made = [
        request(900 + n, conversation, PRINCIPALS[n], None, "red")
        for n, conversation in enumerate(CONVERSATIONS)
    ]
    batch = [*made, *batch]
    first = decide(batch, EMPTY)
    again = [replace(one, id=UUID(int=5000 + n)) for n, one in enumerate(batch)]

    second = decide(again, after_commit(EMPTY, first))

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
    acceptance = decide(batch, EMPTY)

    made = [new.request for new in acceptance.conversations]
    owners = {request.conversation_id: request.principal_id for request in made}
    for turn in acceptance.turns:
        assert owners[turn.request.conversation_id] == turn.request.principal_id
    for decision in acceptance.decisions:
        if decision.outcome == "not_found":
            assert decision.turn_id is None


def test_a_conversation_holds_thirty_two_open_turns() -> None:
    conversation = CONVERSATIONS[0]
    batch = [request(0, conversation, PRINCIPALS[0], None, "")]
    batch += [
        request(n, conversation, PRINCIPALS[0], f"key {n}", "x")
        for n in range(1, MAX_OPEN_TURNS + 2)
    ]

    outcomes = [decision.outcome for decision in decide(batch, EMPTY).decisions]

    assert outcomes == ["accepted"] * (MAX_OPEN_TURNS + 1) + ["rejected"]


@given(st.sampled_from(["serialize", "branch", "reject", "queue", "replace"]), st.integers(0, 5))
def test_a_turn_starts_when_nothing_is_open_and_serialize_waits_behind_all(
    policy: str, open_count: int
) -> None:
    open_turns = [UUID(int=n) for n in range(open_count)]

    placement = place(policy, open_turns)  # type: ignore[arg-type]

    assert isinstance(placement, Starts) == (open_count == 0)
    if policy == "serialize" and open_count:
        assert placement == Waits(open_count)
