"""Handles dead letters again that an operator asked for.

The record goes through its consumer's own loop and not through its topic: a consumer may not write
there, and everybody else who reads the topic has had it.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from libs.clock import Clock
from libs.errors import StoreUnavailable
from libs.kafka.loop import BatchLoop
from libs.postgres import Database, Row, load_queries

EVERY_S = 2.0
"""How soon an operator sees what came of it; a look reads an index that is empty otherwise."""

HOLD_S = 60.0
"""Longer than a record may take; a process that died leaves its records to another one then."""

MAX_PER_LOOK = 20
"""Records of one look; they share the loop with what the topic brings."""

_SQL = load_queries("libs.kafka")


@dataclass(frozen=True, slots=True)
class _Record:
    """A dead letter as the record that it was."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Redriving:
    """The dead letters of all consumers of one process."""

    def __init__(self, database: Database, loops: Sequence[BatchLoop], *, clock: Clock) -> None:
        self._database = database
        self._loops = loops
        self._clock = clock
        self._log = structlog.get_logger(__name__)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                for loop in self._loops:
                    await self.look(loop)
            except StoreUnavailable as error:
                self._log.info("kafka.redriving_waits", cause=error.code)
            await self._clock.sleep(EVERY_S)

    async def look(self, loop: BatchLoop) -> int:
        """Handle what was asked for of one consumer; how many records were tried.

        Raises:
            StoreUnavailable: No database; the records are tried again.
        """
        values = {
            "consumer": loop.handler.consumer,
            "hold_s": HOLD_S,
            "max_rows": MAX_PER_LOOK,
        }
        rows = await self._database.fetch(_SQL["take_redrives"], values)
        for row in rows:
            dead = await loop.handle_again(_record(row))
            closing = {
                "id": row["id"],
                "reason": None if dead is None else dead.reason,
                "error": None if dead is None else dead.error,
            }
            await self._database.fetch(_SQL["close_redrive"], closing)
            self._log.warning(
                "kafka.record_redriven",
                topic=row["topic"],
                partition=row["partition"],
                offset=row["offset"],
                reason="handled" if dead is None else dead.reason,
            )
        return len(rows)


def _record(row: Row) -> _Record:
    return _Record(
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        key=_bytes(row["key"]),
        value=_bytes(row["value"]),
        headers=tuple(_header(pair) for pair in row["headers"]),
    )


def _bytes(value: bytes | memoryview | None) -> bytes | None:
    return None if value is None else bytes(value)


def _header(pair: Any) -> tuple[str, bytes | None]:
    """As ``libs.kafka.parking`` stored it: two base64 texts, the second may be missing."""
    name, value = pair
    text = base64.b64decode(name).decode("utf-8", "surrogateescape")
    return text, None if value is None else base64.b64decode(value)
