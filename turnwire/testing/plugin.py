"""The pytest plugin: fixtures for tests against a running Turnwire.

Say where it is with ``--turnwire-url`` or ``TURNWIRE_URL``; the key comes from ``TURNWIRE_API_KEY``
alone, since command lines are seen by others. A test that asks for a fixture without them fails:
a test that was skipped for want of a server has shown nothing.
"""

import os
from collections.abc import Iterator

import pytest

from turnwire.client import Client
from turnwire.models import Conversation

URL_VARIABLE = "TURNWIRE_URL"
KEY_VARIABLE = "TURNWIRE_API_KEY"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the server."""
    group = parser.getgroup("turnwire", "tests against a running Turnwire")
    group.addoption(
        "--turnwire-url",
        metavar="URL",
        default=None,
        help=f"of the gateway; else the environment variable {URL_VARIABLE}",
    )


@pytest.fixture(scope="session")
def turnwire_url(request: pytest.FixtureRequest) -> str:
    """Address of the gateway."""
    found = request.config.getoption("--turnwire-url") or os.environ.get(URL_VARIABLE)
    if not found:
        pytest.fail(
            f"No Turnwire is named. Start one, then give --turnwire-url or set {URL_VARIABLE}.",
            pytrace=False,
        )
    return str(found)


@pytest.fixture(scope="session")
def turnwire_client(turnwire_url: str) -> Iterator[Client]:
    """A client with the key of the environment, open for the whole session."""
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        pytest.fail(f"No API key: set {KEY_VARIABLE}.", pytrace=False)
    with Client(turnwire_url, key) as client:
        yield client


@pytest.fixture
def turnwire_conversation(turnwire_client: Client) -> Iterator[Conversation]:
    """A conversation of the test's own, deleted after it."""
    conversation = turnwire_client.create_conversation()
    yield conversation
    turnwire_client.delete_conversation(conversation.id)
