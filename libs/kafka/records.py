"""Records as they come from a topic, and as a handler gets them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from schemas.envelope import Event

Partition: TypeAlias = tuple[str, int]
"""Topic and number."""


class RawRecord(Protocol):
    """What a consumer hands out; aiokafka's ``ConsumerRecord`` is one."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        ...

    @property
    def partition(self) -> int:
        """Number of the partition."""
        ...

    @property
    def offset(self) -> int:
        """Position in the partition."""
        ...

    @property
    def key(self) -> bytes | None:
        """The conversation's id as text, if the producer followed the contract."""
        ...

    @property
    def value(self) -> bytes | None:
        """The event's JSON, if the producer followed the contract."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Names and values; a foreign producer may send anything."""
        ...


@dataclass(frozen=True, slots=True)
class Delivery:
    """One readable record: where it stood, and the event in it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    value: bytes
    event: Event[Any]

    def header(self, name: str) -> bytes | None:
        """The first header of that name."""
        return next((value for known, value in self.headers if known == name), None)


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """A record that will not be handled.

    Attributes:
        delivery: The same record as an event, where it could be read.
        reason: One short name, a metric label.
        error: What was wrong, without a byte of the record.
        attempts: How often its handler was tried.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    value: bytes | None
    reason: str
    error: str
    delivery: Delivery | None = None
    attempts: int = 0


class RecordSource(Protocol):
    """The consumer as the loop needs it: where to go on, and what is done."""

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        """Read those partitions again from these offsets; unassigned ones are left alone."""
        ...

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """Store the next offsets of the group.

        Returns:
            False when the broker did not answer in time: the offsets may be tried again. An offset
            of an epoch that is over is dropped and counts as committed: it must never be retried.
        """
        ...
