import socket
from pathlib import Path
from threading import Thread

import pytest

from tests.rig import parts
from tests.rig.parts import TestDatabase


def test_a_url_in_the_environment_is_used_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere/0")
    monkeypatch.delenv("TURNWIRE_TEST_PARTS", raising=False)
    assert parts.source("REDIS_URL") == "given"


def test_docker_can_be_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setenv("TURNWIRE_TEST_PARTS", "local")
    assert parts.source("REDIS_URL") == "local"


def test_without_an_engine_a_part_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.delenv("TURNWIRE_TEST_PARTS", raising=False)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    parts.docker_answers.cache_clear()
    try:
        assert parts.source("REDIS_URL") == "local"
    finally:
        parts.docker_answers.cache_clear()


@pytest.mark.parametrize(("status", "source"), [(b"200 OK", "docker"), (b"503 No", "local")])
def test_an_engine_counts_when_it_answers_a_ping(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: bytes, source: str
) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.delenv("TURNWIRE_TEST_PARTS", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    parts.docker_answers.cache_clear()
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(f"{tmp_path}/engine.sock")
        engine.listen()
        answering = Thread(target=answer_once, args=(engine, status))
        answering.start()
        try:
            assert parts.source("REDIS_URL") == source
        finally:
            answering.join(timeout=5)
            parts.docker_answers.cache_clear()


def answer_once(engine: socket.socket, status: bytes) -> None:
    connection, _ = engine.accept()
    with connection:
        assert connection.recv(1_024).startswith(b"GET /_ping")
        connection.sendall(b"HTTP/1.0 " + status + b"\r\n\r\n")


def test_a_service_connects_with_a_role_of_its_own() -> None:
    database = TestDatabase("postgresql://postgres:x@127.0.0.1:5/test_1")
    assert (
        database.url_of("ingestion")
        == "postgresql://turnwire_ingestion:test-ingestion@127.0.0.1:5/test_1"
    )
