"""Which failures are repeated, and after how long."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from services.llm_gateway.core.failures import (
    MAX_REQUESTS,
    RETRIED,
    Failure,
    FailureKind,
    GiveUp,
    Repeat,
    after_failure,
    of_status,
    retry_after_s,
)

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def fate(failure: Failure, **changes: object) -> Repeat | GiveUp:
    arguments: dict[str, object] = {"requests": 1, "shown": False, "left_s": 100.0, "jitter": 0.5}
    return after_failure(failure, **(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", list(FailureKind))
def test_after_a_delta_nothing_is_repeated(kind: FailureKind) -> None:
    reason = "idle_timeout" if kind is FailureKind.IDLE else "provider_cut"
    assert fate(Failure(kind), shown=True) == GiveUp(reason)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FailureKind.BAD_REQUEST, "provider_refused"),
        (FailureKind.UNAUTHORIZED, "provider_refused"),
        (FailureKind.SAFETY, "provider_refused"),
        (FailureKind.CONTEXT_LENGTH, "context_too_large"),
    ],
)
def test_what_can_never_succeed_is_not_repeated(kind: FailureKind, reason: str) -> None:
    assert fate(Failure(kind)) == GiveUp(reason)


@pytest.mark.parametrize("kind", sorted(RETRIED))
def test_the_third_request_is_the_last(kind: FailureKind) -> None:
    assert isinstance(fate(Failure(kind), requests=MAX_REQUESTS - 1), Repeat)
    reason = "idle_timeout" if kind is FailureKind.IDLE else "provider_unavailable"
    assert fate(Failure(kind), requests=MAX_REQUESTS) == GiveUp(reason)


def test_a_wait_that_does_not_end_before_the_deadline_is_not_begun() -> None:
    asked = Failure(FailureKind.THROTTLED, retry_after_s=30.0)

    assert isinstance(fate(asked, left_s=60.0), Repeat)
    assert fate(asked, left_s=30.0) == GiveUp("provider_unavailable")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 7 "}, 7.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=9), usegmt=True)}, 9.0),
        ({"retry-after": format_datetime(NOW - timedelta(seconds=9), usegmt=True)}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "999999999"}, 3600.0),
        ({}, None),
    ],
)
def test_how_long_the_provider_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, now=NOW) == seconds


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (429, None, FailureKind.THROTTLED),
        (500, None, FailureKind.SERVER_ERROR),
        (529, None, FailureKind.SERVER_ERROR),
        (408, None, FailureKind.TIMEOUT),
        (401, None, FailureKind.UNAUTHORIZED),
        (404, None, FailureKind.BAD_REQUEST),
        (413, None, FailureKind.CONTEXT_LENGTH),
        (302, None, FailureKind.BAD_REQUEST),
        (400, {"code": "context_length_exceeded"}, FailureKind.CONTEXT_LENGTH),
        (400, {"code": "content_policy_violation"}, FailureKind.SAFETY),
        (400, {"type": "exceed_context_size_error", "code": 400}, FailureKind.CONTEXT_LENGTH),
        (500, {"code": "context_length_exceeded"}, FailureKind.CONTEXT_LENGTH),
    ],
)
def test_the_class_of_a_refusal(status: int, error: object, kind: FailureKind) -> None:
    assert of_status(status, error=error, headers={}, now=NOW).kind == kind
