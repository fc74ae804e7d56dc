"""Fixtures and assertions for tests of programs that use Turnwire.

The fixtures of ``turnwire.testing.plugin`` are there as soon as the package is installed.
"""

from turnwire.testing.assertions import (
    assert_current_turn_once,
    assert_deterministic,
    assert_one_answer,
    assert_superseded_excluded,
    assert_within_budget,
)

__all__ = [
    "assert_current_turn_once",
    "assert_deterministic",
    "assert_one_answer",
    "assert_superseded_excluded",
    "assert_within_budget",
]
