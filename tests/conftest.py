"""Fixtures that every lane shares: real parts, started when first used, ended with the session."""

import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis
import structlog

from deploy.local.stack import LlmEndpoint
from tests.rig import parts
from tests.rig.parts import TestDatabase

FIRST_TEST_DATABASE, LAST_TEST_DATABASE = 1, 15  # Redis has 16 by default; 0 stays untouched


@pytest.fixture(autouse=True)
def _own_log() -> Iterator[None]:
    """What a test does to the log of this process (by a command it runs here) ends with it."""
    root = logging.getLogger()
    handlers, level, config = list(root.handlers), root.level, structlog.get_config()
    yield
    structlog.configure(**config)
    logging.captureWarnings(capture=False)
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a superuser; for tests that make databases themselves."""
    with parts.postgres(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture(scope="session")
def database_template(postgres_server: str) -> Iterator[str]:
    """The name of a migrated database, copied for each test that wants one."""
    with parts.migrated_template(postgres_server) as name:
        yield name


@pytest.fixture
def database(postgres_server: str, database_template: str) -> Iterator[TestDatabase]:
    """A migrated database of this test alone: ``admin_url``, and ``url_of(service)`` by role."""
    with parts.fresh_database(postgres_server, template=database_template) as database:
        yield database


@pytest.fixture
def database_url(database: TestDatabase) -> str:
    """Superuser's URL of a migrated database of this test alone."""
    return database.admin_url


@pytest.fixture
def empty_database_url(postgres_server: str) -> Iterator[str]:
    """Superuser's URL of a database without anything in it."""
    with parts.fresh_database(postgres_server) as database:
        yield database.admin_url


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of database 0, which tests leave alone."""
    with parts.valkey(tmp_path_factory.mktemp("valkey")) as url:
        yield url


@pytest.fixture(scope="session")
def _next_redis_database() -> Iterator[int]:
    """Counts through the logical databases, so that a test's late writer misses the next test."""

    def numbers() -> Iterator[int]:
        while True:
            yield from range(FIRST_TEST_DATABASE, LAST_TEST_DATABASE + 1)

    return numbers()


@pytest.fixture
def redis_url(redis_server: str, _next_redis_database: Iterator[int]) -> str:
    """URL of an empty logical database. Channels are shared by all of them: use unique ids."""
    number = next(_next_redis_database)
    url = urlunsplit(urlsplit(redis_server)._replace(path=f"/{number}"))
    with redis.Redis.from_url(url, socket_timeout=5) as client:
        client.flushdb()
    return url


@pytest.fixture(scope="session")
def kafka_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of one broker for the session; use topic names of your own."""
    with parts.kafka(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


@pytest.fixture
def topic_prefix() -> str:
    """Makes the names of one test's topics and consumer groups unique."""
    return f"test-{secrets.token_hex(4)}."


@pytest.fixture(scope="session")
def model_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlmEndpoint]:
    """The demo's model: ``base_url``, ``api_key``, ``model``."""
    with parts.model(tmp_path_factory.mktemp("model")) as endpoint:
        yield endpoint


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data folder for a local stack; not made yet."""
    return tmp_path / "data"
