"""What a client that watches a conversation is told: its state, then what began and ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from services.frontend_gateway.core.turns import TERMINAL


@dataclass(frozen=True, slots=True)
class TurnActivity:
    """One turn as its rows show it.

    Attributes:
        queue_position: Open turns of its branch ahead of it; None once it has ended.
    """

    turn_id: UUID
    branch_id: UUID
    kind: str
    status: str
    reason: str | None
    seq: int
    queue_position: int | None

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True)
class ConversationActivity:
    """The newest turns of a conversation, newest first."""

    is_deleted: bool
    turns: Sequence[TurnActivity]


GONE = ConversationActivity(is_deleted=True, turns=())


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that a watching client is told."""

    event: str
    data: Mapping[str, Any]

    @property
    def frame(self) -> bytes:
        """As an event of a stream, without an id: a client that returns is told the state anew."""
        return b"event: %s\ndata: %s\n\n" % (self.event.encode(), orjson.dumps(self.data))


class Watching:
    """What one client was told of one conversation.

    Attributes:
        is_over: The conversation is gone; nothing follows.
    """

    def __init__(self) -> None:
        self._known: dict[UUID, bool] = {}
        self.is_over = False

    def begin(self, branch_id: UUID, now: ConversationActivity) -> Notice:
        """The state that everything after it builds on."""
        self._known = {turn.turn_id: turn.has_ended for turn in now.turns}
        opened = [_opened(turn) for turn in reversed(now.turns) if not turn.has_ended]
        last = next((str(turn.turn_id) for turn in now.turns), None)
        told = {"branch_id": str(branch_id), "open": opened, "last_turn_id": last}
        return Notice("state", told)

    def changes(self, now: ConversationActivity) -> list[Notice]:
        """What happened since the last call, oldest turn first."""
        if now.is_deleted:
            self.is_over = True
            return [Notice("conversation_deleted", {})]
        told: list[Notice] = []
        for turn in reversed(now.turns):
            has_ended = self._known.get(turn.turn_id)
            if has_ended is None:
                told.append(Notice("turn_began", {**_opened(turn), "kind": turn.kind}))
            if turn.has_ended and not has_ended:
                told.append(Notice("turn_ended", _ended(turn)))
        shown = {turn.turn_id: turn.has_ended for turn in now.turns}
        # What no look shows any more is forgotten, unless its end may still be to tell.
        running = {id_: False for id_, has_ended in self._known.items() if not has_ended}
        self._known = running | shown
        return told


def _opened(turn: TurnActivity) -> dict[str, Any]:
    return {
        "turn_id": str(turn.turn_id),
        "branch_id": str(turn.branch_id),
        "status": turn.status,
        "queue_position": turn.queue_position,
    }


def _ended(turn: TurnActivity) -> dict[str, Any]:
    return {
        "turn_id": str(turn.turn_id),
        "branch_id": str(turn.branch_id),
        "status": turn.status,
        "reason": turn.reason,
    }
