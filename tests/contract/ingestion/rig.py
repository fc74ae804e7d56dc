"""Ingestion on a real Postgres: its handlers, and what the services around it would do."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID, uuid4

import psycopg
from prometheus_client import CollectorRegistry
from psycopg.rows import dict_row
from pydantic import SecretStr

from libs import ids
from libs.catalogue import Catalogue
from libs.clock import SystemClock
from libs.door import (
    DOOR_KEY_ID_HEADER,
    DOOR_MAC_HEADER,
    GATEWAY_DOOR_KEY_ID,
    door_mac,
    door_secret,
)
from libs.kafka import Delivery
from libs.outbox import OutboxMessage
from libs.postgres import Database
from libs.redis.memory import MemoryLiveStream, MemoryRedis
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from schemas.envelope import Data, Event, encode
from schemas.generations import (
    GenerationCompletedV1,
    GenerationFailedV1,
    GenerationInterruptedV1,
)
from schemas.registry import CONTEXT_EVENTS, GENERATION_EVENTS, TURN_REQUESTS, decode
from schemas.requests import (
    AnswerRequestedV1,
    ConversationCreateRequestedV1,
    ConversationDeleteRequestedV1,
    ConversationRestoreRequestedV1,
    ConversationUpdateRequestedV1,
    FirstMessage,
    MessageDeleteRequestedV1,
    MessageEditRequestedV1,
    TextPart,
    TurnRequestedV1,
)
from schemas.steps import StepPlannedV1, StepRefusedV1
from schemas.turns import TurnCancelRequestedV1
from schemas.usage import Usage
from services.ingestion.app import Adapters, build_app
from services.ingestion.settings import IngestionSettings
from services.ingestion.tokens import CatalogueTokens
from tests.rig.parts import TestDatabase

MASTER_KEY = b"a master key of tests"
TENANT = UUID("00000000-0000-7000-8000-00000000000a")
OTHER_TENANT = UUID("00000000-0000-7000-8000-00000000000b")
PRINCIPAL = UUID("00000000-0000-7000-8000-0000000000aa")
DEADLINE_S = 300.0


@dataclass
class Outgoing:
    """Stands where the relay stands; keeps what was handed over."""

    messages: list[OutboxMessage] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def hand_over(self, messages: Sequence[OutboxMessage], ids: Sequence[int]) -> None:
        self.messages += messages
        self.ids += ids

    async def let_pass(self) -> None:
        pass

    def take_acknowledged(self) -> list[int]:
        return []

    @property
    def events(self) -> list[Event[Any]]:
        return [decode(message.payload) for message in self.messages]

    def types(self) -> list[str]:
        return [event.type for event in self.events]


class Ingestion:
    """One process of the service, as far as its work goes."""

    def __init__(self, database: Database, redis: MemoryRedis) -> None:
        self.database = database
        self.live = MemoryLiveStream(redis)
        self.relay = Outgoing()
        self.metrics = Metrics(CollectorRegistry())
        settings = IngestionSettings(
            database_url=SecretStr("unused"), door_master_key=SecretStr(MASTER_KEY.decode())
        )
        app = build_app(
            settings,
            Adapters(
                database=database,
                relay=self.relay,
                live=self.live,
                tokens=CatalogueTokens(Catalogue.load()),
                clock=SystemClock(),
                metrics=self.metrics,
                tracing=Tracing(),
            ),
        )
        self.requests = app.requests
        self.context = app.context
        self.generation = app.generation
        self.canceller = app.canceller
        self.reaper = app.reaper
        self.retelling = app.retelling

    async def close(self) -> None:
        await self.database.close()


class Rig:
    """A database, two ingestion processes on it, and the hands of their neighbours."""

    def __init__(self, database: TestDatabase, first: Ingestion, second: Ingestion) -> None:
        self.test_database = database
        self.ingestion = first
        self.second = second

    @classmethod
    async def open(cls, database: TestDatabase) -> "Rig":
        redis = MemoryRedis()
        url = database.url_of("ingestion")
        first = await Database.open(url, schema="ingestion", size=4)
        second = await Database.open(url, schema="ingestion", size=4)
        return cls(database, Ingestion(first, redis), Ingestion(second, redis))

    async def close(self) -> None:
        await self.ingestion.close()
        await self.second.close()

    def rows(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows as the superuser sees them: without policies."""
        with psycopg.connect(
            self.test_database.admin_url, row_factory=dict_row, autocommit=True
        ) as connection:
            # Statements of tests, written in the test files.
            cursor = connection.execute(sql, parameters)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def one(self, sql: str, *parameters: Any) -> Any:
        """The only value of the only row."""
        (row,) = self.rows(sql, *parameters)
        (value,) = row.values()
        return value

    def result(self, turn_id: UUID, text: str, *, attempt: int = 1) -> GenerationCompletedV1:
        """Store an answer where llm_gateway would, and make the data of its event."""
        raw = text.encode()
        digest = hashlib.sha256(raw).hexdigest()
        step_id = ids.step_id(turn_id, 1)
        self.rows(
            "insert into llm_gateway.results (tenant_id, step_id, attempt, turn_id, text, length, "
            "sha256, created_at) values (%s, %s, %s, %s, %s, %s, %s, now())",
            *(TENANT, step_id, attempt, turn_id, text, len(raw), digest),
        )
        return GenerationCompletedV1(
            step_id=step_id,
            attempt=attempt,
            finish_reason="stop",
            usage=Usage(input=5, output=2),
            length=len(raw),
            sha256=digest,
            upto=f"{attempt}-2",
            duration_ms=3,
        )


def event_of(
    data: Data, conversation_id: UUID, turn_id: UUID, *, tenant_id: UUID = TENANT, source: str = "t"
) -> Event[Any]:
    return Event(
        id=uuid4(),
        source=source,
        tenant_id=tenant_id,
        conversation_id=conversation_id,
        correlation_id=turn_id,
        occurred_at=datetime.now(UTC),
        data=data,
    )


def delivery(event: Event[Any], topic: str, *, key_id: UUID = GATEWAY_DOOR_KEY_ID) -> Delivery:
    """A record as the loop hands it over, signed where its topic asks for it."""
    value = encode(event)
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if topic == TURN_REQUESTS:
        mac = door_mac(door_secret(MASTER_KEY, key_id), value)
        headers = (
            (DOOR_KEY_ID_HEADER, str(key_id).encode()),
            (DOOR_MAC_HEADER, mac.encode()),
        )
    key = str(event.conversation_id).encode()
    return Delivery(topic, 0, 0, key, headers, value, decode(value))


def create(
    conversation_id: UUID,
    *,
    key: str | None = None,
    text: str | None = None,
    tenant_id: UUID = TENANT,
    principal_id: UUID = PRINCIPAL,
) -> Delivery:
    """A request for a conversation."""
    request_id = uuid4()
    message = None
    if text is not None:
        turn_key = str(request_id) if key is None else key
        message = FirstMessage(
            turn_id=ids.turn_id(tenant_id, conversation_id, turn_key), parts=(TextPart(text=text),)
        )
    data = ConversationCreateRequestedV1(
        request_id=request_id, principal_id=principal_id, key=key, title="a title", message=message
    )
    turn_id = conversation_id if message is None else message.turn_id
    event = Event(
        id=request_id,
        source="frontend_gateway",
        tenant_id=tenant_id,
        conversation_id=conversation_id,
        correlation_id=turn_id,
        occurred_at=datetime.now(UTC),
        data=data,
    )
    return delivery(event, TURN_REQUESTS)


def post(
    conversation_id: UUID,
    key: str,
    text: str = "hello",
    *,
    tenant_id: UUID = TENANT,
    principal_id: UUID = PRINCIPAL,
    **fields: Any,
) -> Delivery:
    """A request for an answer."""
    request_id = uuid4()
    data = TurnRequestedV1(
        request_id=request_id,
        principal_id=principal_id,
        key=key,
        parts=(TextPart(text=text),),
        **fields,
    )
    event = Event(
        id=request_id,
        source="frontend_gateway",
        tenant_id=tenant_id,
        conversation_id=conversation_id,
        correlation_id=ids.turn_id(tenant_id, conversation_id, key),
        occurred_at=datetime.now(UTC),
        data=data,
    )
    return delivery(event, TURN_REQUESTS)


def asked(
    data: Data, conversation_id: UUID, turn_id: UUID, *, tenant_id: UUID = TENANT
) -> Delivery:
    """A request of any kind, signed; ``data.request_id`` becomes the event's id."""
    event = Event(
        id=data.request_id,  # type: ignore[attr-defined]
        source="frontend_gateway",
        tenant_id=tenant_id,
        conversation_id=conversation_id,
        correlation_id=turn_id,
        occurred_at=datetime.now(UTC),
        data=data,
    )
    return delivery(event, TURN_REQUESTS)


def cancel(conversation_id: UUID, turn_id: UUID, *, principal_id: UUID = PRINCIPAL) -> Delivery:
    """Somebody wants a turn to stop."""
    data = TurnCancelRequestedV1(reason="user", request_id=uuid4(), principal_id=principal_id)
    return asked(data, conversation_id, turn_id)


def edit(
    conversation_id: UUID,
    key: str,
    message_id: UUID,
    text: str = "in other words",
    *,
    principal_id: UUID = PRINCIPAL,
    **fields: Any,
) -> Delivery:
    """A message said again."""
    data = MessageEditRequestedV1(
        request_id=uuid4(),
        principal_id=principal_id,
        key=key,
        message_id=message_id,
        parts=(TextPart(text=text),),
        **fields,
    )
    return asked(data, conversation_id, ids.turn_id(TENANT, conversation_id, key))


def answer_again(
    conversation_id: UUID,
    key: str,
    turn_id: UUID,
    kind: Literal["regenerate", "continue"] = "regenerate",
    *,
    principal_id: UUID = PRINCIPAL,
    **fields: Any,
) -> Delivery:
    """Another answer to a turn's question, or the rest of its answer."""
    data = AnswerRequestedV1(
        request_id=uuid4(),
        principal_id=principal_id,
        key=key,
        kind=kind,
        turn_id=turn_id,
        **fields,
    )
    return asked(data, conversation_id, ids.turn_id(TENANT, conversation_id, key))


def delete_message(
    conversation_id: UUID, message_id: UUID, *, principal_id: UUID = PRINCIPAL
) -> Delivery:
    """A message that shall be gone."""
    data = MessageDeleteRequestedV1(
        request_id=uuid4(), principal_id=principal_id, message_id=message_id
    )
    return asked(data, conversation_id, conversation_id)


def update(conversation_id: UUID, *, principal_id: UUID = PRINCIPAL, **fields: Any) -> Delivery:
    """Another title or policy."""
    data = ConversationUpdateRequestedV1(request_id=uuid4(), principal_id=principal_id, **fields)
    return asked(data, conversation_id, conversation_id)


def delete(conversation_id: UUID, *, principal_id: UUID = PRINCIPAL) -> Delivery:
    """A conversation that shall be gone."""
    data = ConversationDeleteRequestedV1(request_id=uuid4(), principal_id=principal_id)
    return asked(data, conversation_id, conversation_id)


def restore(conversation_id: UUID, *, principal_id: UUID = PRINCIPAL) -> Delivery:
    """A deleted conversation that shall come back."""
    data = ConversationRestoreRequestedV1(request_id=uuid4(), principal_id=principal_id)
    return asked(data, conversation_id, conversation_id)


def planned(conversation_id: UUID, turn_id: UUID) -> Delivery:
    """The first step of a turn is planned."""
    data = StepPlannedV1(
        step_id=ids.step_id(turn_id, 1),
        step_no=1,
        branch_id=conversation_id,
        seq=1,
        model="scripted",
        fingerprint="0" * 64,
        deadline_at=datetime.now(UTC),
    )
    return delivery(event_of(data, conversation_id, turn_id), CONTEXT_EVENTS)


def refused(conversation_id: UUID, turn_id: UUID, reason: str) -> Delivery:
    """The step of a turn is refused."""
    return delivery(
        event_of(StepRefusedV1(reason=reason), conversation_id, turn_id), CONTEXT_EVENTS
    )


def generated(
    conversation_id: UUID,
    turn_id: UUID,
    data: GenerationCompletedV1 | GenerationInterruptedV1 | GenerationFailedV1,
) -> Delivery:
    """A model call is over."""
    return delivery(event_of(data, conversation_id, turn_id), GENERATION_EVENTS)


def interrupted(completed: GenerationCompletedV1, reason: str) -> GenerationInterruptedV1:
    """The same answer, told as cut short."""
    return GenerationInterruptedV1(reason=reason, **completed.model_dump(exclude={"finish_reason"}))


def payload_of(event: Event[Any]) -> dict[str, Any]:
    """An event's data as JSON."""
    data: dict[str, Any] = json.loads(encode(event))["data"]
    return data
