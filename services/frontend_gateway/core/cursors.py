"""Reads what a client says about where it is: list cursors and positions in a stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from libs.text import storable
from schemas.requests import MAX_TITLE_CHARACTERS
from schemas.streams import EntryId
from services.frontend_gateway.core.names import nearest
from services.frontend_gateway.core.problems import FieldError, Problem

DEFAULT_LIMIT = 20
MAX_LIMIT = 100  # bounds the rows and the texts of one answer
MAX_STEP = 9_999  # far above what a turn may take; keeps the number inside its column
MAX_SEQ = 2**53 - 1  # what every client can count to; keeps the number inside its column

_KNOWN = ("limit", "after", "before", "order")


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted, in the order asked for."""

    limit: int
    after: UUID | None
    before: UUID | None
    descending: bool


def page(query: Mapping[str, str], *, default_order: str, beside: Sequence[str] = ()) -> Page:
    """Read ``limit``, ``after``, ``before`` and ``order``.

    Args:
        beside: Other parameters that the list knows; they are read elsewhere.

    Raises:
        Problem: ``cursor-invalid`` for a cursor that is no id, ``validation-error`` otherwise.
    """
    check_names(query, (*_KNOWN, *beside))
    limit_text = query.get("limit", str(DEFAULT_LIMIT))
    is_number = limit_text.isascii() and limit_text.isdecimal() and len(limit_text) <= len("100")
    if not is_number or not 1 <= int(limit_text) <= MAX_LIMIT:
        raise _wrong("limit", f"must be a number from 1 to {MAX_LIMIT}")
    order = query.get("order", default_order)
    if order not in ("asc", "desc"):
        raise _wrong("order", "must be asc or desc")
    return Page(
        limit=int(limit_text),
        after=_cursor(query, "after"),
        before=_cursor(query, "before"),
        descending=order == "desc",
    )


def check_names(query: Mapping[str, str], known: Sequence[str]) -> None:
    """Refuse parameters that nobody reads: a misspelt one must not look obeyed.

    Raises:
        Problem: ``validation-error``, with the known name nearest to the unknown one.
    """
    for name in query:
        if name not in known:
            raise _wrong(name, "there is no such parameter", nearest(name, known))


def step_of(query: Mapping[str, str]) -> int | None:
    """Which step of a turn is meant; None where none is named.

    Raises:
        Problem: ``validation-error``.
    """
    text = query.get("step")
    if text is None:
        return None
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_STEP))
    if not is_number or not 1 <= int(text) <= MAX_STEP:
        raise _wrong("step", f"must be a number from 1 to {MAX_STEP}")
    return int(text)


def below_of(query: Mapping[str, str]) -> int | None:
    """The number below which a list of messages goes on; None for its beginning.

    Raises:
        Problem: ``validation-error``.
    """
    text = query.get("below")
    if text is None:
        return None
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_SEQ))
    if not is_number or not 1 <= int(text) <= MAX_SEQ:
        raise _wrong("below", f"must be a number from 1 to {MAX_SEQ}")
    return int(text)


def searched(query: Mapping[str, str]) -> str | None:
    """What titles are searched for; None for all.

    Raises:
        Problem: ``validation-error`` if it is longer than any title.
    """
    text = query.get("query")
    if text is None:
        return None
    if len(text) > MAX_TITLE_CHARACTERS:
        raise _wrong("query", f"has more than {MAX_TITLE_CHARACTERS} characters")
    return storable(text).text or None


def _cursor(query: Mapping[str, str], name: str) -> UUID | None:
    text = query.get(name)
    if text is None:
        return None
    found = uuid_of(text)
    if found is None:
        raise cursor_invalid(f"The parameter {name} is not an id of this list.")
    return found


def uuid_of(text: str) -> UUID | None:
    """The id that a text spells in the one form of this interface, else None."""
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found if str(found) == text else None


def cursor_invalid(why: str) -> Problem:
    """The answer to a cursor that was never issued."""
    return Problem("cursor-invalid", f"{why} Use one that an answer gave you, or leave it out.")


def stream_position(last_event_id: str | None, after: str | None) -> EntryId | None:
    """Where a client's copy of a stream ends; the header wins over the parameter.

    Returns:
        None for a client that has nothing yet.

    Raises:
        Problem: ``cursor-invalid`` if the text is no entry id.
    """
    text = last_event_id if last_event_id is not None else after
    if text is None:
        return None
    try:
        position = EntryId.parse(text)
    except ValueError:
        position = None
    if position is None or position.n == 0:
        raise cursor_invalid("The position is not an entry id of this turn's stream.")
    return position


def _wrong(name: str, message: str, suggestion: str | None = None) -> Problem:
    error = FieldError(name, message, suggestion)
    return Problem("validation-error", f"The parameter {name} {message}.", errors=(error,))
