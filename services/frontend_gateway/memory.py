"""The twin of the store: the same answers from plain dictionaries, for tests and simulations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

from libs.errors import StoreUnavailable
from services.frontend_gateway.core.cursors import Page, cursor_invalid
from services.frontend_gateway.core.turns import Checkpoint, TurnView
from services.frontend_gateway.ports import (
    Asked,
    Caller,
    ConversationView,
    Facts,
    MessageView,
    Outcome,
    PlanView,
)

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
        return found[2] if found is not None and found[:2] == (tenant, principal) else None

    async def conversations(
        self, tenant: UUID, principal: UUID, page: Page
    ) -> Sequence[ConversationView]:
        """See ``Reads``."""
        self._check()
        mine = [
            row for *owner, row in self.conversation_rows.values() if owner == [tenant, principal]
        ]
        mine.sort(key=lambda row: (row.created_at, row.id), reverse=page.descending)
        return _page(mine, page)

    async def messages(
        self, tenant: UUID, principal: UUID, conversation: UUID, page: Page
    ) -> Sequence[MessageView]:
        """See ``Reads``."""
        if await self.conversation(tenant, principal, conversation) is None:
            return []
        rows = sorted(
            self.message_rows.get(conversation, ()),
            key=lambda row: row.seq,
            reverse=page.descending,
        )
        return _page(rows, page)

    async def turn(self, tenant: UUID, turn: UUID) -> TurnView | None:
        """See ``Reads``."""
        self._check()
        found = self.turn_rows.get(turn)
        return found if found is not None and found.tenant_id == tenant else None

    async def answer(self, tenant: UUID, turn: UUID) -> str:
        """See ``Reads``."""
        found = await self.turn(tenant, turn)
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
        rows = [self.turn_rows.get(turn) for _, turn in watched]
        return [Facts(row, self.checkpoint_rows.get(row.id)) for row in rows if row is not None]


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
