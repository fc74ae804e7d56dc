"""The twin of the store: the same answers from plain dictionaries, for tests and simulations."""

import asyncio
import unicodedata
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from libs.errors import StoreUnavailable
from services.frontend_gateway.core.activity import ConversationActivity, TurnActivity
from services.frontend_gateway.core.cursors import Page, cursor_invalid
from services.frontend_gateway.core.evidence import Branches, BranchView, MessageFacts, Place
from services.frontend_gateway.core.left_out import HistoryFacts
from services.frontend_gateway.core.problems import not_found
from services.frontend_gateway.core.timeline import AttemptView, StepView, Transition
from services.frontend_gateway.core.turns import Checkpoint, TurnView
from services.frontend_gateway.ports import (
    Asked,
    Caller,
    CaptureView,
    ConversationView,
    Facts,
    HistoryEnd,
    InstructionName,
    InstructionView,
    MessageView,
    Outcome,
    PlanView,
    Reader,
)

NEWEST_TURNS = 32  # as the published read of ingestion

R = TypeVar("R", ConversationView, MessageView)


def _wall_clock() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class _Session:
    key_id: UUID
    lifetime_s: int
    opened_at: datetime


@dataclass(slots=True)
class MemoryStore:
    """Holds what a test puts into it.

    Attributes:
        is_away: Refuse everything, as a lost database does.
        asked: How often outcomes and facts were asked for, and for how many at once.
    """

    keys: dict[bytes, Caller] = field(default_factory=dict)
    sessions: dict[bytes, _Session] = field(default_factory=dict)
    outcome_rows: dict[UUID, Outcome] = field(default_factory=dict)
    conversation_rows: dict[UUID, tuple[UUID, UUID, ConversationView]] = field(default_factory=dict)
    message_rows: dict[UUID, list[MessageView]] = field(default_factory=dict)
    turn_rows: dict[UUID, TurnView] = field(default_factory=dict)
    texts: dict[UUID, str] = field(default_factory=dict)
    checkpoint_rows: dict[UUID, Checkpoint] = field(default_factory=dict)
    plan_rows: dict[UUID, list[PlanView]] = field(default_factory=dict)
    transition_rows: dict[UUID, list[Transition]] = field(default_factory=dict)
    step_rows: dict[UUID, list[StepView]] = field(default_factory=dict)
    attempt_rows: dict[UUID, list[AttemptView]] = field(default_factory=dict)
    token_rows: dict[tuple[UUID, str], int] = field(default_factory=dict)
    branch_rows: dict[UUID, list[BranchView]] = field(default_factory=dict)
    deleted_conversations: set[UUID] = field(default_factory=set)
    deleted_messages: set[UUID] = field(default_factory=set)
    instruction_rows: list[InstructionView] = field(default_factory=list)
    instruction_locks: dict[UUID, asyncio.Lock] = field(
        default_factory=lambda: defaultdict(asyncio.Lock)
    )
    postures: dict[UUID, tuple[str, int]] = field(default_factory=dict)
    flags: set[tuple[UUID, UUID]] = field(default_factory=set)
    capture_rows: dict[UUID, list[CaptureView]] = field(default_factory=dict)
    capture_reads: list[tuple[UUID, UUID, Reader, bool]] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    is_away: bool = False
    now: Callable[[], datetime] = _wall_clock

    def _check(self) -> None:
        if self.is_away:
            msg = "the store in memory is away"
            raise StoreUnavailable(msg)

    async def caller_of_key(self, key_hash: bytes) -> Caller | None:
        """See ``Rights``."""
        self._check()
        return self.keys.get(key_hash)

    async def caller_of_session(self, token_hash: bytes) -> Caller | None:
        """See ``Rights``."""
        self._check()
        session = self.sessions.get(token_hash)
        if session is None:
            return None
        age_s = (self.now() - session.opened_at).total_seconds()
        by_id = {caller.key_id: caller for caller in self.keys.values()}
        return by_id.get(session.key_id) if age_s < session.lifetime_s else None

    async def open_session(self, token_hash: bytes, key_id: UUID, *, lifetime_s: int) -> None:
        """See ``Rights``."""
        self._check()
        self.sessions.setdefault(token_hash, _Session(key_id, lifetime_s, self.now()))

    async def close_session(self, token_hash: bytes) -> None:
        """See ``Rights``."""
        self._check()
        self.sessions.pop(token_hash, None)

    async def purge_sessions(self) -> int:
        """See ``Rights``."""
        self._check()
        ended = [
            hash_
            for hash_, session in self.sessions.items()
            if (self.now() - session.opened_at).total_seconds() >= session.lifetime_s
        ]
        for hash_ in ended:
            del self.sessions[hash_]
        return len(ended)

    async def outcomes(self, asked: Sequence[Asked]) -> Sequence[Outcome]:
        """See ``Outcomes``."""
        self._check()
        self.asked.append(("outcomes", len(asked)))
        wanted = [one.request_id for one in asked]
        return [self.outcome_rows[id_] for id_ in wanted if id_ in self.outcome_rows]

    async def conversation(
        self, tenant: UUID, principal: UUID, conversation: UUID
    ) -> ConversationView | None:
        """See ``Reads``."""
        self._check()
        found = self.conversation_rows.get(conversation)
        if found is None or conversation in self.deleted_conversations:
            return None
        return found[2] if found[:2] == (tenant, principal) else None

    async def conversations(
        self, tenant: UUID, principal: UUID, page: Page, query: str | None = None
    ) -> Sequence[ConversationView]:
        """See ``Reads``."""
        self._check()
        mine = [
            row
            for *owner, row in self.conversation_rows.values()
            if owner == [tenant, principal]
            and row.id not in self.deleted_conversations
            and (query is None or _folded(query) in _folded(row.title or ""))
        ]
        mine.sort(key=lambda row: (row.created_at, row.id), reverse=page.descending)
        return _page(mine, page)

    async def messages(
        self,
        tenant: UUID,
        principal: UUID,
        conversation: UUID,
        page: Page,
        branch: UUID | None = None,
    ) -> Sequence[MessageView]:
        """See ``Reads``."""
        view = await self.conversation(tenant, principal, conversation)
        if view is None:
            return []
        known = await self.branches(tenant, principal, conversation)
        wanted = branch or view.continues_on
        if wanted not in {one.id for one in known}:
            raise not_found()
        path = Branches(known)
        rows = sorted(
            (
                row
                for row in self.message_rows.get(conversation, ())
                if row.id not in self.deleted_messages
                and path.shows(wanted, of=row.branch_id or conversation, seq=row.seq)
            ),
            key=lambda row: row.seq,
            reverse=page.descending,
        )
        return _page(rows, page)

    async def branches(
        self, tenant: UUID, principal: UUID, conversation: UUID
    ) -> Sequence[BranchView]:
        """See ``Reads``; the main branch need not be put in."""
        view = await self.conversation(tenant, principal, conversation)
        if view is None:
            return []
        ends = self._ends_of(conversation)
        main = BranchView(
            id=conversation,
            kind="main",
            parent_branch_id=None,
            fork_seq=None,
            is_active=view.continues_on == conversation,
            first_turn_id=ends.get(conversation, (None, None))[0],
            last_turn_id=ends.get(conversation, (None, None))[1],
            created_at=view.created_at,
        )
        return [main, *self.branch_rows.get(conversation, ())]

    def _ends_of(self, conversation: UUID) -> Mapping[UUID, tuple[UUID, UUID]]:
        """First and last turn of each branch."""
        found: dict[UUID, tuple[UUID, UUID]] = {}
        for turn in sorted(self.turn_rows.values(), key=lambda row: row.seq):
            if turn.conversation_id == conversation:
                first = found.get(turn.stands_on, (turn.id, turn.id))[0]
                found[turn.stands_on] = (first, turn.id)
        return found

    async def turn(self, tenant: UUID, turn: UUID) -> TurnView | None:
        """See ``Reads``."""
        self._check()
        found = self.turn_rows.get(turn)
        if found is None or found.conversation_id in self.deleted_conversations:
            return None
        return found if found.tenant_id == tenant else None

    async def answer(self, tenant: UUID, turn: UUID) -> str | None:
        """See ``Reads``."""
        found = await self.turn(tenant, turn)
        if found is not None and found.is_answer_deleted:
            return None
        return "" if found is None else self.texts.get(turn, "")

    async def checkpoints(self, tenant: UUID, turns: Sequence[UUID]) -> Mapping[UUID, Checkpoint]:
        """See ``Reads``."""
        self._check()
        return {
            id_: self.checkpoint_rows[id_]
            for id_ in turns
            if id_ in self.checkpoint_rows and self.turn_rows[id_].tenant_id == tenant
        }

    async def plans(self, tenant: UUID, turn: UUID) -> Sequence[PlanView]:
        """See ``Reads``."""
        found = await self.turn(tenant, turn)
        return [] if found is None else self.plan_rows.get(turn, [])

    async def facts(self, watched: Sequence[tuple[UUID, UUID]]) -> Sequence[Facts]:
        """See ``Watched``."""
        self._check()
        self.asked.append(("facts", len(watched)))
        rows = [await self.turn(tenant, turn) for tenant, turn in watched]
        return [Facts(row, self.checkpoint_rows.get(row.id)) for row in rows if row is not None]

    async def activity(
        self, watched: Sequence[tuple[UUID, UUID]]
    ) -> Mapping[UUID, ConversationActivity]:
        """See ``Activities``."""
        self.asked.append(("activity", len(watched)))
        self._check()
        return {
            id_: ConversationActivity(
                is_deleted=id_ in self.deleted_conversations, turns=self._newest(id_)
            )
            for tenant, id_ in watched
            if id_ in self.conversation_rows and self.conversation_rows[id_][0] == tenant
        }

    def _newest(self, conversation: UUID) -> list[TurnActivity]:
        rows = [row for row in self.turn_rows.values() if row.conversation_id == conversation]
        rows.sort(key=lambda row: row.seq, reverse=True)
        return [
            TurnActivity(
                turn_id=row.id,
                branch_id=row.stands_on,
                kind=row.kind,
                status=row.status,
                reason=row.reason,
                seq=row.seq,
                queue_position=row.queue_position,
            )
            for row in rows[:NEWEST_TURNS]
        ]

    async def message_facts(
        self, tenant: UUID, messages: Sequence[UUID]
    ) -> Mapping[UUID, MessageFacts]:
        """See ``Proofs``."""
        self._check()
        instead = {
            row.supersedes: row.id
            for rows in self.message_rows.values()
            for row in sorted(rows, key=lambda row: row.seq)
            if row.supersedes is not None and row.id not in self.deleted_messages
        }
        return {
            row.id: MessageFacts(
                id=row.id,
                conversation_id=conversation,
                branch_id=row.branch_id or conversation,
                turn_id=row.turn_id,
                seq=row.seq,
                role=row.role,
                status=row.status,
                is_deleted=row.id in self.deleted_messages,
                superseded_by=instead.get(row.id),
            )
            for conversation, row in self._messages_of(tenant)
            if row.id in messages
        }

    def _messages_of(self, tenant: UUID) -> list[tuple[UUID, MessageView]]:
        return [
            (conversation, row)
            for conversation, rows in self.message_rows.items()
            if self.conversation_rows[conversation][0] == tenant
            for row in rows
        ]

    async def message_texts(self, tenant: UUID, messages: Sequence[UUID]) -> Mapping[UUID, str]:
        """See ``Proofs``."""
        self._check()
        return {
            row.id: row.content
            for _, row in self._messages_of(tenant)
            if row.id in messages and row.id not in self.deleted_messages
        }

    async def find_text(
        self, tenant: UUID, principal: UUID, conversation: UUID, needle: str
    ) -> Sequence[Place]:
        """See ``Proofs``."""
        if await self.conversation(tenant, principal, conversation) is None:
            return []
        found = [
            Place(row.id, row.seq, row.branch_id or conversation)
            for row in self.message_rows.get(conversation, ())
            if needle in row.content and row.id not in self.deleted_messages
        ]
        return sorted(found, key=lambda place: place.seq, reverse=True)

    async def transitions(self, tenant: UUID, turn: UUID) -> Sequence[Transition]:
        """See ``Stories``."""
        found = await self.turn(tenant, turn)
        return [] if found is None else self.transition_rows.get(turn, [])

    async def steps(self, tenant: UUID, turn: UUID) -> Sequence[StepView]:
        """See ``Stories``."""
        found = await self.turn(tenant, turn)
        return [] if found is None else self.step_rows.get(turn, [])

    async def attempts(self, tenant: UUID, steps: Sequence[UUID]) -> Sequence[AttemptView]:
        """See ``Stories``; put in by the id of the turn."""
        self._check()
        return [
            row
            for turn, rows in self.attempt_rows.items()
            if self.turn_rows[turn].tenant_id == tenant
            for row in rows
            if row.step_id in steps
        ]

    async def history_facts(
        self, tenant: UUID, end: HistoryEnd, tokenizer: str, max_rows: int
    ) -> Sequence[HistoryFacts]:
        """See ``Stories``."""
        found = [
            HistoryFacts(
                id=row.id,
                turn_id=row.turn_id,
                seq=row.seq,
                role=row.role,
                status=row.status,
                tokens=self.token_rows.get((row.id, tokenizer)),
                length=len(row.content.encode()),
                said_at=row.created_at,
            )
            for row in self._history(tenant, end)
        ]
        return found[:max_rows]

    async def history_count(self, tenant: UUID, end: HistoryEnd, max_count: int) -> int:
        """See ``Stories``."""
        return min(len(self._history(tenant, end)), max_count)

    async def excerpts(
        self, tenant: UUID, conversation: UUID, messages: Sequence[UUID], max_characters: int
    ) -> Mapping[UUID, str]:
        """See ``Stories``."""
        self._check()
        return {
            row.id: row.content[:max_characters]
            for of, row in self._messages_of(tenant)
            if of == conversation and row.id in messages and row.id not in self.deleted_messages
        }

    def _history(self, tenant: UUID, end: HistoryEnd) -> list[MessageView]:
        """What a plan may show below an end, newest first: said by somebody, and of ended turns."""
        self._check()
        conversation = end.conversation_id
        if self.conversation_rows[conversation][0] != tenant:
            return []
        view = self.conversation_rows[conversation][2]
        main = BranchView(
            id=conversation,
            kind="main",
            parent_branch_id=None,
            fork_seq=None,
            is_active=True,
            first_turn_id=None,
            last_turn_id=None,
            created_at=view.created_at,
        )
        path = Branches([main, *self.branch_rows.get(conversation, ())])
        rows = [
            row
            for row in self.message_rows.get(conversation, ())
            if row.seq < end.below_seq
            and path.shows(end.branch_id, of=row.branch_id or conversation, seq=row.seq)
            and row.id not in self.deleted_messages
            and (row.role == "user" or row.content)
            and self.turn_rows[row.turn_id].has_ended
        ]
        return sorted(rows, key=lambda row: row.seq, reverse=True)

    async def instructions(
        self, tenant: UUID, names: Sequence[InstructionName]
    ) -> Sequence[InstructionView]:
        """See ``Settings``; a scope belongs to the tenant that set it."""
        self._check()
        del tenant
        found: list[InstructionView] = []
        for scope, kind, version in names:
            rows = [
                row for row in self.instruction_rows if (row.scope_id, row.kind) == (scope, kind)
            ]
            wanted = [row for row in rows if version in (None, row.version)]
            found += wanted[-1:]
        return found

    @asynccontextmanager
    async def changing_instructions(self, tenant: UUID) -> AsyncIterator["_InstructionsChange"]:
        """See ``Settings``."""
        self._check()
        async with self.instruction_locks[tenant]:
            yield _InstructionsChange(self, tenant)

    async def set_capture_posture(
        self, tenant: UUID, posture: str, per_mille: int, *, actor: str
    ) -> None:
        """See ``Settings``."""
        self._check()
        del actor
        self.postures[tenant] = (posture, per_mille)
        if posture == "none":
            self.capture_rows = {
                turn: rows
                for turn, rows in self.capture_rows.items()
                if self.turn_rows[turn].tenant_id != tenant
            }

    async def flag_conversation(
        self, tenant: UUID, conversation: UUID, *, is_flagged: bool, actor: str
    ) -> None:
        """See ``Settings``."""
        self._check()
        del actor
        if is_flagged:
            self.flags.add((tenant, conversation))
        else:
            self.flags.discard((tenant, conversation))

    async def read_capture(
        self, tenant: UUID, turn: UUID, step: int | None, reader: Reader
    ) -> CaptureView | None:
        """See ``Settings``."""
        self._check()
        rows = [row for row in self.capture_rows.get(turn, ()) if step in (None, row.step_no)]
        self.capture_reads.append((tenant, turn, reader, bool(rows)))
        return max(rows, key=lambda row: row.step_no) if rows else None


@dataclass(frozen=True, slots=True)
class _InstructionsChange:
    """The twin of the transaction; its store's lock stands for the database's."""

    store: MemoryStore
    tenant: UUID

    async def instructions(self, names: Sequence[InstructionName]) -> Sequence[InstructionView]:
        """See ``InstructionsChange``."""
        return await self.store.instructions(self.tenant, names)

    async def longest(self, kind: str) -> Sequence[InstructionView]:
        """See ``InstructionsChange``."""
        found: list[InstructionView] = []
        for scope, (owner, *_) in self.store.conversation_rows.items():
            if owner == self.tenant:
                found += await self.instructions([(scope, kind, None)])
        return sorted(found, key=lambda row: len(row.text), reverse=True)

    async def set(self, wanted: Sequence[tuple[UUID, UUID, str, str]], *, actor: str) -> None:
        """See ``InstructionsChange``."""
        del actor
        for _, scope, kind, text in wanted:
            known = await self.instructions([(scope, kind, None)])
            if not known or known[0].text != text:
                version = known[0].version + 1 if known else 1
                row = InstructionView(scope, kind, version, text, self.store.now())
                self.store.instruction_rows.append(row)


def _folded(text: str) -> str:
    """A text as it is compared: without its case, and its letters in one encoding."""
    return unicodedata.normalize("NFKC", text).casefold()


def _page(rows: Sequence[R], page: Page) -> Sequence[R]:
    """Rows in the order of the list, around a cursor."""
    ids = [row.id for row in rows]
    cursor = page.after or page.before
    if cursor is not None and cursor not in ids:
        raise cursor_invalid("The cursor names nothing in this list.")
    if page.after is not None:
        rows = rows[ids.index(page.after) + 1 :]
    elif page.before is not None:
        return rows[: ids.index(page.before)][-(page.limit + 1) :]
    return rows[: page.limit + 1]
