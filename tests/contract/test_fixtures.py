"""The fixtures give each test parts that no other test has touched."""

import psycopg
import pytest
import redis.asyncio

from tests.rig import parts
from tests.rig.parts import TestDatabase, with_database


@pytest.mark.redis
@pytest.mark.parametrize("_round", range(2))
async def test_every_test_starts_with_an_empty_redis(redis_url: str, _round: int) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert await client.dbsize() == 0
        await client.set("left", "behind")


@pytest.mark.postgres
@pytest.mark.parametrize("_round", range(2))
async def test_every_test_starts_with_an_empty_database(
    empty_database_url: str, _round: int
) -> None:
    async with await psycopg.AsyncConnection.connect(empty_database_url) as connection:
        await connection.execute("CREATE TABLE left_behind ()")


@pytest.mark.postgres
@pytest.mark.parametrize("_round", range(2))
async def test_every_test_starts_with_a_migrated_database_that_each_service_can_enter(
    database: TestDatabase, _round: int
) -> None:
    for service in parts.ROLES:
        async with await psycopg.AsyncConnection.connect(database.url_of(service)) as connection:
            await connection.execute("SELECT turnwire.clock()")


@pytest.mark.postgres
def test_a_database_is_gone_after_its_test_even_while_somebody_uses_it(
    postgres_server: str,
) -> None:
    with parts.fresh_database(postgres_server) as database:
        connection = psycopg.connect(database.admin_url)
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(database.admin_url)
    with psycopg.connect(with_database(postgres_server, "postgres")):
        pass
