"""What can go wrong when a program talks to Turnwire.

* TurnwireError
  x ProblemError       the server refused, and said why
  x Unavailable        nobody answered, or only "later", for as long as we were told to try
  x UnexpectedAnswer   an answer that is none of Turnwire's
  x DamagedAnswer      the text of a stream is not the one that was committed
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class TurnwireError(Exception):
    """Base of all errors of this package; never raised itself.

    Attributes:
        key: Idempotency key of the request that failed; None where it had none. The same call with
            the same key is always safe: it finds the first request's turn, or makes it.
    """

    def __init__(self, text: str, *, key: str | None = None) -> None:
        super().__init__(text)
        self.key = key


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong with a request's content.

    Attributes:
        where: JSON Pointer of the field, or the name of a parameter or header.
        message: What is wrong.
        nearest: The known name closest to an unknown one.
    """

    where: str
    message: str
    nearest: str | None = None


class ProblemError(TurnwireError):
    """The server answered with a problem document (RFC 9457).

    Attributes:
        slug: Stable name of the kind, such as ``turn-in-progress``; programs decide by it.
        status: Of HTTP.
        title: The kind, for people.
        detail: What happened, why, what to do, for people.
        request_id: Names the request in the server's logs.
        is_retryable: Whether the same request may succeed later, unchanged.
        retry_after_s: Seconds the server asked to wait; None if it did not say.
        turn_id: The turn that the problem is about.
        errors: What is wrong with the content, field by field.
    """

    def __init__(
        self,
        status: int,
        document: Mapping[str, Any],
        *,
        retry_after_s: float | None = None,
        key: str | None = None,
    ) -> None:
        self.status = status
        self.slug = str(document.get("code") or "")
        self.title = str(document.get("title") or f"HTTP {status}")
        self.detail = str(document.get("detail") or "")
        self.request_id = _text_or_none(document.get("request_id"))
        self.turn_id = _text_or_none(document.get("turn_id"))
        self.is_retryable = bool(document.get("retryable"))
        self.retry_after_s = retry_after_s
        self.errors = tuple(
            FieldError(str(e.get("where", "")), str(e.get("message", "")), e.get("nearest"))
            for e in document.get("errors") or ()
        )
        told = [f"{text.rstrip('.')}." for text in (self.title, self.detail) if text]
        told += [f"{error.where}: {error.message}." for error in self.errors]
        told += [f"Request {self.request_id}."] if self.request_id else []
        super().__init__(" ".join(told), key=key)


class Unavailable(TurnwireError):
    """No usable answer within the time of the client's ``Patience``."""


class UnexpectedAnswer(TurnwireError):
    """The answer does not look like one of Turnwire's; is the address right?"""


class DamagedAnswer(TurnwireError):
    """Even read anew, the text of a stream differs from what its last entry says of it."""


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)
