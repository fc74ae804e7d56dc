"""Log lines as JSON on standard output; no body, key or secret in any of them.

A line has ``ts, level, event, service``, where a span is open ``trace_id`` and ``span_id``, and the
fields given. Events are short names of what happened; everything variable is a field.
"""

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, BinaryIO, Literal, cast

import orjson
import structlog
from opentelemetry import trace
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from libs.errors import ChatError
from libs.telemetry.redaction import redacted

LogFormat = Literal["json", "console"]
Level = Literal["debug", "info", "warning", "error"]
Processor = Callable[[WrappedLogger, str, EventDict], Any]

FOREIGN_LEVEL = logging.WARNING
"""Of the libraries that log through the standard library; below it they describe their own work."""

MAX_FOREIGN_EVENT = 500
"""Characters of a library's message; only its first line, since the next ones quote values."""

MAX_FRAMES = 12
"""Of a traceback, the innermost ones; more does not help to find a place in the code."""


def get_logger() -> FilteringBoundLogger:
    """The logger of a module; it takes its settings from ``configure_logging`` at first use."""
    return cast("FilteringBoundLogger", structlog.get_logger())


def configure_logging(
    service: str,
    *,
    log_format: LogFormat | None = None,
    level: Level = "info",
    stream: BinaryIO | None = None,
) -> None:
    """Set up the log of this process, and send the standard library's log the same way.

    Args:
        service: Name in every line.
        log_format: ``json`` for machines, ``console`` for people; by default what the environment
            says in ``LOG_FORMAT``, else ``json``.
        level: What is below it is never built, let alone written.
        stream: Where lines go; standard output by default, looked up at every write.
    """
    chosen = log_format or ("console" if os.environ.get("LOG_FORMAT") == "console" else "json")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _Facts(service),
            _describe_exception,
            _redact,
            *(_to_json() if chosen == "json" else _to_console()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_LineFactory(stream),
        cache_logger_on_first_use=stream is None,  # a test's stream must not outlive the test
    )
    root = logging.getLogger()
    root.handlers = [_ForeignHandler()]
    root.setLevel(FOREIGN_LEVEL)
    for name in ("aiokafka", "faststream", "uvicorn", "aiohttp", "asyncio", "opentelemetry"):
        library = logging.getLogger(name)
        library.handlers = []
        library.propagate = True
        library.setLevel(FOREIGN_LEVEL)
    # Says "topic not found" a thousand times a second while one is missing; upkeep says it once.
    logging.getLogger("aiokafka.cluster").setLevel(logging.CRITICAL)
    for name in ("uvicorn.access", "uvicorn.error", "faststream.access.kafka"):
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True
    logging.captureWarnings(capture=True)


class _Lines:
    """Writes finished lines; one write and one flush each, so that a kill loses none."""

    def __init__(self, stream: BinaryIO | None) -> None:
        self._stream = stream

    def msg(self, line: bytes) -> None:
        # A log that cannot be written (a closed or full pipe) must not fail the work it tells of.
        with contextlib.suppress(OSError, ValueError):
            stream = self._stream or sys.stdout.buffer
            stream.write(line + b"\n")
            stream.flush()

    debug = info = warning = warn = error = exception = critical = fatal = log = msg


class _LineFactory:
    def __init__(self, stream: BinaryIO | None) -> None:
        self._lines = _Lines(stream)

    def __call__(self, *_args: object) -> _Lines:
        return self._lines


class _Facts:
    """Adds what every line has, first."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __call__(self, _logger: WrappedLogger, level: str, event: EventDict) -> EventDict:
        facts: EventDict = {
            "ts": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": "error" if level == "exception" else level,
            "event": event.pop("event", ""),
            "service": self._service,
        }
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            facts["trace_id"] = f"{context.trace_id:032x}"
            facts["span_id"] = f"{context.span_id:016x}"
        facts.update(event)
        return facts


def _describe_exception(_logger: WrappedLogger, _level: str, event: EventDict) -> EventDict:
    """Replace an exception by its type and places.

    Messages of foreign exceptions quote values (a validation error its input, a database error the
    row), so only those of our own errors and of the operating system are written.
    """
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["error"] = f"{type(error).__module__}.{type(error).__qualname__}"
        if isinstance(error, ChatError | OSError):
            event["error_says"] = str(error)
        sqlstate = getattr(error, "sqlstate", None)
        if sqlstate is not None:
            event["sqlstate"] = sqlstate
        event["frames"] = [
            f"{frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
        ]
    return event


def _redact(_logger: WrappedLogger, _level: str, event: EventDict) -> EventDict:
    return redacted(event)


def _to_json() -> list[Processor]:
    def render(_logger: WrappedLogger, _level: str, event: EventDict) -> bytes:
        return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS)

    return [render]


def _to_console() -> list[Processor]:
    to_text = structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty(), timestamp_key="ts")

    def render(logger: WrappedLogger, level: str, event: EventDict) -> bytes:
        return str(to_text(logger, level, event)).encode()

    return [render]


class _ForeignHandler(logging.Handler):
    """Sends a library's log record through the same processors."""

    def emit(self, record: logging.LogRecord) -> None:
        lines = record.getMessage().splitlines()
        first_line = lines[0] if lines else ""
        get_logger().log(
            record.levelno,
            first_line[:MAX_FOREIGN_EVENT],
            logger=record.name,
            exc_info=record.exc_info[1] if record.exc_info else None,
        )
