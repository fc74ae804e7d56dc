"""Laws of the turn's state machine: one end, the first one, and nothing after it."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ingestion.core.endings import (
    of_cancel,
    of_completed,
    of_deadline,
    of_failed,
    of_interrupted,
)
from services.ingestion.core.settlement import OpenTurn, Signal, TurnFacts, settle
from services.ingestion.core.turn import (
    ENDINGS,
    REASONS,
    TERMINAL,
    TRANSITIONS,
    Ending,
    Move,
    TurnState,
    after,
)

TENANT = UUID(int=1)
CONVERSATION = UUID(int=2)
BRANCH = (TENANT, CONVERSATION, CONVERSATION)

endings = st.sampled_from(
    [Ending(TurnState.COMPLETED)]
    + [Ending(state, reason) for state, reasons in REASONS.items() for reason in sorted(reasons)]
)
moves = st.sampled_from(list(Move))


def test_every_state_has_its_row_and_terminal_states_lead_nowhere() -> None:
    assert set(TRANSITIONS) == set(TurnState)
    assert all(TRANSITIONS[state] == {} for state in TERMINAL)


@given(st.sampled_from([state for state in TurnState if state not in TERMINAL]))
def test_every_end_is_legal_from_every_open_state(state: TurnState) -> None:
    for move, end in ENDINGS.items():
        assert after(state, move) is end


@given(st.lists(moves))
def test_the_first_end_of_a_history_is_its_last_state(history: list[Move]) -> None:
    state = TurnState.PENDING
    for move in history:
        state = after(state, move) or state

    first_end = next((ENDINGS[move] for move in history if move in ENDINGS), None)
    if first_end is None:
        assert state not in TERMINAL
    else:
        assert state is first_end


@pytest.mark.parametrize("state", [TurnState.GENERATING, *sorted(TERMINAL)])
def test_a_late_planned_step_changes_nothing(state: TurnState) -> None:
    assert after(state, Move.STEP_PLANNED) is None


@given(st.sampled_from(list(TurnState)), st.one_of(st.none(), st.text(max_size=20)))
def test_an_end_has_a_reason_of_its_closed_list(state: TurnState, reason: str | None) -> None:
    allowed = state in TERMINAL and (
        reason in REASONS[state] or (state is TurnState.COMPLETED and reason is None)
    )
    if allowed:
        assert Ending(state, reason).state is state
    else:
        with pytest.raises(ValueError, match=r"reason|end"):
            Ending(state, reason)


@given(st.text(max_size=30), st.integers(min_value=0, max_value=10))
def test_whatever_another_service_says_becomes_an_end_of_the_closed_lists(
    word: str, length: int
) -> None:
    for ending in (
        of_completed(word, length=length),
        of_interrupted(word, length=length),
        of_failed(word),
        of_deadline(length=length),
        of_cancel(word),
    ):
        assert ending.state in TERMINAL
        if length == 0:
            assert ending.state is not TurnState.PARTIAL


def queue_of(size: int, cancelled: frozenset[int] = frozenset()) -> list[OpenTurn]:
    return [
        OpenTurn(UUID(int=100 + n), n, has_started=n == 0, is_cancelled=n in cancelled)
        for n in range(size)
    ]


def facts_of(queue: list[OpenTurn]) -> dict[tuple[UUID, UUID], TurnFacts]:
    return {
        (TENANT, waiting.turn_id): TurnFacts(
            tenant_id=TENANT,
            id=waiting.turn_id,
            conversation_id=CONVERSATION,
            branch_id=CONVERSATION,
            state=TurnState.PENDING,
            seq=waiting.position * 2 + 1,
            queued_at_position=waiting.position,
        )
        for waiting in queue
    }


@given(st.integers(min_value=2, max_value=6), st.data())
def test_a_cancelled_turn_is_never_started_and_holds_its_place_until_it_ends(
    size: int, data: st.DataObject
) -> None:
    cancelled = data.draw(st.frozensets(st.integers(1, size - 1), min_size=1))
    queue = queue_of(size, cancelled)
    ending = data.draw(st.frozensets(st.integers(0, size - 1)))
    signals = [
        Signal(UUID(int=1000 + n), (TENANT, queue[n].turn_id), Ending(TurnState.CANCELLED, "user"))
        for n in sorted(ending)
    ]

    settlement = settle(signals, turns=facts_of(queue), queues={BRANCH: queue})

    left = [turn for place, turn in enumerate(queue) if place not in ending]
    started = [start.turn_id for start in settlement.started]
    if left and not left[0].has_started and not left[0].is_cancelled:
        assert started == [left[0].turn_id]
    else:
        assert started == []


@given(endings)
def test_an_end_that_means_a_waiting_turn_passes_by_one_that_runs(ending: Ending) -> None:
    queue = queue_of(2)
    signals = [
        Signal(UUID(int=1000 + n), (TENANT, turn.turn_id), ending, is_for_waiting=True)
        for n, turn in enumerate(queue)
    ]

    settlement = settle(signals, turns=facts_of(queue), queues={BRANCH: queue})

    assert [end.turn.id for end in settlement.ended] == [queue[1].turn_id]


@given(st.integers(min_value=1, max_value=6), st.data())
def test_settling_ends_each_turn_once_and_keeps_the_queue_without_gaps(
    size: int, data: st.DataObject
) -> None:
    queue = queue_of(size)
    turns = facts_of(queue)
    drawn = data.draw(
        st.lists(st.tuples(st.sampled_from(sorted(turns)), st.one_of(st.none(), endings)))
    )
    signals = [Signal(UUID(int=1000 + n), key, end) for n, (key, end) in enumerate(drawn)]

    settlement = settle(signals, turns=turns, queues={BRANCH: queue})

    ended = {end.turn.id: end for end in settlement.ended}
    assert len(ended) == len(settlement.ended)
    for key in turns:
        first = next((s for s in signals if s.turn == key and s.ending is not None), None)
        assert (key[1] in ended) == (first is not None)
        if first is not None:
            assert ended[key[1]].signal is first
    assert not ended.keys() & {moved.turn.id for moved in settlement.moved}
    places = {waiting.turn_id: waiting.position for waiting in queue}
    places.update({advanced.turn_id: advanced.position for advanced in settlement.advanced})
    left = [places[waiting.turn_id] for waiting in queue if waiting.turn_id not in ended]
    assert left == list(range(len(left)))
    running = [w.turn_id for w in queue if w.has_started and w.turn_id not in ended]
    running += [started.turn_id for started in settlement.started]
    assert len(running) == (1 if left else 0)
    assert all(places[turn] == 0 for turn in running)
