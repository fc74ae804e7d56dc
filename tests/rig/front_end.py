"""A front end that is not ours: it has a door key of its own and publishes to the topics itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from aiokafka import AIOKafkaProducer
from aiokafka.record._crc32c import crc as crc32c

from libs import ids
from libs.clock import SystemClock
from libs.door import DOOR_KEY_ID_HEADER, DOOR_MAC_HEADER, door_mac, door_secret
from schemas.envelope import Data, Event, encode
from schemas.registry import TURN_REQUESTS
from schemas.requests import ConversationCreateRequestedV1, TextPart, TurnRequestedV1
from tests.rig.house import House, Place
from tests.rig.waiting import until

Headers = Sequence[tuple[str, bytes]]
SOURCE = "a_foreign_front_end"


@dataclass(frozen=True, slots=True)
class DoorKey:
    """A key for the door, made as an operator makes it, and the tenant it speaks for."""

    id: UUID
    tenant_id: UUID
    secret: bytes

    def sign(self, value: bytes) -> list[tuple[str, bytes]]:
        """The two headers that let a record in."""
        return [
            (DOOR_KEY_ID_HEADER, str(self.id).encode()),
            (DOOR_MAC_HEADER, door_mac(self.secret, value).encode()),
        ]


async def make_door_key(house: House, tenant: str) -> DoorKey:
    """A new door key; its secret is what ``turnwire keys create --door`` prints."""
    clock = SystemClock()
    (row,) = await house.operate(
        "select * from frontend_gateway.op_create_door_key(%s, %s, %s, %s)",
        clock.new_id(),
        tenant,
        clock.new_id(),
        "tests",
    )
    master = house.stack.door_master_key.encode()
    return DoorKey(row["door_key_id"], row["tenant_id"], door_secret(master, row["door_key_id"]))


class FrontEnd:
    """Publishes records, good and bad ones, to any topic."""

    def __init__(self, house: House, key: DoorKey) -> None:
        self.house = house
        self.key = key
        self._clock = SystemClock()
        self._producer = AIOKafkaProducer(
            bootstrap_servers=house.stack.kafka_bootstrap_servers, acks="all", linger_ms=0
        )

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._producer.stop()

    async def publish(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> Place:
        """Append a record to the partition of its key and say where it stands."""
        told = await self._producer.send_and_wait(
            topic, value=value, key=key, headers=list(headers)
        )
        return Place(topic, told.partition, told.offset)

    async def publish_beside(
        self, topic: str, key: bytes, value: bytes | None, headers: Headers = (), *, at: bytes
    ) -> Place:
        """Append a record with any key to the partition where the key ``at`` belongs."""
        partition = await self.partition_of(topic, at)
        told = await self._producer.send_and_wait(
            topic, value=value, key=key or None, headers=list(headers), partition=partition
        )
        return Place(topic, told.partition, told.offset)

    async def partition_of(self, topic: str, key: bytes) -> int:
        """The partition of a key."""
        await self._producer.partitions_for(topic)
        number: int = self._producer._partition(topic, None, None, None, key, None)
        return number

    async def publish_raw_header(self, topic: str, key: bytes, value: bytes) -> Place:
        """Append a record with a header name that no UTF-8 decoder takes.

        The batch is built with a name of the same length, which is then replaced in its bytes; the
        checksum (CRC-32C over everything from byte 21, at byte 17) is made anew.
        """
        partition = await self.partition_of(topic, key)
        batch = self._producer.create_batch()
        batch.append(key=key, value=value, timestamp=None, headers=[("RAWNAME", b"y")])
        batch.close()
        raw = bytearray(batch._build().replace(b"RAWNAME", b"\xff" * 7))
        raw[17:21] = crc32c(bytes(raw[21:])).to_bytes(4, "big")
        batch._buffer = bytes(raw)
        told = await (await self._producer.send_batch(batch, topic, partition=partition))
        place = Place(topic, told.partition, told.offset)
        self.house.note_unreadable(place)
        return place

    # What it asks for

    def event(self, conversation: UUID, turn: UUID, data: Data, **changes: Any) -> Event[Any]:
        """An event of this front end's tenant."""
        event: Event[Any] = Event(
            id=self._clock.new_id(),
            source=SOURCE,
            tenant_id=self.key.tenant_id,
            conversation_id=conversation,
            correlation_id=turn,
            occurred_at=self._clock.now(),
            data=data,
        )
        return replace(event, **changes)

    def create(self, principal: UUID, key: str) -> Event[Any]:
        """A request for a conversation."""
        conversation = ids.conversation_id(self.key.tenant_id, principal, key)
        request = self._clock.new_id()
        data = ConversationCreateRequestedV1(request_id=request, principal_id=principal, key=key)
        return self.event(conversation, conversation, data, id=request)

    def turn(
        self, conversation: UUID, principal: UUID, text: str, *, key: str | None = None
    ) -> Event[Any]:
        """A request for an answer."""
        request = self._clock.new_id()
        key = key or request.hex
        data = TurnRequestedV1(
            request_id=request, principal_id=principal, key=key, parts=(TextPart(text=text),)
        )
        turn = ids.turn_id(self.key.tenant_id, conversation, key)
        return self.event(conversation, turn, data, id=request)

    async def ask(self, event: Event[Any]) -> Place:
        """Publish a request as it should be."""
        value = encode(event)
        return await self.publish(
            TURN_REQUESTS, str(event.conversation_id).encode(), value, self.key.sign(value)
        )

    async def outcome(self, event: Event[Any], *, within_s: float = 20.0) -> dict[str, Any]:
        """The row that decided a request."""
        found: list[dict[str, Any]] = []

        async def is_decided() -> bool:
            found[:] = await self.house.rows(
                "select * from ingestion.request_outcomes where request_id = %s", event.id
            )
            return bool(found)

        await until(is_decided, within_s=within_s)
        return found[0]


@dataclass(frozen=True, slots=True)
class Visitor:
    """A foreign front end with a conversation of its own."""

    front: FrontEnd
    principal: UUID
    conversation: UUID

    def turn(self, text: str = "May I?") -> Event[Any]:
        """A request that is as it should be."""
        return self.front.turn(self.conversation, self.principal, text)
