"""What the operator's pages ask for: reads and acts over all tenants, and their twin in memory.

Not part of ``Store``: only keys with the scope ``admin`` reach it, it has connections of its own,
and what it reads holds ids, states, counts and times alone.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from libs.errors import StoreUnavailable
from libs.operating import Acts, Reads, Refusal
from libs.operating.acting import REAPED, REDRIVEN, ended
from libs.operating.reasons import END_REASONS
from libs.postgres import Database
from libs.telemetry.tracing import Tracing

POOL_SIZE = 2  # few people look at once, and none of their looks may wait for a turn's statement

Document = dict[str, Any]


class OperatorReads(Protocol):
    """See ``libs.operating.Reads``, which is the real one."""

    async def overview(self) -> Document:
        """The figures of the whole deployment."""
        ...

    async def services(self) -> list[Document]:
        """Every process, by service."""
        ...

    async def outbox(self) -> list[Document]:
        """Events that wait for the broker."""
        ...

    async def outbox_dead(self) -> list[Document]:
        """Events that the broker will never take."""
        ...

    async def dead_letters(self) -> list[Document]:
        """Records that could not be handled."""
        ...

    async def dead_letter(self, letter: UUID) -> Document | None:
        """One of them."""
        ...

    async def leases(self) -> list[Document]:
        """Workers of the model gateway."""
        ...

    async def work(self) -> list[Document]:
        """Model calls that wait or run."""
        ...

    async def turns(self, status: str | None, reason: str | None) -> list[Document]:
        """Open turns, or ended ones of the last day."""
        ...

    async def acts(self) -> list[Document]:
        """What operators did."""
        ...

    async def search(self, text: str) -> Document:
        """What an id or a key means."""
        ...

    async def story(self, turn_id: UUID) -> Document | None:
        """Everything about one turn."""
        ...


class OperatorActs(Protocol):
    """See ``libs.operating.Acts``, which is the real one."""

    async def redrive(self, service: str, letter: UUID, *, dry_run: bool) -> Document | None:
        """Let a service handle a dead letter again."""
        ...

    async def end_turn(self, turn: UUID, reason: str, *, dry_run: bool) -> Document | None:
        """End an open turn without an answer."""
        ...

    async def reap_turn(self, turn: UUID, *, dry_run: bool) -> Document | None:
        """Let the reaper end a running turn now."""
        ...


@dataclass(frozen=True, slots=True)
class Operators:
    """Both of them.

    Attributes:
        acting_as: The acts of whoever is named, for the audit row.
    """

    reads: OperatorReads
    acting_as: Callable[[str], OperatorActs]


@asynccontextmanager
async def opened_operators(url: str, *, schema: str, tracing: Tracing) -> AsyncIterator[Operators]:
    """The real ones, over connections of their own, with the gateway's rights.

    Nobody else uses these connections, so nobody notices before an operator that they are dead:
    they are checked, or the first looks after a restart of Postgres would be refused.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    database = await Database.open(url, schema=schema, size=POOL_SIZE, is_checked=True)
    try:
        yield Operators(Reads(database), lambda actor: Acts(database, actor=actor, tracing=tracing))
    finally:
        await database.close()


_AUDITED = {"redrive": "dead_letter.redriven", "reap": "turn.reaped", "end": "turn.ended"}
_NAMES = {
    "turn": "turn_id",
    "conversation": "conversation_id",
    "request": "request_id",
    "key": "key",
}
_OPEN = ("open", None)


def _no_figures() -> Document:
    return {
        "object": "ops_overview",
        "at": "2026-01-31T09:40:00.000Z",
        "services": [],
        "outbox": [],
        "dead_letters": [],
        "leases": {"held": 0, "run_out": 0, "running": 0, "orphaned": 0},
        "turns": [],
        "counted_among": 0,
    }


@dataclass(slots=True)
class MemoryOperators:
    """The twin: holds documents that a test puts into it, and acts on them as the database does.

    Attributes:
        figures: The overview.
        lists: Rows of ``services``, ``outbox``, ``outbox_dead``, ``leases``, ``work`` and ``acts``.
        stories: By turn.
        letters: Dead letters, the newest first.
        done: Act, target, actor and whether it was a dry run.
        is_away: Refuse everything, as a lost database does.
    """

    figures: Document = field(default_factory=_no_figures)
    lists: dict[str, list[Document]] = field(default_factory=dict)
    stories: dict[UUID, Document] = field(default_factory=dict)
    letters: list[Document] = field(default_factory=list)
    turn_rows: list[Document] = field(default_factory=list)
    done: list[tuple[str, UUID, str, bool]] = field(default_factory=list)
    actor: str = ""
    is_away: bool = False

    def operators(self) -> Operators:
        """As the gateway takes it."""
        return Operators(self, self._as)

    def _as(self, actor: str) -> OperatorActs:
        self.actor = actor
        return self

    def _check(self) -> None:
        if self.is_away:
            msg = "the operators' database in memory is away"
            raise StoreUnavailable(msg)

    def _list(self, name: str) -> list[Document]:
        self._check()
        return list(self.lists.get(name, ()))

    async def overview(self) -> Document:
        """See ``OperatorReads``."""
        self._check()
        return self.figures

    async def services(self) -> list[Document]:
        """See ``OperatorReads``."""
        return self._list("services")

    async def outbox(self) -> list[Document]:
        """See ``OperatorReads``."""
        return self._list("outbox")

    async def outbox_dead(self) -> list[Document]:
        """See ``OperatorReads``."""
        return self._list("outbox_dead")

    async def dead_letters(self) -> list[Document]:
        """See ``OperatorReads``."""
        self._check()
        return list(self.letters)

    async def dead_letter(self, letter: UUID) -> Document | None:
        """See ``OperatorReads``."""
        self._check()
        return next((one for one in self.letters if one["id"] == str(letter)), None)

    async def leases(self) -> list[Document]:
        """See ``OperatorReads``."""
        return self._list("leases")

    async def work(self) -> list[Document]:
        """See ``OperatorReads``."""
        return self._list("work")

    async def turns(self, status: str | None, reason: str | None) -> list[Document]:
        """See ``OperatorReads``."""
        self._check()
        return [
            row
            for row in self.turn_rows
            if (status is None or status == row["status"] or (status, row["ended_at"]) == _OPEN)
            and (reason is None or reason == row["reason"])
        ]

    async def acts(self) -> list[Document]:
        """See ``OperatorReads``."""
        return self._list("acts")

    async def search(self, text: str) -> Document:
        """See ``OperatorReads``."""
        self._check()
        turns = [
            {**row, "found_by": by}
            for row in self.turn_rows
            for by, name in _NAMES.items()
            if self.stories[UUID(row["turn_id"])]["turn"][name] == text
        ]
        letter = next((one for one in self.letters if one["id"] == text), None)
        return {"object": "ops_search", "turns": turns, "request": None, "dead_letter": letter}

    async def story(self, turn_id: UUID) -> Document | None:
        """See ``OperatorReads``."""
        self._check()
        return self.stories.get(turn_id)

    async def redrive(self, service: str, letter: UUID, *, dry_run: bool) -> Document | None:
        """See ``OperatorActs``."""
        found = await self.dead_letter(letter)
        if found is None or found["service"] != service:
            return None
        if found["value_bytes"] is None:
            msg = "its bytes could not be read and are not kept"
            raise Refusal(msg)
        if not dry_run:
            found["is_asked"] = True
        return self._did("redrive", letter, REDRIVEN, dry_run=dry_run)

    async def end_turn(self, turn: UUID, reason: str, *, dry_run: bool) -> Document | None:
        """See ``OperatorActs``."""
        if reason not in END_REASONS:
            msg = f"no such reason: {reason}; one of: {', '.join(END_REASONS)}"
            raise Refusal(msg)
        if not self._open(turn):
            return None
        told = "cancelled" if reason == "user" else "failed"
        if not dry_run:
            self._end(turn, told, reason)
        return self._did("end", turn, ended(told, reason), dry_run=dry_run)

    async def reap_turn(self, turn: UUID, *, dry_run: bool) -> Document | None:
        """See ``OperatorActs``."""
        if not self._open(turn):
            return None
        if "reap" not in self.stories[turn]["may"]:
            msg = "it has not started, so nothing was shown that could be kept; end it instead"
            raise Refusal(msg)
        return self._did("reap", turn, REAPED, dry_run=dry_run)

    def _open(self, turn: UUID) -> bool:
        self._check()
        return turn in self.stories and bool(self.stories[turn]["may"])

    def _end(self, turn: UUID, status: str, reason: str) -> None:
        changed = {"status": status, "reason": reason, "ended_at": self.figures["at"]}
        known = self.stories[turn]
        known["may"] = []
        known["turn"] |= {**changed, "is_open": False}
        for row in self.turn_rows:
            if row["turn_id"] == str(turn):
                row.update(changed)

    def _did(self, act: str, target: UUID, effect: str, *, dry_run: bool) -> Document:
        self.done.append((act, target, self.actor, dry_run))
        if not dry_run:
            audit = {
                "service": "ingestion",
                "action": _AUDITED[act],
                "target_id": str(target),
                "actor": self.actor,
                "details": {},
                "at": self.figures["at"],
            }
            self.lists.setdefault("acts", []).insert(0, audit)
        return {
            "object": "ops_act",
            "act": act,
            "target_id": str(target),
            "dry_run": dry_run,
            "effect": effect,
        }
