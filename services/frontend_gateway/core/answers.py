"""What is answered from an outcome row, and how lists are told."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

from services.frontend_gateway.core.cursors import Page
from services.frontend_gateway.core.problems import Problem, not_found

QUOTA_RETRY_S = 5  # a turn of the conversation has to end first
_RETRIED = {"quota-exceeded": QUOTA_RETRY_S, "turn-in-progress": 1, "admission-rejected": 1}


def refusal(decision: str, problem: Mapping[str, Any] | None) -> Problem | None:
    """The problem that an outcome means; None where the request was accepted or repeated."""
    if decision in ("accepted", "replayed"):
        return None
    if decision == "not_found":
        return not_found()
    if decision == "conflict":
        detail = (
            "This key already stands for another message in this conversation, which was not "
            "changed. Use a fresh key for new content."
        )
        return Problem("idempotency-key-reused", detail)
    told = problem or {}
    slug = str(told.get("code", "internal-error"))
    return Problem(
        slug,
        str(told.get("detail", "The request was refused.")),
        turn_id=None if told.get("turn_id") is None else str(told["turn_id"]),
        retry_after_s=_RETRIED.get(slug),
    )


class _Named(Protocol):
    @property
    def id(self) -> UUID:
        """The row's id."""
        ...


R = TypeVar("R", bound=_Named)


def cut(rows: Sequence[R], page: Page) -> tuple[Sequence[R], bool]:
    """The rows of a page, and whether there are more in its direction.

    One row more than the limit was asked for. Going back from a cursor it is the first one,
    because rows always stand in the order of the list.
    """
    has_more = len(rows) > page.limit
    if not has_more:
        return rows, False
    is_backwards = page.before is not None and page.after is None
    return (rows[-page.limit :] if is_backwards else rows[: page.limit]), True


def listed(data: Sequence[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page as it is answered."""
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def iso(at: datetime) -> str:
    """A time as it is written everywhere: RFC 3339 in UTC."""
    return at.isoformat().replace("+00:00", "Z")
