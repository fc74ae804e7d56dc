"""Connections of the migrations lane: a superuser's, and one that rolls everything back."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.rig.parts import TestDatabase


@pytest.fixture
def admin(database: TestDatabase) -> Iterator[psycopg.Connection[Any]]:
    """The superuser in a migrated database of this test alone."""
    with psycopg.connect(database.admin_url, autocommit=True, connect_timeout=10) as connection:
        yield connection
