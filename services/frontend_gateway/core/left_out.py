"""What a plan left out, message by message, with the reason of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from services.frontend_gateway.core.answers import iso
from services.frontend_gateway.core.cursors import uuid_of
from services.frontend_gateway.core.evidence import Document, MessageFacts, exclusions

OVER_BUDGET = "budget"
"""Why everything below a plan's boundary is not shown, unless the plan says more of it."""


@dataclass(frozen=True, slots=True)
class HistoryFacts:
    """A message that history would offer a plan, without its text.

    Attributes:
        tokens: Of the text alone, in the plan's tokenizer; None where it was not counted in it.
        length: Bytes of the text in UTF-8.
    """

    id: UUID
    turn_id: UUID
    seq: int
    role: str
    status: str
    tokens: int | None
    length: int
    said_at: datetime


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A page of what was left out, newest first.

    Attributes:
        next_below: Ask for what is older with this number; None at the end.
    """

    rows: tuple[Mapping[str, Any], ...]
    next_below: int | None


def boundary(document: Document) -> int | None:
    """History below this number was not shown; None where all of it was."""
    upto = document.get("excluded_up_to_seq")
    return None if upto is None else int(upto) + 1


def named_messages(document: Document) -> list[UUID]:
    """Messages that a plan names as left out."""
    return list(exclusions(document))


def left_out(
    document: Document,
    rows: Sequence[HistoryFacts],
    facts: Mapping[UUID, MessageFacts],
    *,
    below: int | None,
    limit: int,
) -> LeftOut:
    """One page: rows of history under the boundary, and what else the plan names in their range.

    Args:
        rows: Of history below ``below``, newest first; one more than ``limit`` if there are more.
        facts: Of the messages that the plan names, as far as they are known.
        below: Where the page begins; None for the first one.
    """
    has_more = len(rows) > limit
    rows = rows[:limit]
    lowest = rows[-1].seq if has_more else 0
    named = exclusions(document)
    found: list[tuple[int, dict[str, Any]]] = [
        (row.seq, _told(row, named.get(row.id, OVER_BUDGET))) for row in rows
    ]
    told = {row.id for row in rows}
    for id_, reason in named.items():
        known = facts.get(id_)
        if id_ in told or known is None:
            continue
        if known.seq >= lowest and (below is None or known.seq < below):
            found.append((known.seq, _told_of(known, reason)))
    found.sort(key=lambda one: -one[0])
    others = [] if below is not None else _others(document, facts)
    return LeftOut((*others, *(one for _, one in found)), lowest if has_more else None)


def _others(document: Document, facts: Mapping[UUID, MessageFacts]) -> list[dict[str, Any]]:
    """What a plan names that is no message that anybody knows: data, and purged messages."""
    found: list[dict[str, Any]] = []
    for gone in document.get("excluded", ()):
        id_ = uuid_of(str(gone["id"]))
        if id_ is None or id_ not in facts:
            empty = dict.fromkeys(("seq", "role", "status", "tokens", "length", "said_at"))
            found.append({"id": str(gone["id"]), "reason": str(gone["reason"]), **empty})
    return found


def _told(row: HistoryFacts, reason: str) -> dict[str, Any]:
    return {
        "id": str(row.id),
        "reason": reason,
        "seq": row.seq,
        "role": row.role,
        "status": row.status,
        "tokens": row.tokens,
        "length": row.length,
        "said_at": iso(row.said_at),
    }


def _told_of(known: MessageFacts, reason: str) -> dict[str, Any]:
    return {
        "id": str(known.id),
        "reason": "deleted" if known.is_deleted else reason,
        "seq": known.seq,
        "role": known.role,
        "status": known.status,
        "tokens": None,
        "length": None,
        "said_at": None,
    }
