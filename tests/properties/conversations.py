"""Conversations in memory: what the rows would say between two decisions of ingestion.

A model of the statements, not of the decisions: it applies what was decided, and looks up what a
request is about.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from libs import ids
from services.ingestion.core.acceptance import decide
from services.ingestion.core.decisions import Acceptance, NewTurn
from services.ingestion.core.requests import Request
from services.ingestion.core.settlement import (
    OpenTurn,
    Settlement,
    Signal,
    TurnFacts,
    settle,
)
from services.ingestion.core.spots import Rules
from services.ingestion.core.standing import (
    ConversationKey,
    ConversationRow,
    Locked,
    MessageRow,
    OpenRow,
    Question,
    Role,
    Target,
    TurnRow,
)
from services.ingestion.core.turn import Ending, TurnState

TENANT = UUID(int=1)
RULES = Rules(queue_depth=2, can_continue=lambda model: model != "unable")
ANSWER_LENGTH = 7


@dataclass
class Message:
    """A row of a message."""

    turn_id: UUID
    role: Role
    conversation_id: UUID
    branch_id: UUID
    seq: int
    supersedes: UUID | None = None
    is_deleted: bool = False


@dataclass
class Open:
    """A row of an open turn."""

    row: OpenRow
    position: int
    has_started: bool


@dataclass
class Rows:
    """All conversations of one tenant."""

    conversations: dict[ConversationKey, ConversationRow] = field(default_factory=dict)
    lasts: dict[UUID, UUID | None] = field(default_factory=dict)
    turns: dict[UUID, NewTurn] = field(default_factory=dict)
    states: dict[UUID, TurnState] = field(default_factory=dict)
    messages: dict[UUID, Message] = field(default_factory=dict)
    open: dict[UUID, Open] = field(default_factory=dict)
    reasons: dict[UUID, str] = field(default_factory=dict)
    started: set[UUID] = field(default_factory=set)

    def copy(self) -> "Rows":
        """The same rows, to be changed apart."""
        return Rows(
            dict(self.conversations),
            dict(self.lasts),
            dict(self.turns),
            dict(self.states),
            {key: replace(message) for key, message in self.messages.items()},
            {key: replace(turn) for key, turn in self.open.items()},
            dict(self.reasons),
            set(self.started),
        )

    def decide(self, batch: Sequence[Request]) -> Acceptance:
        """Decide a batch and apply it."""
        acceptance = decide(batch, self._locked(batch), RULES)
        self._apply(acceptance)
        return acceptance

    def end(
        self, turns: Iterable[UUID], ending: Ending, *, is_for_waiting: bool = False
    ) -> Settlement:
        """Settle ends of open turns and apply them."""
        named = [turn for turn in turns if turn in self.turns]
        queues: dict[tuple[UUID, UUID, UUID], list[OpenTurn]] = {}
        for turn, row in sorted(self.open.items(), key=lambda item: item[1].position):
            branch = (TENANT, self.turns[turn].request.conversation_id, row.row.branch_id)
            waiting = OpenTurn(turn, row.position, row.has_started, row.row.is_cancelled)
            queues.setdefault(branch, []).append(waiting)
        settlement = settle(
            [
                Signal(ids.caused_id(turn, "end"), (TENANT, turn), ending, is_for_waiting)
                for turn in named
            ],
            turns={(TENANT, turn): self._facts(turn) for turn in named},
            queues=queues,
        )
        for end in settlement.ended:
            self.states[end.turn.id] = end.ending.state
            del self.open[end.turn.id]
        for advanced in settlement.advanced:
            self.open[advanced.turn_id].position = advanced.position
        for start in settlement.started:
            self.open[start.turn_id].has_started = True
            self.started.add(start.turn_id)
        return settlement

    def _facts(self, turn: UUID) -> TurnFacts:
        row = self.turns[turn]
        return TurnFacts(
            tenant_id=TENANT,
            id=turn,
            conversation_id=row.request.conversation_id,
            branch_id=row.branch_id,
            state=self.states[turn],
            seq=row.seq,
            queued_at_position=row.position,
        )

    # What a batch reads.

    def _locked(self, batch: Sequence[Request]) -> Locked:
        named = {(request.tenant_id, request.conversation_id) for request in batch}
        keys = {request.asked.key for request in batch if request.asked is not None}
        open_turns: dict[ConversationKey, list[OpenRow]] = {}
        in_order = sorted(self.open.values(), key=lambda one: (one.row.branch_id, one.position))
        for one in in_order:
            key = (TENANT, self.turns[one.row.turn_id].request.conversation_id)
            open_turns.setdefault(key, []).append(one.row)
        targets = {request.id: self._target(request) for request in batch}
        return Locked(
            conversations={key: row for key, row in self.conversations.items() if key in named},
            turns={
                ((TENANT, turn.request.conversation_id), turn.asked.key): TurnRow(
                    turn.turn_id, turn.request.fingerprint
                )
                for turn in self.turns.values()
                if turn.asked.key in keys and (TENANT, turn.request.conversation_id) in named
            },
            open_turns=open_turns,
            targets={key: target for key, target in targets.items() if target is not None},
        )

    def _target(self, request: Request) -> Target | None:
        message = None if request.message_id is None else self.messages.get(request.message_id)
        if message is not None and message.conversation_id != request.conversation_id:
            message = None
        parent = None if request.asked is None else request.asked.parent
        turn_id = request.turn_id or parent or (None if message is None else message.turn_id)
        turn = None if turn_id is None else self.turns.get(turn_id)
        if turn is None or turn.request.conversation_id != request.conversation_id:
            return None
        state = self.states[turn.turn_id]
        question = self.messages[turn.user_message_id]
        has_text = state in (TurnState.COMPLETED, TurnState.PARTIAL)
        return Target(
            turn_id=turn.turn_id,
            kind=turn.kind,
            state=state,
            branch_id=turn.branch_id,
            parent_turn_id=turn.parent_turn_id,
            seq=turn.seq,
            model=turn.model,
            length=ANSWER_LENGTH if has_text else 0,
            answer_id=turn.answer_id,
            is_answer_deleted=self.messages[turn.answer_id].is_deleted,
            question=Question(
                turn.user_message_id,
                question.branch_id,
                question.seq,
                self.turns[question.turn_id].parent_turn_id,
                question.is_deleted,
            ),
            continues=turn.continues,
            is_broken=any(self.messages[link].is_deleted for link in turn.continues),
            branch_last_turn_id=self.lasts[turn.branch_id],
            message=None if message is None else self._named(request.message_id, message),
        )

    def _named(self, message_id: UUID | None, message: Message) -> MessageRow:
        if message_id is None:
            msg = "a message that is named has an id"
            raise AssertionError(msg)
        used_by = [
            turn
            for turn in self.open
            if message_id in (self.turns[turn].user_message_id, *self.turns[turn].continues)
        ]
        return MessageRow(
            message_id,
            message.role,
            message.branch_id,
            message.seq,
            message.is_deleted,
            used_by[0] if used_by else None,
        )

    # What a batch writes, in the order of the statements.

    def _apply(self, acceptance: Acceptance) -> None:
        for new in acceptance.conversations:
            conversation = new.request.conversation_id
            self.conversations[TENANT, conversation] = ConversationRow(
                principal_id=new.request.principal_id,
                policy=new.policy,
                model=new.request.model,
                fingerprint=new.request.fingerprint,
                next_seq=1,
                last_turn_id=None,
                branch_id=conversation,
            )
            self.lasts[conversation] = None
        for fork in acceptance.forks:
            self.lasts[fork.branch_id] = fork.turn_id
        for left in acceptance.leavings:
            self.lasts[left.branch_id] = left.last_turn_id
        for turn in acceptance.turns:
            self._add(turn)
        for tally in acceptance.tallies:
            key = (tally.tenant_id, tally.conversation_id)
            self.conversations[key] = replace(
                self.conversations[key], next_seq=tally.next_seq, last_turn_id=tally.last_turn_id
            )
        for mark in acceptance.marks:
            one = self.open[mark.turn_id]
            one.row = replace(one.row, is_cancelled=True)
            self.reasons.setdefault(mark.turn_id, mark.reason)
        for deletion in acceptance.deletions:
            self.messages[deletion.message_id].is_deleted = True
        for change in acceptance.changes:
            key = (change.tenant_id, change.conversation_id)
            row = self.conversations[key]
            is_deleted = row.is_deleted if change.deletion is None else change.deletion == "delete"
            self.conversations[key] = replace(
                row,
                policy=change.policy or row.policy,
                branch_id=change.branch_id or row.branch_id,
                branch_count=row.branch_count + change.forks,
                is_deleted=is_deleted,
                is_restorable=is_deleted,
            )

    def _add(self, turn: NewTurn) -> None:
        conversation = turn.request.conversation_id
        self.turns[turn.turn_id] = turn
        self.states[turn.turn_id] = TurnState.PENDING
        place = (conversation, turn.branch_id)
        if turn.request.message is not None:
            self.messages[turn.user_message_id] = Message(
                turn.turn_id, "user", *place, turn.seq, turn.supersedes
            )
        self.messages[turn.answer_id] = Message(turn.turn_id, "assistant", *place, turn.seq + 1)
        self.open[turn.turn_id] = Open(turn.as_open(), turn.position, turn.position == 0)
        if turn.position == 0:
            self.started.add(turn.turn_id)
