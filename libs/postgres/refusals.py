"""Turns what a function of ours refuses into an error that names why, without psycopg's classes."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

REFUSED = "TW002"
"""What operators' functions raise where something cannot be done now."""


class RefusedByFunction(Exception):
    """A function refused; the text is its own words, written for people."""


@contextmanager
def refusals() -> Iterator[None]:
    """Inside it, what a function refuses, or waits for in vain, is a ``RefusedByFunction``."""
    try:
        yield
    except psycopg.errors.LockNotAvailable:
        msg = "something else holds its conversation; try again in some seconds"
        raise RefusedByFunction(msg) from None
    except psycopg.DatabaseError as error:
        if error.sqlstate != REFUSED:
            raise
        raise RefusedByFunction(error.diag.message_primary or "it was refused") from None
