"""What a log line holds, and what it can never hold."""

import asyncio
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
import structlog
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from libs.errors import LiveStreamUnavailable
from libs.telemetry.logging import configure_logging, get_logger
from libs.telemetry.tracing import Tracing

CANARY = "canary-4f1c"

DENIED = (
    "text",
    "content",
    "body",
    "authorization",
    "Authorization",
    "api_key",
    "idempotency_key",
    "secret",
    "door_secret",
    "door-mac",
    "password",
    "databasePassword",
    "messageText",
    "payload",
    "prompt",
    "value",
    "token",
)

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def stream() -> Iterator[io.BytesIO]:
    """Where the log of this process goes for one test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.BytesIO()
    configure_logging("test_service", log_format="json", stream=stream)
    yield stream
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture
def lines(stream: io.BytesIO) -> Lines:
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_json_with_time_level_event_service_and_the_fields_given(lines: Lines):
    get_logger().info("turn.accepted", turn_id="t1", seq=3)

    (line,) = lines()
    assert line.pop("ts").endswith("+00:00")
    assert line == {
        "level": "info",
        "event": "turn.accepted",
        "service": "test_service",
        "turn_id": "t1",
        "seq": 3,
    }


def test_inside_a_span_a_line_names_it(lines: Lines):
    with Tracing().span("work") as span:
        get_logger().info("inside")
    get_logger().info("outside")

    inside, outside = lines()
    assert span.traceparent == f"00-{inside['trace_id']}-{inside['span_id']}-01"
    assert "trace_id" not in outside


def test_what_is_below_the_level_is_not_written(lines: Lines):
    get_logger().debug("detail")

    assert lines() == []


def test_no_body_key_or_secret_is_written_whatever_it_is_called(stream: io.BytesIO):
    log = get_logger()
    for name in DENIED:
        log.info("event", **{name: CANARY})
        log.info("event", nested={"deep": [{name: CANARY}]})
    log.info("event", raw=CANARY.encode())
    log.info("event", headers={"authorization": f"Bearer {CANARY}"})

    assert stream.getvalue().count(b"\n") == 2 * len(DENIED) + 2
    assert CANARY.encode() not in stream.getvalue()


def test_ids_counts_and_sizes_are_written_although_their_names_sound_alike(lines: Lines):
    get_logger().info("event", key_id="k1", message_ids=["m1"], text_bytes=7, tokens={"message": 3})

    (line,) = lines()
    assert (line["key_id"], line["message_ids"], line["text_bytes"]) == ("k1", ["m1"], 7)
    assert line["tokens"] == {"message": 3}


def test_a_foreign_exception_is_told_by_type_and_place_without_its_words(
    stream: io.BytesIO, lines: Lines
):
    class Row(BaseModel):
        count: int

    try:
        Row.model_validate({"count": CANARY})
    except ValidationError:
        get_logger().exception("failed")

    (line,) = lines()
    assert CANARY.encode() not in stream.getvalue()
    assert line["level"] == "error"
    assert line["error"].endswith("ValidationError")
    assert any("test_logging.py" in frame for frame in line["frames"])


def test_our_own_exception_is_told_in_its_words(lines: Lines):
    error = LiveStreamUnavailable("Redis is not connected")

    get_logger().warning("failed", exc_info=error)

    (line,) = lines()
    assert line["error"] == "libs.errors.LiveStreamUnavailable"
    assert line["error_says"] == "Redis is not connected"


def test_libraries_log_the_same_way_from_warning_upwards(lines: Lines):
    library = logging.getLogger("aiokafka.consumer")
    library.info("chatter")
    library.warning("lost %s of %d %%", "one", 2)

    (line,) = lines()
    assert (line["event"], line["logger"]) == ("lost one of 2 %", "aiokafka.consumer")
    assert (line["level"], line["service"]) == ("warning", "test_service")


def test_of_a_library_only_the_first_line_is_kept(stream: io.BytesIO, lines: Lines):
    logging.getLogger("anything").error("it failed\nvalue: %s", CANARY)

    assert lines()[0]["event"] == "it failed"
    assert CANARY.encode() not in stream.getvalue()


async def test_an_error_that_nobody_awaited_is_logged_without_its_words(
    stream: io.BytesIO, lines: Lines
):
    async def fail() -> None:
        raise ValueError(CANARY)

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    del task

    (line,) = lines()
    assert line["event"] == "Task exception was never retrieved"
    assert line["error"] == "builtins.ValueError"
    assert CANARY.encode() not in stream.getvalue()


def test_warnings_become_lines(lines: Lines):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old way", DeprecationWarning, stacklevel=1)

    assert lines()[0]["logger"] == "py.warnings"


def test_long_values_and_long_lists_are_cut(stream: io.BytesIO, lines: Lines):
    get_logger().info("event", note="x" * 100_000, many=list(range(1_000)))

    assert len(stream.getvalue()) < 3_000
    assert lines()[0]["many"] == "[1000]"


def test_values_that_json_does_not_know_do_not_break_the_line(lines: Lines):
    get_logger().info("event", error=ValueError, numbers={1, 2}, mapping={1: "a"})

    assert sorted(lines()[0]["numbers"]) == [1, 2]


def test_people_get_text_without_secrets(stream: io.BytesIO):
    configure_logging("test_service", log_format="console", stream=stream)

    get_logger().info("turn.accepted", seq=3, text=CANARY)

    written = stream.getvalue().decode()
    assert "turn.accepted" in written
    assert "seq" in written
    assert CANARY not in written
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(written)


def test_the_environment_chooses_the_format(monkeypatch: pytest.MonkeyPatch, stream: io.BytesIO):
    monkeypatch.setenv("LOG_FORMAT", "console")
    configure_logging("test_service", stream=stream)

    get_logger().info("hello")

    assert not stream.getvalue().startswith(b"{")


def test_lines_go_to_standard_output_by_default(stream: io.BytesIO, capfdbinary):
    configure_logging("test_service", log_format="json")

    get_logger().info("hello")
    sys.stdout.flush()

    assert orjson.loads(capfdbinary.readouterr().out)["event"] == "hello"
    assert stream.getvalue() == b""


SCHEMA = json.loads(
    (Path(__file__).resolve().parents[4] / "libs/telemetry/log_line.schema.json").read_text()
)


def test_lines_of_ours_and_of_libraries_fit_the_schema_of_log_lines(stream: io.BytesIO):
    configure_logging("ingestion", log_format="json", stream=stream)
    judge = Draft202012Validator(SCHEMA)
    with Tracing().span("work"):
        get_logger().info("turn.accepted", turn_id="t1", seq=3, wait_s=0.5)
    get_logger().error("kafka.batch_failed", exc_info=LiveStreamUnavailable("away"), failures=2)
    logging.getLogger("aiokafka").warning("A message of a library, %s", 3)

    for line in stream.getvalue().splitlines():
        judge.validate(json.loads(line))
    assert len(stream.getvalue().splitlines()) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"event": "Something happened"},
        {"ts": "yesterday"},
        {"service": "elsewhere"},
        {"level": "loud"},
        {"trace_id": "short"},
        {"Camel": 1},
        {"wait_s": "long"},
        {"frames": ["x"] * 13},
    ],
)
def test_a_line_against_the_schema_is_noticed(change: dict[str, Any]):
    line = {
        "ts": "2026-03-01T09:30:00.125+00:00",
        "level": "info",
        "event": "turn.accepted",
        "service": "ingestion",
    }
    Draft202012Validator(SCHEMA).validate(line)

    with pytest.raises(jsonschema.ValidationError):
        Draft202012Validator(SCHEMA).validate({**line, **change})
