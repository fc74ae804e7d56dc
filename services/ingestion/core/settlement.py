"""Which turns of a batch move or end, and which queued turns start because of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from services.ingestion.core.turn import Ending, Move, TurnState, after, is_terminal

TurnKey = tuple[UUID, UUID]
"""(tenant, turn)."""

BranchKey = tuple[UUID, UUID, UUID]
"""(tenant, conversation, branch)."""


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """A turn's row, read after its conversation was locked."""

    tenant_id: UUID
    id: UUID
    conversation_id: UUID
    branch_id: UUID
    state: TurnState
    seq: int
    queued_at_position: int


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A row of the queue of a branch; ``has_started`` if its deadline runs.

    Attributes:
        is_cancelled: Somebody wants it to stop: unstarted, it never starts.
    """

    turn_id: UUID
    position: int
    has_started: bool
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Signal:
    """An event that wants to move a turn.

    Attributes:
        turn: Its tenant and turn, as the event names them.
        ending: The end it proposes; None for progress.
        is_for_waiting: Means only a turn that has not started; of another it changes nothing.
    """

    event_id: UUID
    turn: TurnKey
    ending: Ending | None = None
    is_for_waiting: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A turn that ends now, and the signal that won."""

    turn: TurnFacts
    ending: Ending
    signal: Signal


@dataclass(frozen=True, slots=True)
class Moved:
    """A turn that goes on in another state."""

    turn: TurnFacts
    state: TurnState
    cause_id: UUID


@dataclass(frozen=True, slots=True)
class Advanced:
    """A waiting turn whose place in the queue changed."""

    turn_id: UUID
    before: int
    position: int


@dataclass(frozen=True, slots=True)
class Started:
    """A turn that heads its branch now; ``cause_id`` is the event that made room, if one did."""

    turn_id: UUID
    cause_id: UUID | None


@dataclass(frozen=True, slots=True)
class Settlement:
    """Everything a batch changes about turns; parts are disjoint writes of one transaction."""

    ended: tuple[Ended, ...]
    moved: tuple[Moved, ...]
    advanced: tuple[Advanced, ...]
    started: tuple[Started, ...]


def settle(
    signals: Iterable[Signal],
    *,
    turns: Mapping[TurnKey, TurnFacts],
    queues: Mapping[BranchKey, Sequence[OpenTurn]],
) -> Settlement:
    """Apply signals in order: the first end of a turn wins, all that comes later changes nothing.

    Args:
        turns: Every turn that a signal names.
        queues: The open turns of every branch that may change, in order of position.
    """
    states = {key: turn.state for key, turn in turns.items()}
    ended: dict[TurnKey, Ended] = {}
    moved: dict[TurnKey, Moved] = {}
    running = {turn.turn_id for queue in queues.values() for turn in queue if turn.has_started}
    for signal in signals:
        turn = turns[signal.turn]
        if signal.is_for_waiting and turn.id in running:
            continue
        move = Move.STEP_PLANNED if signal.ending is None else signal.ending.move
        state = after(states[signal.turn], move)
        if state is None:
            continue
        states[signal.turn] = state
        if signal.ending is not None and is_terminal(state):
            ended[signal.turn] = Ended(turn, signal.ending, signal)
            moved.pop(signal.turn, None)
        else:
            moved[signal.turn] = Moved(turn, state, signal.event_id)
    causes = {end.turn.id: end.signal.event_id for end in ended.values()}
    advanced, started = _queue_changes(queues, causes)
    return Settlement(tuple(ended.values()), tuple(moved.values()), advanced, started)


def _queue_changes(
    queues: Mapping[BranchKey, Sequence[OpenTurn]], causes: Mapping[UUID, UUID]
) -> tuple[tuple[Advanced, ...], tuple[Started, ...]]:
    """Close the gaps that ended turns leave; a head that has not started yet starts.

    A cancelled head stays where it is until its own end; what waits behind it starts then.
    """
    advanced: list[Advanced] = []
    started: list[Started] = []
    for queue in queues.values():
        left = [waiting for waiting in queue if waiting.turn_id not in causes]
        freed = [causes[gone.turn_id] for gone in queue if gone.turn_id in causes]
        for position, waiting in enumerate(left):
            if waiting.position != position:
                advanced.append(Advanced(waiting.turn_id, waiting.position, position))
            if position == 0 and not waiting.has_started and not waiting.is_cancelled:
                started.append(Started(waiting.turn_id, freed[0] if freed else None))
    return tuple(advanced), tuple(started)
