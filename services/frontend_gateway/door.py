"""Asks ingestion: signs a request, publishes it, and waits for the row that answers it."""

import asyncio
from typing import Any

from libs.door import (
    DOOR_KEY_ID_HEADER,
    DOOR_MAC_HEADER,
    GATEWAY_DOOR_KEY_ID,
    door_mac,
    door_secret,
)
from libs.errors import QueueUnavailable, RecordTooLarge
from libs.failpoints import failpoint
from libs.kafka.publisher import Publisher, Record
from libs.telemetry.labels import ByAdmission
from schemas.envelope import MAX_RECORD_BYTES, Event, encode, headers
from schemas.registry import TURN_REQUESTS
from services.frontend_gateway.core.problems import Problem
from services.frontend_gateway.outcomes import OutcomeDesk
from services.frontend_gateway.ports import Asked, Outcome

QUEUE_FULL = "quota-exceeded"
"""What ingestion calls it that a conversation holds as many turns or branches as it may."""

RETRY_AFTER_S = 1  # an outage of seconds; the same key makes an early repeat harmless


class Door:
    """The gateway's way to ``turn.requests``.

    Args:
        master_key: Derives the secret of the gateway's own door key.
        wait_s: Longest wait from publishing to the outcome.
        rejected: Counts requests that were turned away: a part is away, or a conversation is full.
    """

    def __init__(
        self,
        publisher: Publisher,
        desk: OutcomeDesk,
        *,
        master_key: bytes,
        wait_s: float,
        rejected: ByAdmission,
    ) -> None:
        self._publisher = publisher
        self._desk = desk
        self._key_id = GATEWAY_DOOR_KEY_ID
        self._secret = door_secret(master_key, self._key_id)
        self._rejected = rejected
        self._wait_s = wait_s

    async def ask(self, event: Event[Any]) -> Outcome:
        """Publish a request and return its committed outcome.

        Raises:
            Problem: ``payload-too-large`` before publishing; ``dependency-unavailable`` if Kafka
                did not take it or no row came in time. The request may still be carried out, and
                repeating it with the same key is safe.
        """
        value = encode(event)
        if len(value) > MAX_RECORD_BYTES:
            raise _too_large(len(value))
        try:
            async with (
                asyncio.timeout(self._wait_s),
                self._desk.expect(Asked(event.tenant_id, event.id)) as answer,
            ):
                await self._publish(event, value)
                failpoint("gateway.after_publish")
                outcome = await answer
        except TimeoutError:
            self._rejected.labels("dependency").inc()
            detail = (
                f"The message was not decided within {self._wait_s:g} s. It may still be: repeat "
                "the request with the same key to learn its outcome."
            )
            raise unavailable(detail) from None
        if outcome.problem is not None and outcome.problem.get("code") == QUEUE_FULL:
            self._rejected.labels("queue_full").inc()
        return outcome

    async def _publish(self, event: Event[Any], value: bytes) -> None:
        signed = {
            **headers(event),
            DOOR_KEY_ID_HEADER: str(self._key_id),
            DOOR_MAC_HEADER: door_mac(self._secret, value),
        }
        record = Record(
            TURN_REQUESTS,
            str(event.conversation_id).encode(),
            value,
            tuple((name, text.encode()) for name, text in signed.items()),
        )
        (failure,) = await self._publisher.publish([record])
        if isinstance(failure, RecordTooLarge):
            raise _too_large(len(value))
        if isinstance(failure, QueueUnavailable):
            self._rejected.labels("dependency").inc()
            detail = (
                "The queue did not take the message in time. Nothing is known to be stored: repeat "
                "the request with the same key."
            )
            raise unavailable(detail) from failure
        if failure is not None:
            raise failure


def unavailable(detail: str) -> Problem:
    """The answer while a part that writing needs is away."""
    return Problem("dependency-unavailable", detail, retry_after_s=RETRY_AFTER_S)


def _too_large(size_bytes: int) -> Problem:
    detail = (
        f"The message takes {size_bytes} bytes when encoded, allowed are {MAX_RECORD_BYTES}. "
        "Shorten it; control characters and quotes take more room than they seem to."
    )
    return Problem("payload-too-large", detail)
