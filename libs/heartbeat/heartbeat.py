"""Writes one row every few seconds while the process runs, and takes it back in the end."""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from uuid import UUID

import orjson
import structlog

from libs.clock import Clock
from libs.errors import StoreUnavailable
from libs.postgres import Database, load_queries
from libs.telemetry.ops_server import Check, CheckResult, run_checks

EVERY_S = 5.0
"""Between two beats; whoever reads them calls a process silent after four that are missing."""

KEEP_S = 900.0
"""A row that nobody renews is a process that died; an operator sees it for a quarter of an hour."""

_SQL = load_queries("libs.heartbeat")


class Heartbeat:
    """The row of one process in its schema's table ``instances``.

    Args:
        checks: What ``/readyz`` asks.
        lag: Records that wait, by topic, as they were last counted.
    """

    def __init__(
        self,
        database: Database,
        *,
        instance_id: UUID,
        version: str,
        checks: Mapping[str, Check],
        lag: Callable[[], Mapping[str, int]],
        clock: Clock,
    ) -> None:
        self._database = database
        self._instance_id = instance_id
        self._version = version
        self._checks = checks
        self._lag = lag
        self._clock = clock
        self._log = structlog.get_logger(__name__)

    async def run(self) -> None:
        """Beat until cancelled; a database that is away is tried again at the next beat."""
        while True:
            try:
                await self.beat()
            except StoreUnavailable as error:
                self._log.info("heartbeat.missed", cause=error.code)
            await self._clock.sleep(EVERY_S)

    async def beat(self) -> None:
        """Say once that the process runs, and drop the rows of those that said nothing for long.

        Raises:
            StoreUnavailable: Postgres did not answer.
        """
        results = await run_checks(self._checks)
        checks = {name: _told(result) for name, result in results.items()}
        values = {
            "instance_id": self._instance_id,
            "version": self._version,
            "place": f"{socket.gethostname()}:{os.getpid()}",
            "checks": orjson.dumps(checks).decode(),
            "lag": orjson.dumps(dict(self._lag())).decode(),
        }
        async with self._database.transaction() as transaction:
            await transaction.commit_with(
                [(_SQL["beat"], values), (_SQL["forget"], {"keep_s": KEEP_S})]
            )

    async def leave(self) -> None:
        """Take the row back: the process ends in an orderly way."""
        with suppress(StoreUnavailable):
            await self._database.fetch(_SQL["leave"], {"instance_id": self._instance_id})


def _told(result: CheckResult) -> dict[str, str]:
    state = "failed" if not result.ok else "degraded" if result.degraded else "ok"
    return {"state": state, "detail": result.detail}
