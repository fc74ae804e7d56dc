"""What a fault is: put in, healed, and counted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.chaos.house import ChaosHouse


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault that was put in.

    Attributes:
        kind: As the fault names itself, such as ``kill9`` or ``broker_kill``.
        target: What was hit, such as ``ingestion-1`` or ``edge ingestion-postgres``.
        at_s: Monotonic seconds since the run's start.
        healed_s: Ditto, when it was healed.
        touched: Figures of its own, such as ``{'records': 12}``.
    """

    kind: str
    target: str
    at_s: float
    healed_s: float
    touched: dict[str, int] = field(default_factory=dict)


class Fault(Protocol):
    """A fault of one kind, used for one injection.

    Attributes:
        kind: Stable name, counted in the report.
        duration_s: Seconds until the schedule calls ``heal``; 0 is a fault of one shot.
    """

    kind: str
    duration_s: float

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Put it in; returns the target."""
        ...

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """End it, and see that the part works again; returns figures of its own."""
        ...
