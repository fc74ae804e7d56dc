"""The state machine of a turn: one table, and the closed reasons of its ends."""

from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from schemas.turns import TerminalStatus


class TurnState(StrEnum):
    """Where a turn stands; a queued turn is ``pending`` with a position above 0."""

    PENDING = "pending"
    GENERATING = "generating"
    WAITING_FOR_TOOL = "waiting_for_tool"
    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Move(StrEnum):
    """What can happen to a turn."""

    STEP_PLANNED = "step.planned"
    TOOLS_CALLED = "generation.tool_calls"
    COMPLETE = "complete"
    CUT = "cut"
    FAIL = "fail"
    CANCEL = "cancel"


ENDINGS: dict[Move, TurnState] = {
    Move.COMPLETE: TurnState.COMPLETED,
    Move.CUT: TurnState.PARTIAL,
    Move.FAIL: TurnState.FAILED,
    Move.CANCEL: TurnState.CANCELLED,
}

# state -> {move: next state}. A missing pair is a repeat or arrives late, and changes nothing.
TRANSITIONS: dict[TurnState, dict[Move, TurnState]] = {
    TurnState.PENDING: {
        Move.STEP_PLANNED: TurnState.GENERATING,
        Move.TOOLS_CALLED: TurnState.WAITING_FOR_TOOL,  # its step.planned is still on the way
        **ENDINGS,
    },
    TurnState.GENERATING: {Move.TOOLS_CALLED: TurnState.WAITING_FOR_TOOL, **ENDINGS},
    TurnState.WAITING_FOR_TOOL: {Move.STEP_PLANNED: TurnState.GENERATING, **ENDINGS},
    TurnState.COMPLETED: {},
    TurnState.PARTIAL: {},
    TurnState.FAILED: {},
    TurnState.CANCELLED: {},
}

TERMINAL = frozenset(ENDINGS.values())

# Why a turn ended so; closed, because clients, metrics and operators rely on the names.
REASONS: dict[TurnState, frozenset[str]] = {
    TurnState.COMPLETED: frozenset(),
    TurnState.PARTIAL: frozenset(
        {
            "provider_cut",
            "lease_expired",
            "max_tokens",
            "content_filter",
            "deadline",
            "step_deadline",
            "idle_timeout",
        }
    ),
    TurnState.CANCELLED: frozenset({"user", "no_subscriber", "replaced", "conversation_deleted"}),
    TurnState.FAILED: frozenset(
        {
            "context_too_large",
            "invariant",
            "provider_refused",
            "provider_unavailable",
            "deadline",
            "step_deadline",
            "idle_timeout",
            "queue_timeout",
            "dead_lettered",
            "internal",
        }
    ),
}


@dataclass(frozen=True, slots=True)
class Ending:
    """A terminal state and its reason, checked against the closed lists.

    Raises:
        ValueError: The state is not terminal, or the reason is not one of that state.
    """

    state: TurnState
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.state not in TERMINAL:
            msg = f"{self.state} does not end a turn"
            raise ValueError(msg)
        allowed = REASONS[self.state]
        if (self.reason is not None or allowed) and self.reason not in allowed:
            msg = f"{self.reason} is no reason for {self.state}"
            raise ValueError(msg)

    @property
    def status(self) -> TerminalStatus:
        """The state under the name it has in events and stream entries."""
        return cast("TerminalStatus", self.state.value)

    @property
    def move(self) -> Move:
        """The move that leads to this end."""
        return next(move for move, state in ENDINGS.items() if state is self.state)


def is_terminal(state: TurnState) -> bool:
    """Whether a turn in this state has ended for good."""
    return state in TERMINAL


def after(state: TurnState, move: Move) -> TurnState | None:
    """The next state, or None where the move changes nothing: a repeat, or too late."""
    return TRANSITIONS[state].get(move)
