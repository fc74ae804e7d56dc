"""Chooses the part of a conversation that a prompt can hold: its newest groups, without a hole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from uuid import UUID

Role = Literal["user", "assistant"]

CUT_OFF: Final = frozenset({"partial", "cancelled"})
"""States of an answer that ended before the model was done; ``[interrupted]`` follows its text."""


class HistoryRow(NamedTuple):
    """A message of the conversation as the planner sees it: everything but its text.

    A tuple, since hundreds are made for every plan.

    Attributes:
        tokens: Of the text alone, in the model's tokenizer.
        length: Bytes of the text in UTF-8.
        observed_at: When it was said, ISO 8601 in UTC; never used for order.
        supersedes: The message that it was said again for.
    """

    message_id: UUID
    turn_id: UUID
    seq: int
    role: Role
    status: str
    tokens: int
    length: int
    observed_at: str | None = None
    supersedes: UUID | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """What a message costs beside the tokens of its text.

    Attributes:
        per_message: Role and separators.
        no_answer: The whole inserted message ``[no answer]``.
        no_question: The whole inserted message ``[no question]``.
        interrupted: The mark after the text of an answer that was cut off.
    """

    per_message: int
    no_answer: int
    no_question: int
    interrupted: int


class Group(NamedTuple):
    """Messages that are kept or left out together, oldest first; one for every message read.

    Attributes:
        is_exchange: Roles must alternate in it: ``[no question]`` stands before every answer that
            follows no question, ``[no answer]`` after a question without an answer.
    """

    rows: tuple[HistoryRow, ...]
    tokens: int
    is_exchange: bool


@dataclass(frozen=True, slots=True)
class Suffix:
    """The newest groups that fit and the rest that was loaded, both newest first."""

    kept: tuple[Group, ...]
    left_out: tuple[HistoryRow, ...]
    tokens: int


def eligible(
    rows: Iterable[HistoryRow], *, base_seq: int, not_history: Collection[UUID]
) -> tuple[HistoryRow, ...]:
    """The rows that may be history of a turn, newest first, whatever order they came in.

    History ends before ``base_seq`` and never holds what the turn itself shows: its current
    message, and the answers that it continues. An answer without text says nothing, and providers
    refuse empty messages, so it is left out too.
    """
    chosen = [
        row
        for row in rows
        if row.seq < base_seq
        and row.message_id not in not_history
        and (row.length > 0 or row.role == "user")
    ]
    chosen.sort(key=lambda row: (row.seq, row.message_id.int), reverse=True)
    return tuple(chosen)


def groups(
    newest_first: Sequence[HistoryRow], costs: Costs, *, alternate_roles: bool
) -> list[Group]:
    """Divide history into groups, newest first.

    A group is one message. Where roles must alternate it is a question with all answers that
    follow it, so that a prompt never begins with an answer whose question was left out.
    """
    if not alternate_roles:
        return [Group((row,), _cost(row, costs), is_exchange=False) for row in newest_first]
    found = []
    members: list[HistoryRow] = []
    for row in newest_first:
        members.append(row)
        if row.role == "user":
            found.append(_exchange(members, costs))
            members = []
    if members:
        found.append(_exchange(members, costs))
    return found


def least_tokens(newest_first: Sequence[HistoryRow], costs: Costs, *, alternate_roles: bool) -> int:
    """What these rows cost at least, whatever older rows turn out to stand before them.

    The oldest may be an answer whose question was not read yet, so no ``[no question]`` is
    counted for it.
    """
    total = sum(_cost(row, costs) for row in newest_first)
    if not alternate_roles:
        return total
    newer = None
    for row in newest_first:
        if row.role == "user" and newer != "assistant":
            total += costs.no_answer
        elif row.role == "assistant" and newer == "assistant":
            total += costs.no_question
        newer = row.role
    return total


def newest_that_fit(candidates: Sequence[Group], budget_tokens: int) -> Suffix:
    """Walk back from the newest group and stop at the first that does not fit.

    Everything older is left out with it, although a small old message might still fit: a prompt
    with a hole reads like a conversation that never happened. More budget keeps the same groups
    and possibly older ones.
    """
    used = 0
    count = 0
    for group in candidates:
        if used + group.tokens > budget_tokens:
            break
        used += group.tokens
        count += 1
    left_out = tuple(row for group in candidates[count:] for row in reversed(group.rows))
    return Suffix(tuple(candidates[:count]), left_out, used)


def lacks_question(before: HistoryRow | None, row: HistoryRow) -> bool:
    """Whether an answer stands first in its exchange or behind another answer."""
    return row.role == "assistant" and (before is None or before.role == "assistant")


def _exchange(newest_first: Sequence[HistoryRow], costs: Costs) -> Group:
    rows = tuple(reversed(newest_first))
    tokens = sum(_cost(row, costs) for row in rows)
    for before, row in zip((None, *rows), rows, strict=False):
        if lacks_question(before, row):
            tokens += costs.no_question
    if rows[-1].role == "user":
        tokens += costs.no_answer
    return Group(rows, tokens, is_exchange=True)


def _cost(row: HistoryRow, costs: Costs) -> int:
    mark = costs.interrupted if is_cut_off(row) else 0
    return row.tokens + costs.per_message + mark


def is_cut_off(row: HistoryRow) -> bool:
    """Whether the row is an answer that ended before the model was done."""
    return row.role == "assistant" and row.status in CUT_OFF
