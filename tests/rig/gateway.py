"""A gateway on twins: a real HTTP server in this process, everything behind it in memory."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
from prometheus_client import CollectorRegistry

from libs.api_keys import hash_api_key, new_api_key
from libs.clock import SystemClock
from libs.door import (
    DOOR_KEY_ID_HEADER,
    DOOR_MAC_HEADER,
    GATEWAY_DOOR_KEY_ID,
    door_secret,
    verify,
)
from libs.errors import ChatError, QueueUnavailable
from libs.ids import branch_id, message_id
from libs.kafka.publisher import Record
from libs.redis.memory import MemoryDoorbell, MemoryLiveStream, MemoryRedis
from libs.redis.ports import reply_channel
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from schemas.envelope import Event
from schemas.registry import decode
from schemas.streams import (
    Entry,
    EntryId,
    TurnEnd,
    content_delta,
    generating,
    message_started,
    terminal_entries,
)
from schemas.usage import Usage
from services.frontend_gateway.app import Adapters, Gateway, build_app
from services.frontend_gateway.core.evidence import BranchView
from services.frontend_gateway.core.turns import Checkpoint, TurnView
from services.frontend_gateway.http.server import server_of
from services.frontend_gateway.hub import Pace
from services.frontend_gateway.memory import MemoryStore
from services.frontend_gateway.operators import MemoryOperators
from services.frontend_gateway.ports import Caller, ConversationView, MessageView, Outcome
from services.frontend_gateway.settings import GatewaySettings

MASTER_KEY = "0123456789abcdef0123456789abcdef"
QUICK = Pace(tick_s=0.05, idle_s=0.1, recheck_s=0.1, ping_s=5)
AT = datetime(2026, 1, 31, 9, 40, tzinfo=UTC)


@dataclass
class Ingestion:
    """Stands at the other end of the topic: decides like ingestion, into the store in memory."""

    store: MemoryStore
    live: MemoryLiveStream
    rings: bool = True
    is_away: bool = False
    decides: bool = True
    delay_s: float = 0.0
    events: list[Event[Any]] = field(default_factory=list)
    problem: dict[str, Any] | None = None
    _fingerprints: dict[UUID, str] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def publish(self, records: Sequence[Record]) -> list[ChatError | None]:
        if self.is_away:
            return [QueueUnavailable("the queue is away") for _ in records]
        for record in records:
            event = self._verified(record)
            self.events.append(event)
            if self.decides:
                task = asyncio.create_task(self._decide_later(event))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return [None for _ in records]

    def _verified(self, record: Record) -> Event[Any]:
        headers = dict(record.headers)
        assert headers[DOOR_KEY_ID_HEADER] == str(GATEWAY_DOOR_KEY_ID).encode()
        secret = door_secret(MASTER_KEY.encode(), GATEWAY_DOOR_KEY_ID)
        assert verify(secret, record.value, headers[DOOR_MAC_HEADER])
        event = decode(record.value)
        assert record.key == str(event.conversation_id).encode()
        assert headers["ce_id"] == str(event.id).encode()
        return event

    async def _decide_later(self, event: Event[Any]) -> None:
        await asyncio.sleep(self.delay_s)
        await self.decide(event)

    async def decide(self, event: Event[Any]) -> None:
        outcome = self._outcome(event)
        self.store.outcome_rows[event.id] = outcome
        if self.rings:
            await self.live.ring(reply_channel(event.id), b"")

    def _outcome(self, event: Event[Any]) -> Outcome:
        data = event.data
        owner = (event.tenant_id, data.principal_id)
        creates = data.TYPE == "conversation.create_requested"
        known = self.store.conversation_rows.get(event.conversation_id)
        if self.problem is not None:
            return _outcome(event, "rejected", problem=self.problem)
        if (known is None and not creates) or (known is not None and known[:2] != owner):
            return _outcome(event, "not_found")
        if data.TYPE in CHANGES:
            return self._changed(event)
        if creates and known is None:
            view = ConversationView(event.conversation_id, data.title, "serialize", AT, AT, 0)
            self.store.conversation_rows[event.conversation_id] = (*owner, view)
        parts = data.message.parts if creates and data.message else getattr(data, "parts", None)
        if parts is None:
            return self._made(event, "accepted" if known is None else "replayed", None)
        turn_id = data.message.turn_id if creates else event.correlation_id
        body = "".join(part.text for part in parts) + str(getattr(data, "options", None))
        if turn_id in self._fingerprints:
            same = self._fingerprints[turn_id] == body
            return self._made(event, "replayed" if same else "conflict", turn_id)
        self._fingerprints[turn_id] = body
        self._accept(event, turn_id, parts[0].text)
        return self._made(event, "accepted", turn_id)

    def _accept(self, event: Event[Any], turn_id: UUID, text: str) -> None:
        rows = self.store.message_rows.setdefault(event.conversation_id, [])
        seq = len(rows) + 1
        turn = TurnView(
            id=turn_id,
            tenant_id=event.tenant_id,
            conversation_id=event.conversation_id,
            principal_id=event.data.principal_id,
            status="generating",
            seq=seq,
            policy="serialize",
            created_at=AT,
            started_at=AT,
        )
        before = [row for row in self.store.turn_rows.values() if row.stands_on == turn.stands_on]
        if before:
            turn = replace(turn, parent_turn_id=max(before, key=lambda row: row.seq).id)
        self.store.turn_rows[turn_id] = turn
        rows.append(_message(turn, "user", text, "completed"))
        rows.append(_message(turn, "assistant", "", "generating"))

    def _changed(self, event: Event[Any]) -> Outcome:
        """Decide about something that is there already."""
        conversation = event.conversation_id
        kind = event.data.TYPE
        is_deleted = conversation in self.store.deleted_conversations
        if kind == "conversation.restore_requested":
            self.store.deleted_conversations.discard(conversation)
            return self._made(event, "accepted", None)
        if is_deleted:
            return _outcome(event, "not_found")
        deciding = {
            "conversation.delete_requested": self._removed,
            "conversation.update_requested": self._renamed,
            "turn.cancel_requested": self._cancelled,
            "message.delete_requested": self._deleted,
        }
        return deciding.get(kind, self._forked)(event)

    def _removed(self, event: Event[Any]) -> Outcome:
        self.store.deleted_conversations.add(event.conversation_id)
        return _outcome(event, "accepted")

    def _renamed(self, event: Event[Any]) -> Outcome:
        tenant, principal, view = self.store.conversation_rows[event.conversation_id]
        title, policy = event.data.title or view.title, event.data.policy or view.policy
        renamed = replace(view, title=title, policy=policy)
        self.store.conversation_rows[event.conversation_id] = (tenant, principal, renamed)
        return self._made(event, "accepted", None)

    def _cancelled(self, event: Event[Any]) -> Outcome:
        turn = self.store.turn_rows.get(event.correlation_id)
        if turn is None:
            return _outcome(event, "not_found")
        if turn.has_ended:
            return _refused(event, "turn-already-terminal")
        self.store.turn_rows[turn.id] = replace(turn, cancel_reason=event.data.reason)
        return self._made(event, "accepted", turn.id)

    def _message(self, event: Event[Any], id_: UUID | None) -> MessageView | None:
        rows = self.store.message_rows.get(event.conversation_id, [])
        gone = self.store.deleted_messages
        return next((row for row in rows if row.id == id_ and row.id not in gone), None)

    def _deleted(self, event: Event[Any]) -> Outcome:
        row = self._message(event, event.data.message_id)
        if row is None:
            return _outcome(event, "not_found")
        turn = self.store.turn_rows[row.turn_id]
        if not turn.has_ended:
            return _refused(event, "turn-in-progress", turn_id=str(turn.id))
        self.store.deleted_messages.add(row.id)
        if row.role == "assistant":
            self.store.turn_rows[turn.id] = replace(turn, answer_deleted_at=AT)
        return _outcome(event, "accepted")

    def _forked(self, event: Event[Any]) -> Outcome:
        """An edit, or another answer: a turn on a branch of its own."""
        if event.correlation_id in self.store.turn_rows:
            return self._made(event, "replayed", event.correlation_id)
        kind = "edit" if event.data.TYPE == "message.edit_requested" else event.data.kind
        if kind == "edit":
            question = self._message(event, event.data.message_id)
            turn = None if question is None else self.store.turn_rows[question.turn_id]
        else:
            turn = self.store.turn_rows.get(event.data.turn_id)
            question = None if turn is None else self._message(event, turn.user_message_id)
        if turn is None or question is None:
            return _outcome(event, "not_found")
        if question.role != "user":
            return _refused(event, "not-editable")
        if not turn.has_ended:
            return _refused(event, "turn-in-progress", turn_id=str(turn.id))
        if kind == "continue" and not (turn.status in ("partial", "cancelled") and turn.length):
            return _refused(event, "not-continuable")
        self._fork(event, turn, question, kind)
        return self._made(event, "accepted", event.correlation_id)

    def _fork(self, event: Event[Any], turn: TurnView, question: MessageView, kind: str) -> None:
        conversation = event.conversation_id
        rows = self.store.message_rows[conversation]
        last = max(row.seq for row in rows)
        branch = branch_id(event.correlation_id)
        forked = replace(
            turn,
            id=event.correlation_id,
            status="generating",
            seq=last + 1 if kind == "edit" else last,
            kind=kind,
            reason=None,
            length=None,
            sha256=None,
            upto=None,
            usage=None,
            ended_at=None,
            branch_id=branch,
            question_id=None if kind == "edit" else question.id,
        )
        self.store.turn_rows[forked.id] = forked
        self.store.branch_rows.setdefault(conversation, []).append(
            BranchView(
                id=branch,
                kind="sibling",
                parent_branch_id=question.branch_id or conversation,
                fork_seq=question.seq + (kind != "edit"),
                is_active=True,
                first_turn_id=forked.id,
                last_turn_id=forked.id,
                created_at=AT,
            )
        )
        *owner, view = self.store.conversation_rows[conversation]
        moved = replace(view, branch_id=branch)
        self.store.conversation_rows[conversation] = (owner[0], owner[1], moved)
        if kind == "edit":
            text = event.data.parts[0].text
            said = _message(forked, "user", text, "completed")
            rows.append(replace(said, supersedes=question.id))
        rows.append(_message(forked, "assistant", "", "generating"))

    def _made(self, event: Event[Any], decision: str, turn_id: UUID | None) -> Outcome:
        turn = self.store.turn_rows.get(turn_id) if turn_id else None
        view = self.store.conversation_rows[event.conversation_id][2]
        return replace(
            _outcome(event, decision),
            turn_id=turn_id,
            seq=turn.seq if turn else None,
            status=turn.status if turn else None,
            title=view.title,
            policy=view.policy,
            created_at=view.created_at,
            user_message_id=turn.user_message_id if turn else None,
            branch_id=turn.stands_on if turn else None,
            kind=turn.kind if turn else None,
        )


CHANGES = frozenset(
    {
        "conversation.update_requested",
        "conversation.delete_requested",
        "conversation.restore_requested",
        "turn.cancel_requested",
        "message.delete_requested",
        "message.edit_requested",
        "answer.requested",
    }
)


def _refused(event: Event[Any], code: str, **more: str) -> Outcome:
    return _outcome(event, "rejected", problem={"code": code, "detail": "Not now.", **more})


def _outcome(event: Event[Any], decision: str, problem: dict[str, Any] | None = None) -> Outcome:
    return Outcome(
        request_id=event.id,
        decision=decision,
        conversation_id=event.conversation_id,
        turn_id=None,
        problem=problem,
        seq=None,
        status=None,
        title=None,
        policy=None,
        created_at=None,
    )


def _message(turn: TurnView, role: Any, text: str, status: str) -> MessageView:
    seq = turn.seq if role == "user" else turn.seq + 1
    id_ = message_id(turn.id, role)
    return MessageView(
        id_, role, text, seq, status, None, turn.id, AT, branch_id=turn.stands_on, kind=turn.kind
    )


@dataclass
class GatewayRig:
    """One gateway under test and what stands behind it."""

    url: str
    gateway: Gateway
    store: MemoryStore
    redis: MemoryRedis
    live: MemoryLiveStream
    ingestion: Ingestion
    registry: CollectorRegistry
    key: str
    caller: Caller
    client: httpx.AsyncClient
    operators: MemoryOperators

    def new_key(
        self, scopes: Sequence[str] = ("chat", "read"), *, tenant: UUID | None = None
    ) -> tuple[str, Caller]:
        """Another key, of another principal."""
        key, caller = made_key(scopes, tenant=tenant)
        self.store.keys[hash_api_key(key)] = caller
        return key, caller

    async def conversation(self) -> str:
        """A new conversation's id."""
        answer = await self.client.post("/v1/conversations", json={})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def post(self, conversation: str, content: str, key: str | None = None) -> httpx.Response:
        """Post a message."""
        return await self.client.post(
            f"/v1/conversations/{conversation}/messages",
            json={"content": content},
            headers={"Idempotency-Key": key or str(uuid4())},
        )

    async def turn(self, content: str = "Hello?") -> TurnView:
        """A turn that was accepted and has shown nothing yet."""
        answer = await self.post(await self.conversation(), content)
        assert answer.status_code == 202, answer.text
        turn = self.store.turn_rows[UUID(answer.json()["turn_id"])]
        await self.live.append(turn.id, [started(turn)])
        return turn

    async def write(
        self, turn: TurnView, texts: Sequence[str], *, attempt: int = 1, n: int = 2
    ) -> None:
        """Write an attempt's status (before its first delta) and deltas into the live stream."""
        entries = [generating(attempt)] if n == 2 else []
        entries += [content_delta(EntryId(attempt, n + i), text) for i, text in enumerate(texts)]
        await self.live.append(turn.id, entries)

    def checkpoint(self, turn: TurnView, text: str, upto: str) -> None:
        """Store the text of a running answer."""
        self.store.checkpoint_rows[turn.id] = Checkpoint(text, EntryId.parse(upto))

    def end(self, turn: TurnView, text: str, upto: str | None, **changes: Any) -> TurnView:
        """Commit the turn's end in the rows."""
        raw = text.encode()
        ended = replace(
            turn,
            **{
                "status": "completed",
                "length": len(raw),
                "sha256": hashlib.sha256(raw).hexdigest(),
                "upto": EntryId.parse(upto) if upto else None,
                "usage": Usage(input=3, output=4),
                "ended_at": AT,
                **changes,
            },
        )
        self.store.turn_rows[turn.id] = ended
        self.store.texts[turn.id] = text
        rows = self.store.message_rows[turn.conversation_id]
        for place, row in enumerate(rows):
            if row.turn_id == turn.id and row.role == "assistant":
                rows[place] = replace(row, content=text, status=ended.status, reason=ended.reason)
        return ended

    async def finish(self, turn: TurnView, text: str, upto: str | None, **changes: Any) -> TurnView:
        """Commit the turn's end and write its last entries."""
        ended = self.end(turn, text, upto, **changes)
        await self.live.append(turn.id, ending_of(ended))
        return ended


def started(turn: TurnView) -> Entry:
    """The first entry of a turn."""
    return message_started(turn_id=turn.id, message_id=turn.assistant_message_id, seq=turn.seq + 1)


def ending_of(turn: TurnView) -> tuple[Entry, ...]:
    """The last entries of an ended turn."""
    status: Any = turn.status
    return terminal_entries(TurnEnd(status, turn.reason, turn.length or 0, turn.sha256, turn.usage))


def made_key(
    scopes: Sequence[str] = ("chat", "read"), *, tenant: UUID | None = None
) -> tuple[str, Caller]:
    """A fresh key and whom it stands for."""
    caller = Caller(uuid4(), tenant or uuid4(), uuid4(), frozenset(scopes))
    return new_api_key(os.urandom(32)), caller


def settings(**changes: Any) -> GatewaySettings:
    """Settings of a gateway in a test."""
    return GatewaySettings(
        **{
            "database_url": "postgresql://unused",
            "door_master_key": MASTER_KEY,
            "acceptance_wait_s": 5.0,
            "conversation_poll_s": 0.05,
            "drain_s": 0.2,
            **changes,
        }
    )


@contextlib.asynccontextmanager
async def gateway_rig(
    *, beside: GatewayRig | None = None, pace: Pace = QUICK, **changes: Any
) -> AsyncIterator[GatewayRig]:
    """A running gateway; ``beside`` another one it shares store, Redis and topic."""
    redis = beside.redis if beside else MemoryRedis()
    store = beside.store if beside else MemoryStore()
    live = beside.live if beside else MemoryLiveStream(redis)
    ingestion = beside.ingestion if beside else Ingestion(store, live)
    operators = beside.operators if beside else MemoryOperators()
    registry = CollectorRegistry()
    adapters = Adapters(
        store=store,
        publisher=ingestion,
        live=live,
        bell=MemoryDoorbell(redis),
        clock=SystemClock(),
        metrics=Metrics(registry),
        tracing=Tracing(),
        operators=operators.operators(),
        pace=pace,
    )
    gateway = build_app(settings(**changes), adapters)
    key, caller = (beside.key, beside.caller) if beside else made_key()
    store.keys[hash_api_key(key)] = caller
    async with (
        serving(gateway) as url,
        httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=20
        ) as client,
    ):
        parts = (store, redis, live, ingestion, registry)
        yield GatewayRig(url, gateway, *parts, key, caller, client, operators)


@contextlib.asynccontextmanager
async def serving(gateway: Gateway) -> AsyncIterator[str]:
    """Serve on a free port; yields the address."""
    server = server_of(gateway, host="127.0.0.1", port=0)
    server.config.timeout_graceful_shutdown = 2
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(10):
        while not server.started:
            await asyncio.sleep(0.005)
            if task.done():
                await task
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await gateway.hub.close()
        async with asyncio.timeout(10):
            await task
