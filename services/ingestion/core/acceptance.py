"""Accepts, repeats or refuses a batch of requests, given the locked rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from schemas.requests import Policy
from services.ingestion.core.policy import MAX_OPEN_TURNS, Starts, Waits, place
from services.ingestion.core.requests import Problem, Request, UserMessage

DEFAULT_POLICY: Policy = "serialize"

Outcome = Literal["accepted", "replayed", "conflict", "rejected", "not_found"]

ConversationKey = tuple[UUID, UUID]
"""(tenant, conversation)."""


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """What the decision needs of a locked conversation."""

    principal_id: UUID
    policy: Policy
    model: str | None
    fingerprint: str
    next_seq: int
    last_turn_id: UUID | None


@dataclass(frozen=True, slots=True)
class TurnRow:
    """A turn that a key already names."""

    id: UUID
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Locked:
    """Rows read after the conversations were locked.

    Attributes:
        turns: By conversation and idempotency key.
        open_turns: By conversation, in the order of the queue; the first one runs.
    """

    conversations: Mapping[ConversationKey, ConversationRow]
    turns: Mapping[tuple[ConversationKey, str], TurnRow]
    open_turns: Mapping[ConversationKey, Sequence[UUID]]


@dataclass(frozen=True, slots=True)
class NewTurn:
    """An accepted turn; the user message has ``seq``, the assistant placeholder ``seq + 1``.

    Attributes:
        position: 0 starts now, else its place in the queue.
    """

    request: Request
    message: UserMessage
    branch_id: UUID
    parent_turn_id: UUID | None
    policy: Policy
    model: str | None
    seq: int
    position: int


@dataclass(frozen=True, slots=True)
class NewConversation:
    """A conversation to create."""

    request: Request
    policy: Policy


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one request.

    Attributes:
        turn_id: Of the accepted or repeated turn; None without a message and for refusals.
        holds_conversation: Whether the conversation may be shown to who asked.
    """

    request: Request
    outcome: Outcome
    turn_id: UUID | None = None
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """Where a conversation's numbers stand after the batch."""

    tenant_id: UUID
    conversation_id: UUID
    next_seq: int
    last_turn_id: UUID


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Everything the batch changes; each part is in the order of the requests."""

    decisions: tuple[Decision, ...]
    conversations: tuple[NewConversation, ...]
    turns: tuple[NewTurn, ...]
    tallies: tuple[Tally, ...]


@dataclass(slots=True)
class _Standing:
    """One conversation while the batch is decided."""

    row: ConversationRow
    next_seq: int
    last_turn_id: UUID | None
    open_turns: list[UUID]
    turns: dict[str, TurnRow] = field(default_factory=dict)


def decide(requests: Iterable[Request], locked: Locked) -> Acceptance:
    """Decide a batch in order; a later request sees what an earlier one of the batch changed.

    The rows must have been read after their conversations were locked, or two batches could take
    the same seq. Creating twice and posting twice are repeats; a key with another body is a
    conflict; an unknown and somebody else's conversation look the same.
    """
    batch = _Batch(locked)
    decisions = tuple(batch.decide(request) for request in requests)
    tallies = tuple(
        Tally(key[0], key[1], standing.next_seq, standing.last_turn_id)
        for key, standing in batch.standings.items()
        if standing.last_turn_id is not None and standing.next_seq != standing.row.next_seq
    )
    return Acceptance(decisions, tuple(batch.conversations), tuple(batch.turns), tallies)


class _Batch:
    def __init__(self, locked: Locked) -> None:
        self.conversations: list[NewConversation] = []
        self.turns: list[NewTurn] = []
        self.standings: dict[ConversationKey, _Standing] = {
            key: _Standing(
                row, row.next_seq, row.last_turn_id, list(locked.open_turns.get(key, ()))
            )
            for key, row in locked.conversations.items()
        }
        for (conversation, key), turn in locked.turns.items():
            self.standings[conversation].turns[key] = turn

    def decide(self, request: Request) -> Decision:
        key = (request.tenant_id, request.conversation_id)
        standing = self.standings.get(key)
        if standing is not None and standing.row.principal_id != request.principal_id:
            return _not_found(request)
        if request.creates:
            return self._create(request, standing)
        if standing is None:
            return _not_found(request)
        return self._post(request, standing)

    def _create(self, request: Request, standing: _Standing | None) -> Decision:
        turn_id = None if request.message is None else request.message.turn_id
        if standing is not None:
            if standing.row.fingerprint != request.fingerprint:
                return _conflict(request)
            return Decision(request, "replayed", turn_id)
        if request.fault is not None:
            return Decision(request, "rejected", problem=request.fault)
        policy = request.policy or DEFAULT_POLICY
        row = ConversationRow(
            request.principal_id, policy, request.model, request.fingerprint, 1, None
        )
        standing = _Standing(row, 1, None, [])
        self.standings[request.tenant_id, request.conversation_id] = standing
        self.conversations.append(NewConversation(request, policy))
        if request.message is None:
            return Decision(request, "accepted")
        return self._accept(request, request.message, standing)

    def _post(self, request: Request, standing: _Standing) -> Decision:
        message = request.message
        if message is None:  # read_request gives every turn.requested a message
            return Decision(request, "rejected", problem=request.fault)
        known = standing.turns.get(message.key)
        if known is not None:
            if known.fingerprint != request.fingerprint:
                return _conflict(request)
            return Decision(request, "replayed", known.id)
        problem = request.fault or _obstacle(message, standing)
        if problem is not None:
            return Decision(request, "rejected", problem=problem)
        return self._accept(request, message, standing)

    def _accept(self, request: Request, message: UserMessage, standing: _Standing) -> Decision:
        policy = request.policy or standing.row.policy
        match place(policy, standing.open_turns):
            case Starts():
                position = 0
            case Waits(behind):
                position = behind
            case _:
                detail = f"policy {policy} is not available in this release; use serialize"
                return Decision(request, "rejected", problem=Problem("validation-error", detail))
        self.turns.append(
            NewTurn(
                request=request,
                message=message,
                branch_id=request.conversation_id,  # the main branch has the conversation's id
                parent_turn_id=standing.last_turn_id,
                policy=policy,
                model=request.model or standing.row.model,
                seq=standing.next_seq,
                position=position,
            )
        )
        standing.next_seq += 2
        standing.last_turn_id = message.turn_id
        standing.open_turns.append(message.turn_id)
        standing.turns[message.key] = TurnRow(message.turn_id, request.fingerprint)
        return Decision(request, "accepted", message.turn_id)


def _obstacle(message: UserMessage, standing: _Standing) -> Problem | None:
    if message.parent is not None and message.parent != standing.last_turn_id:
        return Problem(
            "stale-parent",
            "the conversation has moved on since that turn; read it again",
            standing.last_turn_id,
        )
    if len(standing.open_turns) >= MAX_OPEN_TURNS:
        return Problem(
            "quota-exceeded",
            f"{MAX_OPEN_TURNS} turns of this conversation are open; wait for one to end",
        )
    return None


def _not_found(request: Request) -> Decision:
    return Decision(
        request, "not_found", problem=Problem("not-found", "there is no such conversation")
    )


def _conflict(request: Request) -> Decision:
    detail = "this idempotency key was used for another request; make a new key"
    return Decision(request, "conflict", problem=Problem("idempotency-key-reused", detail))
