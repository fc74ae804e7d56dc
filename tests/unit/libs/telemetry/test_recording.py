"""What is sent with traces, as a collector hears it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from libs.telemetry.recording import exporter


class Hearing(HTTPServer):
    """Takes one request and keeps its headers."""

    heard: dict[str, str]


class _Handler(BaseHTTPRequestHandler):
    server: Hearing

    def do_POST(self) -> None:
        self.server.heard = {name.lower(): value for name, value in self.headers.items()}
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- as the base has it
        """Nothing: the test reads what was heard."""


@pytest.fixture
def collector() -> Iterator[Hearing]:
    with Hearing(("127.0.0.1", 0), _Handler) as server:
        server.timeout = 5
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        yield server
        answering.join(10)


@pytest.mark.parametrize("is_file", [False, True])
def test_the_headers_come_from_a_variable_or_from_a_file(
    is_file: bool, collector: Hearing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = tmp_path / "headers"
    mounted.write_text("Authorization=Basic%20c2VjcmV0\n", encoding="utf-8")
    url = f"http://127.0.0.1:{collector.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_HEADERS", raising=False)
    if is_file:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS_FILE", str(mounted))
    else:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", mounted.read_text(encoding="utf-8"))

    sending = exporter()
    sending.export([])
    sending.shutdown()

    assert collector.heard["authorization"] == "Basic c2VjcmV0"
