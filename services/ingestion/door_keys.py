"""The door keys of all front ends, read from the gateway's view and kept for a few seconds."""

from collections.abc import Collection, Mapping
from uuid import UUID

from libs.clock import Clock
from libs.postgres import Database
from services.ingestion.core.door import DoorKey
from services.ingestion.statements import SQL

MAX_AGE_S = 2.0
"""A revoked key is refused at most this much later; the promise is 5 s."""


class DoorKeys:
    """All keys, revoked ones too; there are as many as there are front ends."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._keys: Mapping[UUID, DoorKey] = {}
        self._read_at_s: float | None = None

    async def for_records(self, asked: Collection[UUID]) -> Mapping[UUID, DoorKey]:
        """The keys, young enough to judge records signed with ``asked``.

        A key that is not known yet may have been made a moment ago: it is looked for at once, since
        a record that is refused is refused for good.

        Raises:
            StoreUnavailable: The keys are too old and cannot be read; nobody is refused for that.
        """
        now_s = self._clock.monotonic()
        is_old = self._read_at_s is None or now_s - self._read_at_s > MAX_AGE_S
        if is_old or any(key not in self._keys for key in asked):
            rows = await self._database.fetch(SQL["door_keys"])
            self._keys = {
                row["id"]: DoorKey(row["id"], row["tenant_id"], row["is_revoked"]) for row in rows
            }
            self._read_at_s = now_s
        return self._keys
