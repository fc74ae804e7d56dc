"""Which failure of a provider this is, and whether asking again can help.

Only a failure before the first delta may be repeated: after it, a second answer would be glued to
the half of the first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus

from libs.retry import Backoff
from services.llm_gateway.core.provider_codes import is_code

MAX_REQUESTS = 3
"""Requests to the provider inside one attempt, the first included."""

MAX_RETRY_AFTER_S = 3600.0
"""A provider that asks for more is not coming back for this turn; also bounds a hostile header."""

IDLE_TIMEOUT = "idle_timeout"
"""The turn's reason where the provider fell silent, whether or not anything was shown."""


class FailureKind(StrEnum):
    """What went wrong; the label of the metric and the class in the attempt's row."""

    REFUSED = "refused"  # the connection was not accepted
    TIMEOUT = "timeout"  # while connecting, or by the provider's own word
    IDLE = "idle"  # connected, and silent for longer than is waited
    CUT = "cut"  # the stream ended or broke before its end
    MALFORMED = "malformed"  # what came is not the protocol
    THROTTLED = "throttled"
    SERVER_ERROR = "server_error"
    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    CONTEXT_LENGTH = "context_length"
    SAFETY = "safety"


RETRIED = frozenset(
    {
        FailureKind.REFUSED,
        FailureKind.TIMEOUT,
        FailureKind.IDLE,
        FailureKind.CUT,
        FailureKind.MALFORMED,
        FailureKind.THROTTLED,
        FailureKind.SERVER_ERROR,
    }
)

_REASONS = {
    FailureKind.BAD_REQUEST: "provider_refused",
    FailureKind.UNAUTHORIZED: "provider_refused",
    FailureKind.SAFETY: "provider_refused",
    FailureKind.CONTEXT_LENGTH: "context_too_large",
    FailureKind.IDLE: IDLE_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request.

    Attributes:
        status: HTTP status; None where there was none.
        code: The provider's own short code; never its message, which may quote text.
        retry_after_s: Seconds the provider asked us to wait; None if it did not say.
    """

    kind: FailureKind
    status: int | None = None
    code: str | None = None
    retry_after_s: float | None = None

    @property
    def reason(self) -> str:
        """The turn's reason if this failure is the last word and nothing was shown."""
        return _REASONS.get(self.kind, "provider_unavailable")


@dataclass(frozen=True, slots=True)
class Repeat:
    """Ask again after ``delay_s`` seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Asking again cannot help, is not allowed, or cannot end in time."""

    reason: str


def after_failure(
    failure: Failure, *, requests: int, shown: bool, left_s: float, jitter: float
) -> Repeat | GiveUp:
    """Choose what follows a failed request.

    Args:
        failure: What happened.
        requests: Requests made so far in this attempt, at least 1.
        shown: Whether a delta was already passed on.
        left_s: Seconds until the step's deadline.
        jitter: Uniform in [0, 1). What the provider asked for is never undercut, only stretched.
    """
    if shown:
        return GiveUp(IDLE_TIMEOUT if failure.kind is FailureKind.IDLE else "provider_cut")
    if failure.kind not in RETRIED or requests >= MAX_REQUESTS:
        return GiveUp(failure.reason)
    backoff_s = _BACKOFF.delay_s(requests, jitter=jitter)
    asked_s = failure.retry_after_s
    delay_s = backoff_s if asked_s is None else asked_s + backoff_s * jitter
    if delay_s >= left_s:
        return GiveUp(failure.reason)
    return Repeat(delay_s)


_BACKOFF = Backoff(base_s=0.5, cap_s=8.0)


def of_status(status: int, *, error: object, headers: Mapping[str, str], now: datetime) -> Failure:
    """The failure behind an HTTP status other than 200.

    Args:
        status: The HTTP status.
        error: The decoded ``error`` member of the body, or whatever stood in its place.
        headers: With lower-case names.
        now: Wall time, against which a date in ``Retry-After`` is read.
    """
    kind = _kind_of_error(error) or _kind_of_status(status)
    return Failure(kind, status, _code(error), retry_after_s(headers, now=now))


def of_error_object(error: object) -> Failure:
    """The failure behind an error object inside a stream that began with status 200."""
    status = _status_in(error)
    kind = _kind_of_error(error)
    if kind is None:
        kind = _kind_of_status(status) if status is not None else FailureKind.SERVER_ERROR
    return Failure(kind, status, _code(error))


def retry_after_s(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Seconds to wait by ``retry-after-ms`` or ``Retry-After`` (RFC 9110 section 10.2.3).

    A value that is neither a number nor a date, or lies in the past, counts as not said.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return min(milliseconds / 1000, MAX_RETRY_AFTER_S)
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is None and value is not None:
        seconds = _until(value, now)
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER_S)


def _number(value: str | None) -> float | None:
    if value is None or not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", value.strip()):
        return None
    return float(value)


def _until(value: str, now: datetime) -> float | None:
    try:
        at = parsedate_to_datetime(value)
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        left_s = (at - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return left_s if left_s > 0 else None


def _kind_of_status(status: int) -> FailureKind:
    match status:
        case HTTPStatus.TOO_MANY_REQUESTS:
            return FailureKind.THROTTLED
        case HTTPStatus.REQUEST_TIMEOUT:
            return FailureKind.TIMEOUT
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            return FailureKind.UNAUTHORIZED
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return FailureKind.CONTEXT_LENGTH
        case _ if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return FailureKind.SERVER_ERROR
        case _:
            return FailureKind.BAD_REQUEST


# What providers write into type and code of their error objects; looked for as part of the name.
_NAMED_KINDS = (
    ("context_length", FailureKind.CONTEXT_LENGTH),
    ("exceed_context", FailureKind.CONTEXT_LENGTH),
    ("context_window", FailureKind.CONTEXT_LENGTH),
    ("content_filter", FailureKind.SAFETY),
    ("content_policy", FailureKind.SAFETY),
    ("safety", FailureKind.SAFETY),
    ("rate_limit", FailureKind.THROTTLED),
    ("overloaded", FailureKind.SERVER_ERROR),
    ("invalid_request", FailureKind.BAD_REQUEST),
    ("authentication", FailureKind.UNAUTHORIZED),
)


def _kind_of_error(error: object) -> FailureKind | None:
    """By code first, then by type: the code is the more exact of the two."""
    if not isinstance(error, Mapping):
        return None
    for field in ("code", "type"):
        name = error.get(field)
        if isinstance(name, str):
            for part, kind in _NAMED_KINDS:
                if part in name.lower():
                    return kind
    return None


def _status_in(error: object) -> int | None:
    """Some servers put the HTTP status into ``code`` or ``status`` of the error object."""
    if not isinstance(error, Mapping):
        return None
    for field in ("status", "code"):
        value = error.get(field)
        if isinstance(value, str) and value.isdecimal() and len(value) == _STATUS_DIGITS:
            value = int(value)
        if isinstance(value, int) and value >= HTTPStatus.BAD_REQUEST:
            return value
    return None


_STATUS_DIGITS = 3


def _code(error: object) -> str | None:
    """Only what is surely a code: what a provider writes may quote the conversation or a key."""
    if not isinstance(error, Mapping):
        return None
    for field in ("code", "type"):
        value = error.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and is_code(value):
            return value
    return None
