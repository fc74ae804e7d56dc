"""When to ask again and when to give up: decided in one place, without waiting itself."""

from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from turnwire.errors import ProblemError, TurnwireError, Unavailable, UnexpectedAnswer

LATER = frozenset({429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed; every request of ours may be repeated."""

IN_PROGRESS = "idempotency-in-progress"
"""The one conflict that waiting solves: the first request with this key is being decided."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client tries.

    Attributes:
        away_s: Seconds without any progress after which it gives up.
        first_pause_s: Before the second try; every further pause is twice as long.
        longest_pause_s: A pause's bound. A server that asks for more is obeyed up to ``away_s``.
        connect_s: To open a connection.
        answer_s: For one answer; above the 10 s in which the server waits for a decision.
        silence_s: Of a stream; a heartbeat comes every 15 s.
    """

    away_s: float = 60.0
    first_pause_s: float = 0.2
    longest_pause_s: float = 3.0
    connect_s: float = 5.0
    answer_s: float = 20.0
    silence_s: float = 40.0

    @property
    def of_answers(self) -> httpx.Timeout:
        """Time-outs of one request."""
        return httpx.Timeout(self.answer_s, connect=self.connect_s)

    @property
    def of_streams(self) -> httpx.Timeout:
        """Time-outs of one connection of a stream."""
        return httpx.Timeout(self.silence_s, connect=self.connect_s)


class Trying:
    """The tries of one request or stream: counts pauses, and knows when it is enough.

    Args:
        now_s: Of a clock that never goes back.
    """

    def __init__(self, patience: Patience, now_s: float) -> None:
        self._patience = patience
        self._alive_at_s = now_s
        self._pause_s = patience.first_pause_s

    def went_on(self, now_s: float) -> None:
        """Something came: all patience is there again."""
        self._alive_at_s = now_s
        self._pause_s = self._patience.first_pause_s

    def pause_after(self, error: TurnwireError, now_s: float) -> float:
        """Seconds to wait before the next try.

        Raises:
            TurnwireError: ``error`` itself, when it has been enough.
        """
        asked_s = error.retry_after_s if isinstance(error, ProblemError) else None
        pause_s = self._pause_s if asked_s is None else max(asked_s, self._pause_s)
        if now_s + pause_s - self._alive_at_s > self._patience.away_s:
            raise error
        self._pause_s = min(self._patience.longest_pause_s, 2 * self._pause_s)
        return pause_s


def lost(error: httpx.TransportError | None, *, key: str | None = None) -> Unavailable:
    """The error of a request that got no answer, and of a stream that broke off."""
    why = "the stream ended early" if error is None else type(error).__name__
    return Unavailable(
        f"The server did not answer ({why}). Check that it runs and its address; "
        "a repeat with the same key is safe.",
        key=key,
    )


def problem_of(response: httpx.Response, *, key: str | None = None) -> TurnwireError | None:
    """The error that an answer tells, its body being read; None if it tells none."""
    if response.is_success:
        return None
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, Mapping) or "code" not in document:
        text = f"HTTP {response.status_code} without a problem document"
        if response.status_code in LATER:
            return Unavailable(f"{text}: something before the server answers for it.", key=key)
        return UnexpectedAnswer(f"{text}; is the address a Turnwire gateway's?", key=key)
    return ProblemError(
        response.status_code, document, retry_after_s=_retry_after(response), key=key
    )


def is_worth_repeating(error: TurnwireError) -> bool:
    """Whether the same request may succeed in a moment."""
    if isinstance(error, ProblemError):
        return error.status in LATER or error.slug == IN_PROGRESS
    return isinstance(error, Unavailable)


def _retry_after(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None
