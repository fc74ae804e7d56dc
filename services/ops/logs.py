"""Keeps the log lines of what a command uses away from its result."""

import logging
import sys

from libs.telemetry.logging import configure_logging


def log_errors_to_stderr() -> None:
    """From now on log lines go to stderr, and only errors do: the command itself tells the rest."""
    configure_logging("ops", log_format="console", level="error", stream=sys.stderr.buffer)
    # It reports every attempt to connect as an error; the command says once that nobody answers.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
