"""The clock as a port, so that a simulation can own time."""

import asyncio
import os
import time
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

from libs.ids import uuid7


class Clock(Protocol):
    """Time and fresh ids as the process sees them; the database's clock decides about leases."""

    def now(self) -> datetime:
        """The current time, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards; only differences mean anything."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait for that many seconds."""
        ...

    def new_id(self) -> UUID:
        """A fresh uuid7."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """The current time, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """Wait on the event loop."""
        await asyncio.sleep(delay_s)

    def new_id(self) -> UUID:
        """A fresh uuid7 from the system's time and randomness."""
        return uuid7(time.time_ns() // 1_000_000, os.urandom(10))
