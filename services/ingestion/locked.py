"""Reads what a batch of requests is decided on; the conversations are locked by then."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from libs.postgres import Row, Statement
from services.ingestion.core.requests import Request
from services.ingestion.core.standing import (
    ConversationKey,
    ConversationRow,
    Locked,
    MessageRow,
    OpenRow,
    Question,
    Target,
    TurnRow,
)
from services.ingestion.core.turn import TurnState
from services.ingestion.statements import SQL, columns


@dataclass(frozen=True, slots=True)
class LockedReads:
    """The reads of one batch: two of them always, the others where a request needs them."""

    statements: tuple[Statement, ...]
    has_targets: bool
    has_creations: bool

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "LockedReads":
        """The reads that these requests need."""
        keyed = [
            (request.tenant_id, request.conversation_id, request.asked.key)
            for request in requests
            if request.asked is not None
        ]
        conversations = sorted({request.conversation_id for request in requests})
        statements: list[Statement] = [
            (SQL["turns_by_key"], columns(keyed, "tenants", "conversations", "keys")),
            (SQL["open_turns_of"], {"conversations": conversations}),
        ]
        about = [row for request in requests if (row := _about(request)) is not None]
        if about:
            names = ("requests", "tenants", "conversations", "turns", "messages")
            statements.append((SQL["targets"], columns(about, *names)))
        creations = [(r.tenant_id, r.conversation_id) for r in requests if r.creates]
        if creations:
            statements.append(purged_statement(creations))
        return cls(tuple(statements), bool(about), bool(creations))

    def locked(self, conversations: Sequence[Row], rows: Sequence[Sequence[Row]]) -> Locked:
        """What the acceptance is decided on.

        Args:
            conversations: The locked rows.
            rows: What each of the statements returned, in their order.
        """
        turns, open_turns, *others = rows
        targets = others.pop(0) if self.has_targets else ()
        purged = others.pop(0) if self.has_creations else ()
        queues: dict[ConversationKey, list[OpenRow]] = {}
        for row in open_turns:
            key = (row["tenant_id"], row["conversation_id"])
            queues.setdefault(key, []).append(_open_row(row))
        return Locked(
            conversations={
                (row["tenant_id"], row["id"]): _conversation(row) for row in conversations
            },
            turns={
                ((row["tenant_id"], row["conversation_id"]), row["key"]): TurnRow(
                    row["id"], row["fingerprint"]
                )
                for row in turns
            },
            open_turns=queues,
            targets={row["request_id"]: _target(row) for row in targets},
            purged=purged_keys(purged),
        )


def purged_statement(conversations: Sequence[ConversationKey]) -> Statement:
    """Those of the conversations whose rows are gone for good."""
    return SQL["purged"], columns(sorted(set(conversations)), "tenants", "conversations")


def purged_keys(rows: Sequence[Row]) -> frozenset[ConversationKey]:
    """What ``purged_statement`` found."""
    return frozenset((row["tenant_id"], row["conversation_id"]) for row in rows)


def _about(request: Request) -> tuple[UUID, UUID, UUID, UUID | None, UUID | None] | None:
    """What a request is about, as a row of the statement that looks it up."""
    parent = None if request.asked is None else request.asked.parent
    turn = request.turn_id or parent
    if turn is None and request.message_id is None:
        return None
    return request.id, request.tenant_id, request.conversation_id, turn, request.message_id


def _conversation(row: Row) -> ConversationRow:
    return ConversationRow(
        principal_id=row["principal_id"],
        policy=row["policy"],
        model=row["model"],
        fingerprint=row["fingerprint"],
        next_seq=row["next_seq"],
        last_turn_id=row["last_turn_id"],
        branch_id=row["branch_id"],
        branch_count=row["branch_count"],
        is_deleted=row["is_deleted"],
        is_restorable=row["is_restorable"],
    )


def _open_row(row: Row) -> OpenRow:
    return OpenRow(
        turn_id=row["turn_id"],
        branch_id=row["branch_id"],
        sibling_seq=row["base_seq"],
        parent_turn_id=row["parent_turn_id"],
        is_cancelled=row["is_cancelled"],
    )


def _target(row: Row) -> Target:
    question = message = None
    if row["question_seq"] is not None:
        question = Question(
            id=row["user_message_id"],
            branch_id=row["question_branch_id"],
            seq=row["question_seq"],
            parent_turn_id=row["question_parent_id"],
            is_deleted=row["is_question_deleted"],
        )
    if row["message_id"] is not None:
        message = MessageRow(
            id=row["message_id"],
            role=row["message_role"],
            branch_id=row["message_branch_id"],
            seq=row["message_seq"],
            is_deleted=row["is_message_deleted"],
            used_by=row["message_used_by"],
        )
    return Target(
        turn_id=row["turn_id"],
        kind=row["kind"],
        state=TurnState(row["status"]),
        branch_id=row["branch_id"],
        parent_turn_id=row["parent_turn_id"],
        seq=row["seq"],
        model=row["model"],
        length=row["length"],
        answer_id=row["assistant_message_id"],
        is_answer_deleted=row["is_answer_deleted"],
        question=question,
        continues=tuple(row["continues"] or ()),
        is_broken=row["is_broken"],
        branch_last_turn_id=row["branch_last_turn_id"],
        message=message,
    )
