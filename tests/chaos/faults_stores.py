"""Faults of Kafka, Postgres and Valkey themselves: killed, emptied, out of connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import redis.asyncio as redis

from deploy.local.errors import LocalStackError
from deploy.local.part import Server
from tests.chaos.house import SERVICES

if TYPE_CHECKING:
    from tests.chaos.house import ChaosHouse

DOWN_S = 1.0
TRIES = 3
"""Starts of one store at most; a port may still be held for a moment after a SIGKILL."""

AGAIN_S = 1.0
FEW_CONNECTIONS = 1
"""What a role may have while its pool is exhausted; a pool of eight then waits in line for one."""

SHORT_S = 6.0
LOCKED_S = 5.0
CONNECT_S = 5
LOCKABLE = (
    "ingestion.turns",
    "ingestion.outbox",
    "context_assembly.steps",
    "llm_gateway.work",
    "llm_gateway.inbox",
)


async def start_again(server: Server) -> None:
    """Start a store on the data it has.

    Raises:
        LocalStackError: It did not come up in ``TRIES`` starts.
    """
    for left in reversed(range(TRIES)):
        try:
            await server.start()
        except LocalStackError:
            if not left:
                raise
            await asyncio.sleep(AGAIN_S)
        else:
            return


@dataclass(slots=True)
class BrokerKill:
    """Kafka dies by SIGKILL and comes back with its data, or with nothing at all.

    The topics of an empty one are made again by the services, which notice that they are gone.
    """

    is_wiped: bool = False
    kind: str = "broker_kill"
    duration_s: float = DOWN_S

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Kill it."""
        del dice
        await house.hold("kafka")
        house.note_crash("kafka")
        await house.stack.kafka.kill()
        if self.is_wiped:
            await house.stack.kafka.wipe()
        return "kafka with its data gone" if self.is_wiped else "kafka"

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Start it."""
        try:
            await start_again(house.stack.kafka)
        finally:
            house.let_go("kafka")
        return {}


def broker_wiped() -> BrokerKill:
    """Kafka comes back with all its data gone."""
    return BrokerKill(is_wiped=True, kind="broker_wiped")


@dataclass(slots=True)
class PostgresKill:
    """Postgres dies by SIGKILL, or stops without a checkpoint, and recovers from its log."""

    is_killed: bool = True
    kind: str = "postgres_kill"
    duration_s: float = DOWN_S

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """End it."""
        del dice
        await house.hold("postgres")
        house.note_crash("postgres")
        server = house.stack.postgres
        await (server.kill() if self.is_killed else server.stop_immediately())
        return "postgres"

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Start it."""
        try:
            await start_again(house.stack.postgres)
        finally:
            house.let_go("postgres")
        return {}


def postgres_stop() -> PostgresKill:
    """Postgres stops at once, as after a failed disk."""
    return PostgresKill(is_killed=False, kind="postgres_stop")


@dataclass(slots=True)
class RedisKill:
    """Valkey dies by SIGKILL; it keeps nothing, so it comes back empty."""

    kind: str = "redis_kill"
    duration_s: float = DOWN_S

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Kill it."""
        del dice
        await house.hold("redis")
        await house.stack.valkey.kill()
        return "redis"

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Start it."""
        try:
            await start_again(house.stack.valkey)
        finally:
            house.let_go("redis")
        return {}


@dataclass(slots=True)
class RedisFlush:
    """Valkey is emptied between two commands: streams, rings and scripts are gone."""

    kind: str = "redis_flush"
    duration_s: float = 0.0

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Empty it."""
        del dice
        async with house.holding("redis"), redis.Redis.from_url(house.redis_url) as client:
            await client.flushall()
            await client.script_flush()
        return "redis"

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Nothing is left to heal."""
        del house
        return {}


async def _administer(house: ChaosHouse, *statements: str) -> int:
    """Run statements as the superuser; the rows that the last one touched."""
    async with await psycopg.AsyncConnection.connect(
        house.database_url, autocommit=True, connect_timeout=CONNECT_S
    ) as connection:
        count = 0
        for statement in statements:
            cursor = await connection.execute(statement.encode())
            count = cursor.rowcount
        return count


def _end_backends(service: str) -> str:
    return (
        f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{_role(service)}'"  # noqa: S608
    )


def _role(service: str) -> str:
    return f"turnwire_{service}"


@dataclass(slots=True)
class PoolExhausted:
    """A service's role may have hardly any connection: its pools cannot be filled again."""

    kind: str = "pool_exhausted"
    duration_s: float = SHORT_S
    _service: str = ""

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Limit the role, and end what it has."""
        await house.hold("postgres")
        self._service = dice.choice(SERVICES)
        limit = f"alter role {_role(self._service)} connection limit {FEW_CONNECTIONS}"
        await _administer(house, limit, _end_backends(self._service))
        return self._service

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Lift the limit."""
        try:
            await _administer(house, f"alter role {_role(self._service)} connection limit -1")
        finally:
            house.let_go("postgres")
        return {}


@dataclass(slots=True)
class BackendsEnded:
    """Every connection of one service is ended by the server, whatever it was doing."""

    kind: str = "backends_ended"
    duration_s: float = 0.0
    _ended: int = 0

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """End them."""
        service = dice.choice(SERVICES)
        async with house.holding("postgres"):
            self._ended = await _administer(house, _end_backends(service))
        return service

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """The pools fill themselves."""
        del house
        return {"backends": self._ended}


@dataclass(slots=True)
class TableLocked:
    """A table is locked as a migration would: whoever needs it waits and runs into its limit."""

    kind: str = "table_locked"
    duration_s: float = LOCKED_S
    _connection: psycopg.AsyncConnection[tuple[object, ...]] | None = None

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Lock it in a transaction that stays open."""
        await house.hold("postgres")
        table = dice.choice(LOCKABLE)
        self._connection = await psycopg.AsyncConnection.connect(
            house.database_url, connect_timeout=CONNECT_S
        )
        await self._connection.execute(f"lock table {table} in access exclusive mode".encode())
        return table

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Roll back."""
        try:
            if self._connection is not None:
                with contextlib.suppress(psycopg.OperationalError):
                    await self._connection.close()
        finally:
            house.let_go("postgres")
        return {}
