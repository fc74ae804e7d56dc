"""What the gateway knows of a turn, and what it tells about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from libs.ids import message_id
from schemas.streams import (
    MESSAGE_STARTED_ID,
    TERMINAL_ATTEMPT,
    Entry,
    EntryId,
    TurnEnd,
    message_started,
    snapshot,
    terminal_entries,
)
from schemas.turns import TerminalStatus
from schemas.usage import Usage

TERMINAL = frozenset({"completed", "partial", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class TurnView:
    """One row of a turn, as far as a client may see it.

    Attributes:
        seq: Of the user message; the assistant's is one more.
        upto: Last entry that the stored answer covers; None where nothing was shown.
        length: Bytes of the answer in UTF-8, once it has ended.
        question_id: The message it answers; None where that is its own.
        branch_id: None of a turn in its conversation's main branch.
        queue_position: Open turns of its branch ahead of it; None once it has ended.
        cancel_reason: Why somebody wants it to stop.
        answer_deleted_at: Its text is gone from then on.
    """

    id: UUID
    tenant_id: UUID
    conversation_id: UUID
    principal_id: UUID
    status: str
    seq: int
    reason: str | None = None
    policy: str | None = None
    model: str | None = None
    length: int | None = None
    sha256: str | None = None
    upto: EntryId | None = None
    usage: Usage | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    options: Mapping[str, Any] | None = None
    kind: str = "message"
    question_id: UUID | None = None
    branch_id: UUID | None = None
    parent_turn_id: UUID | None = None
    queue_position: int | None = None
    cancel_reason: str | None = None
    answer_deleted_at: datetime | None = None

    @property
    def is_answer_deleted(self) -> bool:
        """Whether somebody deleted the answer, so that nothing may show it."""
        return self.answer_deleted_at is not None

    @property
    def stands_on(self) -> UUID:
        """Its branch; the main branch has the conversation's id."""
        return self.branch_id or self.conversation_id

    @property
    def stops_without_watchers(self) -> bool:
        """Whether the turn is cancelled some time after its last stream was closed."""
        return bool(self.options and self.options.get("cancel_after_s") is not None)

    @property
    def user_message_id(self) -> UUID:
        """The message that the turn answers."""
        return self.question_id or message_id(self.id, "user")

    @property
    def assistant_message_id(self) -> UUID:
        """The answer."""
        return message_id(self.id, "assistant")

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self.status in TERMINAL

    @property
    def stream_url(self) -> str:
        """Path of the turn's stream."""
        return f"/v1/turns/{self.id}/events"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The text of a running answer as stored; ``upto`` is the last entry it covers."""

    text: str
    upto: EntryId


def opening(turn: TurnView) -> Entry:
    """The first entry of the turn's stream, made from its row."""
    return message_started(turn_id=turn.id, message_id=turn.assistant_message_id, seq=turn.seq + 1)


def ending(turn: TurnView) -> tuple[Entry, ...]:
    """The last entries of an ended turn's stream, made from its row.

    Raises:
        ValueError: The turn has not ended.
    """
    if not turn.has_ended:
        msg = f"turn {turn.id} has not ended"
        raise ValueError(msg)
    end = TurnEnd(
        status=cast("TerminalStatus", turn.status),
        reason=turn.reason,
        length=turn.length or 0,
        sha256=turn.sha256,
        usage=turn.usage,
    )
    return terminal_entries(end)


def whole_answer(turn: TurnView, text: str, *, held: EntryId = MESSAGE_STARTED_ID) -> Entry:
    """The stored answer as the entry that replaces all text so far.

    Args:
        held: Last entry that the client has. Where more was shown than was stored, the snapshot
            takes its id, so that ids never go back and what was shown is not sent again.
    """
    return snapshot(max(turn.upto or MESSAGE_STARTED_ID, held), text)


def partial_answer(checkpoint: Checkpoint) -> Entry:
    """The stored text of a running answer as the entry that replaces all text so far."""
    return snapshot(checkpoint.upto, checkpoint.text)


def is_terminal_id(id_: EntryId) -> bool:
    """Whether an id belongs to the last entries of a stream."""
    return id_.attempt == TERMINAL_ATTEMPT


def replay(turn: TurnView, text: str) -> tuple[Entry, ...]:
    """Everything a client without a position gets of an ended turn."""
    return (whole_answer(turn, text), *ending(turn))


def rest_of_ending(turn: TurnView, last: EntryId) -> tuple[Entry, ...] | None:
    """What is left for a client that already has terminal entries; None if ``last`` is not one."""
    entries = ending(turn)
    if last not in {entry.id for entry in entries}:
        return None
    return tuple(entry for entry in entries if entry.id > last)


def accepted(turn: TurnView, request_id: UUID | str) -> dict[str, Any]:
    """The identity of a turn as answered to whoever asked for it."""
    return {
        "conversation_id": str(turn.conversation_id),
        "turn_id": str(turn.id),
        "user_message_id": str(turn.user_message_id),
        "assistant_message_id": str(turn.assistant_message_id),
        "seq": turn.seq,
        "status": turn.status,
        "kind": turn.kind,
        "branch_id": str(turn.stands_on),
        "queue_position": turn.queue_position,
        "stream_url": turn.stream_url,
        "request_id": str(request_id),
    }


def described(turn: TurnView) -> dict[str, Any]:
    """The record of a turn, without its text."""
    return {
        "id": str(turn.id),
        "object": "turn",
        "conversation_id": str(turn.conversation_id),
        "kind": turn.kind,
        "branch_id": str(turn.stands_on),
        "parent_turn_id": None if turn.parent_turn_id is None else str(turn.parent_turn_id),
        "user_message_id": str(turn.user_message_id),
        "assistant_message_id": str(turn.assistant_message_id),
        "seq": turn.seq,
        "status": turn.status,
        "reason": turn.reason,
        "queue_position": turn.queue_position,
        "cancel_requested": turn.cancel_reason is not None,
        "policy": turn.policy,
        "model": turn.model,
        "length": turn.length,
        "sha256": turn.sha256,
        "usage": None if turn.usage is None else turn.usage.model_dump(mode="json"),
        "created_at": _iso(turn.created_at),
        "started_at": _iso(turn.started_at),
        "deadline_at": _iso(turn.deadline_at),
        "ended_at": _iso(turn.ended_at),
        "stream_url": turn.stream_url,
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")
