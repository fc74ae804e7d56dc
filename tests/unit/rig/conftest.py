"""A world in which every promise is kept, for each test to break."""

from collections.abc import Iterator

import pytest

from tests.rig.checked_world import CheckedWorld, open_world
from tests.rig.parts import TestDatabase


@pytest.fixture
def world(database: TestDatabase) -> Iterator[CheckedWorld]:
    """One that nobody has touched yet."""
    with open_world(database.admin_url) as opened:
        yield opened
