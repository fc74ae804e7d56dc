"""The live stream of a turn: ids and entries, as pure functions of facts.

One Redis Stream per turn. An entry's id is ``attempt-n``: it is the SSE id, the idempotency key of
the write, the detector of gaps and the fence against a writer that lost its lease, all in one.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import orjson

from schemas.turns import TerminalStatus
from schemas.usage import Usage

TERMINAL_ATTEMPT = 2_147_483_647
"""Attempt number of the last entries; nothing can be written after them."""

REAPER_FENCE_ATTEMPT = 2_147_483_646
"""Attempt number of the fence that the reaper writes before it reads what was shown."""

_ID = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True, order=True)
class EntryId:
    """Position in a turn's stream; ordered by attempt, then number."""

    attempt: int
    n: int

    def __str__(self) -> str:
        return f"{self.attempt}-{self.n}"

    @classmethod
    def parse(cls, text: str) -> "EntryId":
        """Read ``attempt-n``.

        Raises:
            ValueError: The text is not such an id.
        """
        match = _ID.fullmatch(text)
        if match is None:
            msg = "an entry id is two decimal numbers joined by a hyphen, such as 1-7"
            raise ValueError(msg)
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: its id, the SSE event name, and the JSON of its data."""

    id: EntryId
    event: str
    data: bytes

    @property
    def is_done(self) -> bool:
        """Whether this entry closes the stream."""
        return self.event == "done"

    @property
    def is_fence(self) -> bool:
        """Whether this entry only shuts out an older writer; it is never sent to a client."""
        return self.id.n == 0


BEFORE_ALL = EntryId(0, 0)
"""Stands before the first entry of every stream."""

MESSAGE_STARTED_ID = EntryId(0, 1)


def _entry(id_: EntryId, event: str, data: dict[str, Any]) -> Entry:
    return Entry(id_, event, orjson.dumps(data))


def message_started(*, turn_id: UUID, message_id: UUID, seq: int) -> Entry:
    """The first entry of every turn. ``message_id`` and ``seq`` are the assistant message's."""
    data = {"turn_id": turn_id, "message_id": message_id, "seq": seq}
    return _entry(MESSAGE_STARTED_ID, "message_started", data)


def queue_status(n: int, *, position: int) -> Entry:
    """A turn waits; ``n`` counts from 2, after ``message_started``."""
    return _entry(EntryId(0, n), "status", {"state": "pending", "queue_position": position})


def generating(attempt: int) -> Entry:
    """An attempt begins; the first entry of its number."""
    return _entry(EntryId(attempt, 1), "status", {"state": "generating", "attempt": attempt})


def content_delta(id_: EntryId, text: str) -> Entry:
    """More of the answer; ``id_.n`` is at least 2."""
    return _entry(id_, "content_delta", {"text": text})


def delta_text(entry: Entry) -> str:
    """The text of a ``content_delta`` entry; of any other entry the empty string."""
    if entry.event != "content_delta":
        return ""
    text = orjson.loads(entry.data)["text"]
    if not isinstance(text, str):
        msg = "a content_delta entry holds no text"
        raise TypeError(msg)
    return text


def snapshot(upto: EntryId, text: str) -> Entry:
    """Replaces all text so far; ``upto`` is the last entry it covers. Made from rows."""
    return _entry(upto, "snapshot", {"text": text, "upto": str(upto)})


def fence(attempt: int) -> Entry:
    """Shuts out every writer of an earlier attempt; holds no data and is never sent."""
    return Entry(EntryId(attempt, 0), "fence", b"{}")


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What the row of an ended turn says; terminal entries are a pure function of it.

    Attributes:
        length: Bytes of the answer in UTF-8.
        sha256: Of the answer in UTF-8, hexadecimal; None where there is no answer.
        error: Problem shown to the client of a failed or partial turn; None where nothing is wrong.
    """

    status: TerminalStatus
    reason: str | None
    length: int
    sha256: str | None
    usage: Usage | None

    @property
    def is_error(self) -> bool:
        """Whether the end is announced by an ``error`` entry."""
        return self.status in ("failed", "partial")


Purpose = Literal["usage", "error", "done"]


def terminal_entries(end: TurnEnd) -> tuple[Entry, ...]:
    """``usage`` (if known), ``error`` (if any) and ``done``, numbered 1, 2, 3 without a gap."""
    purposes: list[tuple[Purpose, dict[str, Any]]] = []
    if end.usage is not None:
        purposes.append(("usage", end.usage.model_dump(mode="json")))
    if end.is_error:
        purposes.append(("error", {"status": end.status, "reason": end.reason}))
    done = {
        "status": end.status,
        "reason": end.reason,
        "length": end.length,
        "sha256": end.sha256,
    }
    purposes.append(("done", done))
    return tuple(
        _entry(EntryId(TERMINAL_ATTEMPT, n), event, data)
        for n, (event, data) in enumerate(purposes, start=1)
    )
