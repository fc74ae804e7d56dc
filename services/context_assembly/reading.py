"""Reads as much of each conversation's history as its budget can hold, page by page."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from libs.errors import Retryable
from services.context_assembly.core.history import HistoryRow
from services.context_assembly.ports import PAGE_ROWS, Cursor, StoredMessage, TextKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from services.context_assembly.core.plan import TurnToPlan
    from services.context_assembly.core.planner import Planner
    from services.context_assembly.counting import Counter
    from services.context_assembly.ports import HistoryReader

MAX_READS = 1_000
"""Reads for one step: at least 50,000 messages, more than any window holds."""


MAX_PAGES_AT_ONCE = 10
"""Pages asked for together, when the messages read so far say that all of them will fit."""


MAX_REMEMBERED = 10_000
"""Branches with a long history whose length is remembered, at 200 bytes each."""


class HistoryTooLong(Retryable):
    """A conversation went on for more pages than any window can hold."""

    code = "context.history_too_long"


class FirstPages:
    """How much of each long branch its last plan showed, so that the next one reads it at once.

    Forgetting costs a round trip, nothing else.
    """

    def __init__(self) -> None:
        self._rows: OrderedDict[UUID, int] = OrderedDict()

    def rows_of(self, branch_id: UUID) -> int:
        """Rows to ask for first."""
        return self._rows.get(branch_id, PAGE_ROWS)

    def shown(self, branch_id: UUID, kept: int) -> None:
        """Remember a plan that showed ``kept`` messages of history."""
        pages = min(1 + kept // PAGE_ROWS, MAX_PAGES_AT_ONCE)  # one row more tells it was enough
        self._rows.pop(branch_id, None)
        if pages > 1:
            self._rows[branch_id] = pages * PAGE_ROWS
            if len(self._rows) > MAX_REMEMBERED:
                self._rows.popitem(last=False)


@dataclass(slots=True, eq=False)
class Reading:
    """How far one turn's history has been read; compared by identity.

    Attributes:
        stored: What was read, newest first.
        is_complete: The beginning of the conversation was reached.
    """

    turn: TurnToPlan
    planner: Planner
    start: Cursor
    stored: list[StoredMessage] = field(default_factory=list)
    is_complete: bool = False
    _rows: list[HistoryRow] = field(default_factory=list)

    def next_page(self, counted: Mapping[TextKey, int]) -> Cursor | None:
        """The next older page that could still be shown; None if there is none."""
        if self.is_complete:
            return None
        if not self.stored:
            return self.start  # what a plan's transaction reads first, however little may be shown
        wanted = self.planner.older_rows_wanted(self.turn, self.rows(counted))
        if wanted == 0:
            return None
        pages = min(-(-wanted // PAGE_ROWS), MAX_PAGES_AT_ONCE)
        return replace(self.start, before_seq=self.stored[-1].seq, rows=pages * PAGE_ROWS)

    def add(self, page: Sequence[StoredMessage], asked: Cursor) -> None:
        """Take one page; one shorter than asked is the last."""
        self.stored += page
        self.is_complete = len(page) < asked.rows

    def short_texts(self) -> dict[str, str]:
        """Texts that came along with what was read, by message id."""
        return {
            str(message.message_id): message.short_text
            for message in self.stored
            if message.short_text is not None
        }

    def uncounted(self, counted: Mapping[TextKey, int]) -> list[TextKey]:
        """Messages of which nobody knows the number of tokens."""
        tenant = self.start.tenant_id
        return [
            key
            for message in self.stored[len(self._rows) :]
            if message.tokens is None
            and (key := TextKey(tenant, message.message_id)) not in counted
        ]

    def rows(self, counted: Mapping[TextKey, int]) -> Sequence[HistoryRow]:
        """What was read, for the planner, newest first; every message must have been counted."""
        tenant = self.start.tenant_id
        for message in self.stored[len(self._rows) :]:
            tokens = message.tokens
            if tokens is None:
                tokens = counted[TextKey(tenant, message.message_id)]
            self._rows.append(
                HistoryRow(
                    message.message_id,
                    message.turn_id,
                    message.seq,
                    message.role,
                    message.status,
                    tokens,
                    message.length,
                    message.said_at.isoformat(),
                    message.supersedes,
                )
            )
        return self._rows


async def read_histories(
    readings: Sequence[Reading],
    reader: HistoryReader,
    counted: dict[TextKey, int],
    *,
    counter: Counter | None = None,
) -> list[Reading]:
    """Read on until every budget is full or every conversation is read to its beginning.

    Args:
        counted: Token counts beyond those stored with the messages; grows with a ``counter``.
        counter: Counts what was never counted. Without one such a conversation is given up here.

    Returns:
        Readings that were given up, because a message in them is not counted.
    """
    given_up: list[Reading] = []
    open_readings = list(readings)
    for _ in range(MAX_READS):
        if counter is not None:
            await _count(open_readings, counted, counter)
        given_up += [reading for reading in open_readings if reading.uncounted(counted)]
        following = [
            (reading, cursor)
            for reading in open_readings
            if reading not in given_up and (cursor := reading.next_page(counted)) is not None
        ]
        if not following:
            return given_up
        open_readings = [reading for reading, _ in following]
        pages = await reader.pages([cursor for _, cursor in following])
        for (reading, cursor), page in zip(following, pages, strict=True):
            reading.add(page, cursor)
    msg = f"history was not read to an end in {MAX_READS} reads; the model's window is too large"
    raise HistoryTooLong(msg)


async def _count(
    readings: Sequence[Reading], counted: dict[TextKey, int], counter: Counter
) -> None:
    tokenizers = {
        key: reading.start.tokenizer for reading in readings for key in reading.uncounted(counted)
    }
    if tokenizers:
        counted.update(await counter.count(list(tokenizers), tokenizers))
