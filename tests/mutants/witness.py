"""A plug-in of pytest that writes down, a line of JSON each, how every test phase ended.

An exit status says that something was red. Whether it was the test's own assertion, rather than an
import or a part that did not start, only the exception tells.
"""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import orjson
import pytest

import services

FILE_VARIABLE = "TURNWIRE_MUTANTS_WITNESS"
TIMEOUT = "Timeout"  # how pytest-timeout begins what it fails with
LONGEST_TEXT = 300


def is_assertion(error: BaseException) -> bool:
    """Whether a test said no, rather than broke."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_assertion(one) for one in error.exceptions)
    if isinstance(error, pytest.fail.Exception):
        return not str(error).startswith(TIMEOUT)
    return isinstance(error, AssertionError)


def _note(**facts: object) -> None:
    with Path(os.environ[FILE_VARIABLE]).open("ab") as file:
        file.write(orjson.dumps(facts) + b"\n")


def pytest_sessionstart() -> None:
    """Say which tree is tested."""
    _note(root=str(Path(services.__file__).parents[1]))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Note one phase of one test."""
    report = (yield).get_result()
    error = call.excinfo.value if call.excinfo is not None and report.failed else None
    _note(
        test=item.nodeid,
        when=report.when,
        outcome=report.outcome,
        error=None if error is None else type(error).__name__,
        text="" if error is None else str(error)[:LONGEST_TEXT],
        is_assertion=error is not None and is_assertion(error),
    )
