"""The catalogue of errors that a client can meet, and the document each is told in (RFC 9457)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of problem.

    Attributes:
        retryable: Whether the same request may succeed later, unchanged.
        advice: What the caller can do; shown on the page that the type's URL leads to.
    """

    slug: str
    status: int
    title: str
    retryable: bool
    advice: str


_KINDS = (
    Kind(
        "validation-error",
        422,
        "The request's content is not valid",
        retryable=False,
        advice="Correct the fields listed under errors and send the request again.",
    ),
    Kind(
        "unauthenticated",
        401,
        "No valid API key",
        retryable=False,
        advice="Send Authorization: Bearer followed by a key that exists and is not revoked.",
    ),
    Kind(
        "forbidden",
        403,
        "The key may not do this",
        retryable=False,
        advice="Use a key with the scope that the detail names, or ask from the same origin.",
    ),
    Kind(
        "not-found",
        404,
        "No such thing for this key",
        retryable=False,
        advice="Check the id. What is somebody else's answers like what does not exist.",
    ),
    Kind(
        "method-not-allowed",
        405,
        "The path knows no such method",
        retryable=False,
        advice="The header Allow lists the methods; /openapi.json lists every path.",
    ),
    Kind(
        "idempotency-key-missing",
        400,
        "The header Idempotency-Key is missing",
        retryable=False,
        advice="Send a fresh key for every new message, the same key for a repeat.",
    ),
    Kind(
        "idempotency-key-invalid",
        400,
        "The header Idempotency-Key is malformed",
        retryable=False,
        advice="Send 1 to 255 visible ASCII characters, quoted or bare, in one header.",
    ),
    Kind(
        "idempotency-key-reused",
        422,
        "The key already stands for other content",
        retryable=False,
        advice="Use a fresh key for a new message. The first message was not changed.",
    ),
    Kind(
        "idempotency-in-progress",
        409,
        "The first request with this key is still being decided",
        retryable=True,
        advice="Repeat the request after the time in Retry-After, with the same key.",
    ),
    Kind(
        "turn-in-progress",
        409,
        "An earlier turn of the conversation is still running",
        retryable=True,
        advice="Wait for the turn that turn_id names to end, or use the policy serialize.",
    ),
    Kind(
        "turn-already-terminal",
        409,
        "The turn has already ended",
        retryable=False,
        advice="Read the turn: its end is final.",
    ),
    Kind(
        "stale-parent",
        409,
        "The conversation has moved on",
        retryable=False,
        advice="Read the messages again and answer the newest one.",
    ),
    Kind(
        "not-editable",
        409,
        "This message cannot be edited",
        retryable=False,
        advice="Edit a message of the user that opened a turn; answers are made again instead.",
    ),
    Kind(
        "not-continuable",
        409,
        "This answer cannot be continued",
        retryable=False,
        advice="Continue partial or cancelled answers that have text, with a model that is able "
        "to; otherwise ask for the answer again.",
    ),
    Kind(
        "not-possible",
        409,
        "This cannot be done in the state it is in",
        retryable=False,
        advice="The detail says why, and what else would help.",
    ),
    Kind(
        "restore-expired",
        410,
        "The conversation can no longer be restored",
        retryable=False,
        advice="Begin a new conversation. A deleted one can be restored for a limited time.",
    ),
    Kind(
        "payload-too-large",
        413,
        "The request is too large",
        retryable=False,
        advice="Send at most 1 MiB of body and 256 KiB of text in UTF-8.",
    ),
    Kind(
        "unsupported-media",
        415,
        "The body's type is not supported",
        retryable=False,
        advice="Send application/json in UTF-8, without a content encoding.",
    ),
    Kind(
        "misdirected-request",
        421,
        "This server does not answer for that host",
        retryable=False,
        advice="Use a host name that the setting allowed_hosts lists.",
    ),
    Kind(
        "context-too-large",
        422,
        "The text does not fit the model's window",
        retryable=False,
        advice="Shorten the text or choose a model with a larger window.",
    ),
    Kind(
        "quota-exceeded",
        429,
        "A limit is reached",
        retryable=True,
        advice="Wait for the time in Retry-After; the header RateLimit-Policy names the limit.",
    ),
    Kind(
        "internal-error",
        500,
        "The server made a mistake",
        retryable=True,
        advice="Repeat the request with the same key; if it fails again report the request id.",
    ),
    Kind(
        "admission-rejected",
        503,
        "The server takes no more work at the moment",
        retryable=True,
        advice="Repeat the request after the time in Retry-After, with the same key.",
    ),
    Kind(
        "dependency-unavailable",
        503,
        "A part of the server does not answer",
        retryable=True,
        advice="Repeat the request after the time in Retry-After, with the same key.",
    ),
    Kind(
        "provider-failed",
        502,
        "The model's provider failed",
        retryable=True,
        advice="Send the message again with a fresh key.",
    ),
    Kind(
        "provider-timeout",
        504,
        "The model's provider did not answer in time",
        retryable=True,
        advice="Send the message again with a fresh key.",
    ),
    Kind(
        "cursor-invalid",
        400,
        "The cursor was never issued here",
        retryable=False,
        advice="Use ids from a list's answer, or entry ids of this very stream, or no cursor.",
    ),
    Kind(
        "stream-expired",
        410,
        "The stream is gone",
        retryable=False,
        advice="Read the turn and its messages instead.",
    ),
)

KINDS: Mapping[str, Kind] = MappingProxyType({kind.slug: kind for kind in _KINDS})


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong with the content.

    Attributes:
        where: JSON Pointer of the field, or the name of a query parameter or header.
        message: What is wrong; never repeats the value, which may be somebody's text.
        nearest: The known name closest to an unknown one.
    """

    where: str
    message: str
    nearest: str | None = None


class Problem(Exception):
    """An answer that is an error; raised anywhere before the response has begun.

    Attributes:
        detail: What happened, why, and what to do, for a person.
        retry_after_s: Seconds until a repeat makes sense.
    """

    def __init__(
        self,
        slug: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        turn_id: str | None = None,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(detail)
        self.slug = slug
        self.detail = detail
        self.errors = tuple(errors)
        self.turn_id = turn_id
        self.retry_after_s = retry_after_s
        self.headers = headers

    @property
    def kind(self) -> Kind:
        """The catalogue's entry; an unknown slug counts as the server's mistake."""
        return KINDS.get(self.slug, KINDS["internal-error"])


def document(problem: Problem, *, base_url: str, instance: str, request_id: str) -> dict[str, Any]:
    """The ``application/problem+json`` body.

    Args:
        base_url: Put in front of ``/problems/…``; may be empty, then the type is relative.
        instance: The path of the request, without its query.
    """
    kind = problem.kind
    body: dict[str, Any] = {
        "type": f"{base_url}/problems/{kind.slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": problem.detail,
        "instance": instance,
        "code": kind.slug,
        "request_id": request_id,
        "retryable": kind.retryable,
    }
    if problem.turn_id is not None:
        body["turn_id"] = problem.turn_id
    if problem.errors:
        body["errors"] = [_error(error) for error in problem.errors]
    return body


def _error(error: FieldError) -> dict[str, str]:
    told = {"where": error.where, "message": error.message}
    if error.nearest is not None:
        told["nearest"] = error.nearest
    return told


def headers(problem: Problem) -> dict[str, str]:
    """Headers by which clients decide about a repeat, beside those of the problem itself."""
    told = dict(problem.headers)
    told["x-should-retry"] = "true" if problem.kind.retryable else "false"
    if problem.retry_after_s is not None:
        told["Retry-After"] = str(problem.retry_after_s)
        told["retry-after-ms"] = str(problem.retry_after_s * 1000)
    return told


NOT_FOUND = "There is nothing with this id that this key may see. Check the id."


def not_found() -> Problem:
    """The one answer for unknown and foreign ids, so that existence is not told."""
    return Problem("not-found", NOT_FOUND)
