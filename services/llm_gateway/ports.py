"""What the service asks of a model provider."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from libs.errors import ChatError
from services.llm_gateway.core.completions import Part
from services.llm_gateway.core.failures import Failure


class ProviderFailed(ChatError):
    """One request to a provider failed.

    Attributes:
        failure: What happened; whether to ask again is decided in ``core.failures``.
    """

    code = "provider.failed"

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"the provider failed: {failure.kind} (status {failure.status})")
        self.failure = failure


class Provider(Protocol):
    """Streams one chat completion per call."""

    @property
    def name(self) -> str:
        """Label of spans and metrics."""
        ...

    @property
    def server(self) -> tuple[str, int] | None:
        """Host and port that requests go to; None where they go nowhere."""
        ...

    def stream(self, payload: bytes) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Part]]]:
        """Send a payload, unchanged but for transport fields, and read the answer as it comes.

        Entering sends the request and waits for the answer's head. Each item holds what the events
        of one packet mean, and may be empty; a packet that completes no event is no item. Leaving
        early closes the connection, which stops the provider. No time limit of its own beyond
        connecting: the caller holds the deadline.

        Raises:
            ProviderFailed: On entering or while reading. Text read before it stays valid.
        """
        ...
