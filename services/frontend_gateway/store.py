"""What the gateway reads in Postgres, and the browser sessions it writes there."""

import hashlib
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import UUID

import psycopg

from libs.errors import StoreUnavailable
from libs.postgres import Database, Transaction, load_queries
from schemas.streams import EntryId
from schemas.usage import Usage
from services.frontend_gateway.core.activity import ConversationActivity, TurnActivity
from services.frontend_gateway.core.cursors import Page, cursor_invalid
from services.frontend_gateway.core.evidence import BranchView, MessageFacts, Place
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

CURSOR_UNKNOWN = "TW001"  # raised by the list functions of ingestion
BRANCH_UNKNOWN = "TW004"
PURGED_AT_ONCE = 1_000  # bounds the time of one deletion
MAX_PLACES = 20  # of a text; why it is absent is told of the nearest of them

MAX_LONGEST = 20  # texts: the longest in characters need not be the longest in tokens


class PostgresStore:
    """Implements ``Store``; every read names its tenants, so a forgotten filter shows nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = load_queries("services.frontend_gateway")

    # Rights.

    async def caller_of_key(self, key_hash: bytes) -> Caller | None:
        """See ``Rights``."""
        return _caller(await self._fetch(self._sql["caller_of_key"], {"hash": key_hash}))

    async def caller_of_session(self, token_hash: bytes) -> Caller | None:
        """See ``Rights``."""
        parameters = {"hash": token_hash}
        return _caller(await self._fetch(self._sql["caller_of_session"], parameters))

    async def open_session(self, token_hash: bytes, key_id: UUID, *, lifetime_s: int) -> None:
        """See ``Rights``."""
        parameters = {"hash": token_hash, "key_id": key_id, "lifetime_s": lifetime_s}
        await self._fetch(self._sql["open_session"], parameters)

    async def close_session(self, token_hash: bytes) -> None:
        """See ``Rights``."""
        await self._fetch(self._sql["close_session"], {"hash": token_hash})

    async def purge_sessions(self) -> int:
        """See ``Rights``."""
        parameters = {"max_rows": PURGED_AT_ONCE}
        rows = await self._fetch(self._sql["purge_sessions"], parameters)
        return int(rows[0]["deleted"])

    # Outcomes.

    async def outcomes(self, asked: Sequence[Asked]) -> Sequence[Outcome]:
        """See ``Outcomes``."""
        rows = await self._pairs("outcomes", [(one.tenant_id, one.request_id) for one in asked])
        return [
            Outcome(
                request_id=row["request_id"],
                decision=row["outcome"],
                conversation_id=row["conversation_id"],
                turn_id=row["turn_id"],
                problem=row["problem"],
                seq=row["seq"],
                status=row["status"],
                title=row["title"],
                policy=row["policy"],
                created_at=row["created_at"],
                user_message_id=row["user_message_id"],
                branch_id=row["branch_id"],
                queue_position=row["queue_position"],
                kind=row["kind"],
            )
            for row in rows
        ]

    # Reads.

    async def conversation(
        self, tenant: UUID, principal: UUID, conversation: UUID
    ) -> ConversationView | None:
        """See ``Reads``."""
        parameters = {"tenant": tenant, "principal": principal, "conversation": conversation}
        rows = await self._fetch(self._sql["conversation"], parameters, tenants=(tenant,))
        return _conversation(rows[0]) if rows else None

    async def conversations(
        self, tenant: UUID, principal: UUID, page: Page, query: str | None = None
    ) -> Sequence[ConversationView]:
        """See ``Reads``."""
        parameters = {"tenant": tenant, "principal": principal, "query": query, **_page(page)}
        with _cursor_errors():
            rows = await self._fetch(self._sql["conversations"], parameters, tenants=(tenant,))
        return [_conversation(row) for row in rows]

    async def messages(
        self,
        tenant: UUID,
        principal: UUID,
        conversation: UUID,
        page: Page,
        branch: UUID | None = None,
    ) -> Sequence[MessageView]:
        """See ``Reads``."""
        parameters = {
            "tenant": tenant,
            "principal": principal,
            "conversation": conversation,
            "branch": branch,
            **_page(page),
        }
        with _cursor_errors():
            rows = await self._fetch(self._sql["messages"], parameters, tenants=(tenant,))
        return [_message(row) for row in rows]

    async def branches(
        self, tenant: UUID, principal: UUID, conversation: UUID
    ) -> Sequence[BranchView]:
        """See ``Reads``."""
        parameters = {"tenant": tenant, "principal": principal, "conversation": conversation}
        rows = await self._fetch(self._sql["branches"], parameters, tenants=(tenant,))
        return [BranchView(**row) for row in rows]

    async def turn(self, tenant: UUID, turn: UUID) -> TurnView | None:
        """See ``Reads``."""
        rows = await self._pairs("turns", [(tenant, turn)])
        return _turn(rows[0]) if rows else None

    async def answer(self, tenant: UUID, turn: UUID) -> str | None:
        """See ``Reads``."""
        rows = await self._pairs("answers", [(tenant, turn)])
        text: str | None = rows[0]["text"] if rows else ""
        return text

    async def checkpoints(self, tenant: UUID, turns: Sequence[UUID]) -> Mapping[UUID, Checkpoint]:
        """See ``Reads``."""
        rows = await self._pairs("checkpoints", [(tenant, turn) for turn in turns])
        return _checkpoints(rows)

    async def plans(self, tenant: UUID, turn: UUID) -> Sequence[PlanView]:
        """See ``Reads``."""
        rows = await self._pairs("plans", [(tenant, turn)])
        return [PlanView(**row) for row in rows]

    # Streams.

    async def facts(self, watched: Sequence[tuple[UUID, UUID]]) -> Sequence[Facts]:
        """See ``Watched``; both statements travel in one round trip."""
        parameters = _parallel(watched)
        statements = [(self._sql["turns"], parameters), (self._sql["checkpoints"], parameters)]
        tenants = {tenant for tenant, _ in watched}
        with _unavailable():
            async with self._database.transaction(tenants) as transaction:
                turn_rows, partial_rows = await transaction.commit_with(statements)
        checkpoints = _checkpoints(partial_rows)
        turns = [_turn(row) for row in turn_rows]
        return [Facts(turn, checkpoints.get(turn.id)) for turn in turns]

    async def activity(
        self, watched: Sequence[tuple[UUID, UUID]]
    ) -> Mapping[UUID, ConversationActivity]:
        """See ``Activities``."""
        found: dict[UUID, list[Mapping[str, Any]]] = {}
        for row in await self._pairs("activity", watched):
            found.setdefault(row["conversation_id"], []).append(row)
        return {id_: _activity(rows) for id_, rows in found.items()}

    # Proofs.

    async def message_facts(
        self, tenant: UUID, messages: Sequence[UUID]
    ) -> Mapping[UUID, MessageFacts]:
        """See ``Proofs``."""
        rows = await self._pairs("message_facts", [(tenant, id_) for id_ in messages])
        facts = (MessageFacts(**{"id": row.pop("message_id"), **row}) for row in rows)
        return {one.id: one for one in facts}

    async def message_texts(self, tenant: UUID, messages: Sequence[UUID]) -> Mapping[UUID, str]:
        """See ``Proofs``."""
        rows = await self._pairs("message_texts", [(tenant, id_) for id_ in messages])
        return {row["message_id"]: row["text"] for row in rows}

    async def find_text(
        self, tenant: UUID, principal: UUID, conversation: UUID, needle: str
    ) -> Sequence[Place]:
        """See ``Proofs``."""
        parameters = {
            "tenant": tenant,
            "principal": principal,
            "conversation": conversation,
            "needle": needle,
            "max_rows": MAX_PLACES,
        }
        rows = await self._fetch(self._sql["find_text"], parameters, tenants=(tenant,))
        return [Place(**row) for row in rows]

    # Stories.

    async def transitions(self, tenant: UUID, turn: UUID) -> Sequence[Transition]:
        """See ``Stories``."""
        return [Transition(**row) for row in await self._pairs("transitions", [(tenant, turn)])]

    async def steps(self, tenant: UUID, turn: UUID) -> Sequence[StepView]:
        """See ``Stories``."""
        return [StepView(**row) for row in await self._pairs("steps", [(tenant, turn)])]

    async def attempts(self, tenant: UUID, steps: Sequence[UUID]) -> Sequence[AttemptView]:
        """See ``Stories``."""
        rows = await self._pairs("attempts", [(tenant, step) for step in steps])
        return [AttemptView(**row) for row in rows]

    async def history_facts(
        self, tenant: UUID, end: HistoryEnd, tokenizer: str, max_rows: int
    ) -> Sequence[HistoryFacts]:
        """See ``Stories``."""
        parameters = {**_end(tenant, end), "tokenizer": tokenizer, "max_rows": max_rows}
        rows = await self._fetch(self._sql["history_facts"], parameters, tenants=(tenant,))
        return [HistoryFacts(**row) for row in rows]

    async def history_count(self, tenant: UUID, end: HistoryEnd, max_count: int) -> int:
        """See ``Stories``."""
        parameters = {**_end(tenant, end), "max_count": max_count}
        rows = await self._fetch(self._sql["history_count"], parameters, tenants=(tenant,))
        return int(rows[0]["messages"]) if rows else 0

    async def excerpts(
        self, tenant: UUID, conversation: UUID, messages: Sequence[UUID], max_characters: int
    ) -> Mapping[UUID, str]:
        """See ``Stories``."""
        parameters = {
            "tenant": tenant,
            "conversation": conversation,
            "messages": list(messages),
            "max_characters": max_characters,
        }
        rows = await self._fetch(self._sql["excerpts"], parameters, tenants=(tenant,))
        return {row["message_id"]: row["excerpt"] for row in rows}

    # Settings.

    async def instructions(
        self, tenant: UUID, names: Sequence[InstructionName]
    ) -> Sequence[InstructionView]:
        """See ``Settings``."""
        parameters = _named(tenant, names)
        rows = await self._fetch(self._sql["instructions"], parameters, tenants=(tenant,))
        return [_instruction(row) for row in rows]

    @asynccontextmanager
    async def changing_instructions(self, tenant: UUID) -> AsyncIterator["_InstructionsChange"]:
        """See ``Settings``."""
        with _unavailable():
            async with self._database.transaction((tenant,)) as transaction:
                await transaction.execute(self._sql["lock_instructions"], {"tenant": tenant})
                yield _InstructionsChange(transaction, self._sql, tenant)

    async def set_capture_posture(
        self, tenant: UUID, posture: str, per_mille: int, *, actor: str
    ) -> None:
        """See ``Settings``."""
        parameters = {
            "tenant": tenant,
            "posture": posture,
            "per_mille": per_mille,
            "actor": actor,
        }
        await self._fetch(self._sql["set_capture_posture"], parameters, tenants=(tenant,))

    async def flag_conversation(
        self, tenant: UUID, conversation: UUID, *, is_flagged: bool, actor: str
    ) -> None:
        """See ``Settings``."""
        parameters = {
            "tenant": tenant,
            "conversation": conversation,
            "is_flagged": is_flagged,
            "actor": actor,
        }
        await self._fetch(self._sql["flag_conversation"], parameters, tenants=(tenant,))

    async def read_capture(
        self, tenant: UUID, turn: UUID, step: int | None, reader: Reader
    ) -> CaptureView | None:
        """See ``Settings``."""
        parameters = {
            "tenant": tenant,
            "turn": turn,
            "step": step,
            "reader": reader.principal_id,
            "key_id": reader.key_id,
            "read_id": reader.read_id,
            "request_id": reader.request_id,
        }
        rows = await self._fetch(self._sql["read_capture"], parameters, tenants=(tenant,))
        return CaptureView(**rows[0]) if rows else None

    async def _fetch(
        self, sql: str, parameters: Mapping[str, Any], *, tenants: Collection[UUID] = ()
    ) -> list[dict[str, Any]]:
        with _unavailable():
            return await self._database.fetch(sql, parameters, tenants=tenants)

    async def _pairs(self, query: str, pairs: Sequence[tuple[UUID, UUID]]) -> list[dict[str, Any]]:
        tenants = {tenant for tenant, _ in pairs}
        return await self._fetch(self._sql[query], _parallel(pairs), tenants=tenants)


def _parallel(pairs: Sequence[tuple[UUID, UUID]]) -> dict[str, list[UUID]]:
    return {"tenants": [tenant for tenant, _ in pairs], "ids": [id_ for _, id_ in pairs]}


def _end(tenant: UUID, end: HistoryEnd) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "conversation": end.conversation_id,
        "branch": end.branch_id,
        "below": end.below_seq,
    }


def _page(page: Page) -> dict[str, Any]:
    return {
        "after": page.after,
        "before": page.before,
        "descending": page.descending,
        "max_rows": page.limit + 1,
    }


class _InstructionsChange:
    """Implements ``InstructionsChange``."""

    def __init__(self, transaction: Transaction, sql: Mapping[str, str], tenant: UUID) -> None:
        self._transaction = transaction
        self._sql = sql
        self._tenant = tenant

    async def instructions(self, names: Sequence[InstructionName]) -> Sequence[InstructionView]:
        """See ``InstructionsChange``."""
        parameters = _named(self._tenant, names)
        rows = await self._transaction.fetch(self._sql["instructions"], parameters)
        return [_instruction(row) for row in rows]

    async def longest(self, kind: str) -> Sequence[InstructionView]:
        """See ``InstructionsChange``."""
        parameters = {"tenant": self._tenant, "kind": kind, "max_rows": MAX_LONGEST}
        rows = await self._transaction.fetch(self._sql["longest_instructions"], parameters)
        return [_instruction(row) for row in rows]

    async def set(self, wanted: Sequence[tuple[UUID, UUID, str, str]], *, actor: str) -> None:
        """See ``InstructionsChange``."""
        statements = [
            (
                self._sql["set_instructions"],
                {
                    "tenant": self._tenant,
                    "new_id": new_id,
                    "scope": scope,
                    "kind": kind,
                    "text": text,
                    "sha256": hashlib.sha256(text.encode()).hexdigest(),
                    "actor": actor,
                },
            )
            for new_id, scope, kind, text in wanted
        ]
        await self._transaction.commit_with(statements)


def _named(tenant: UUID, names: Sequence[InstructionName]) -> dict[str, Any]:
    return {
        "tenants": [tenant] * len(names),
        "scopes": [scope for scope, _, _ in names],
        "kinds": [kind for _, kind, _ in names],
        "versions": [version for _, _, version in names],
    }


@contextmanager
def _unavailable() -> Iterator[None]:
    """A statement that ran into a time limit, or met a server in trouble, may succeed later."""
    try:
        yield
    except psycopg.OperationalError as error:
        msg = f"Postgres did not answer a read in time: {type(error).__name__}"
        raise StoreUnavailable(msg) from error


@contextmanager
def _cursor_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate == BRANCH_UNKNOWN:
            raise not_found() from None
        if error.sqlstate != CURSOR_UNKNOWN:
            raise
        raise cursor_invalid("The cursor names nothing in this list.") from None


def _caller(rows: Sequence[Mapping[str, Any]]) -> Caller | None:
    if not rows:
        return None
    row = rows[0]
    return Caller(row["key_id"], row["tenant_id"], row["principal_id"], frozenset(row["scopes"]))


def _conversation(row: Mapping[str, Any]) -> ConversationView:
    return ConversationView(
        id=row["id"],
        title=row["title"],
        policy=row["policy"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        message_count=row["message_count"],
        branch_id=row.get("branch_id"),
    )


def _instruction(row: Mapping[str, Any]) -> InstructionView:
    return InstructionView(
        row["scope_id"], row["kind"], row["version"], row["text"], row["created_at"]
    )


def _message(row: Mapping[str, Any]) -> MessageView:
    fields = dict(row)
    del fields["user_message_id"]
    return MessageView(**fields)


def _activity(rows: Sequence[Mapping[str, Any]]) -> ConversationActivity:
    """Rows of one conversation; a single one without a turn where nothing was answered yet."""
    turns = [
        TurnActivity(
            turn_id=row["turn_id"],
            branch_id=row["branch_id"],
            kind=row["kind"],
            status=row["status"],
            reason=row["reason"],
            seq=row["seq"],
            queue_position=row["queue_position"],
        )
        for row in rows
        if row["turn_id"] is not None
    ]
    return ConversationActivity(is_deleted=bool(rows[0]["is_deleted"]), turns=turns)


def _turn(row: Mapping[str, Any]) -> TurnView:
    fields = dict(row)
    upto, usage = fields.pop("upto"), fields.pop("usage")
    return TurnView(
        **fields,
        upto=None if upto is None else EntryId.parse(upto),
        usage=None if usage is None else Usage.model_validate(usage),
    )


def _checkpoints(rows: Sequence[Mapping[str, Any]]) -> dict[UUID, Checkpoint]:
    """The furthest one of each turn."""
    found: dict[UUID, Checkpoint] = {}
    for row in rows:
        if row["upto"] is None:
            continue
        one = Checkpoint(row["text"], EntryId.parse(row["upto"]))
        known = found.get(row["turn_id"])
        if known is None or known.upto < one.upto:
            found[row["turn_id"]] = one
    return found
