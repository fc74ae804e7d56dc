"""Projections: tables that follow from the turns alone, kept in a file and rebuilt at will.

A projection has no effect but its own file, so it may be replayed as often as one likes. The
services' handlers are no projections: each of them writes rows that others act on.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import orjson

from services.ops.failures import CommandFailed

Source = Literal["postgres", "topic"]

TURNS = "turns"
PROJECTIONS: Mapping[str, str] = MappingProxyType(
    {TURNS: "one row per turn with its state, reason and tokens, and totals per tenant"}
)
EFFECTS: Mapping[str, str] = MappingProxyType(
    {
        "ingestion.requests": "accepts turns and tells them",
        "ingestion.context": "moves and ends turns",
        "ingestion.generation": "commits answers and ends turns",
        "context_assembly.turns": "stores plans and payloads, and tells steps",
        "context_assembly.endings": "deletes the payloads and plans of what ended or was deleted",
        "llm_gateway.steps": "takes work that calls a paid model",
        "llm_gateway.turns": "deletes work and texts",
    }
)
"""Consumers that replay refuses, and what each of them does."""

PURGED = "purged"
"""State of a turn whose rows are gone for good. Its id stays, so that a repeat of what was told
before does not bring it back; it is in no list and in no total."""

# A later state never gives way to an earlier one, so repeats and another order change nothing.
_RANKS: Mapping[str, int] = MappingProxyType({"accepted": 0, "started": 1, PURGED: 3})
_ENDED = 2

_SCHEMA = """
create table if not exists turns (
  turn_id text primary key, tenant_id text not null, conversation_id text not null,
  state text not null, reason text, length integer, input_tokens integer, output_tokens integer,
  rank integer not null
) without rowid;
create table if not exists progress (
  source text primary key, place text not null, is_complete integer not null
) without rowid;
create view if not exists totals as
  select tenant_id, state, reason, count(*) as turns, sum(input_tokens) as input_tokens,
         sum(output_tokens) as output_tokens
    from turns where state <> 'purged' group by tenant_id, state, reason;
"""
_UPSERT = """
insert into turns values (?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (turn_id) do update
   set state = excluded.state, reason = excluded.reason, length = excluded.length,
       input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
       rank = excluded.rank
 where excluded.rank > turns.rank
"""


@dataclass(frozen=True, slots=True)
class TurnFact:
    """What is known of a turn at some moment.

    Attributes:
        state: ``accepted``, ``started``, the state it ended in, or ``PURGED``.
    """

    turn_id: str
    tenant_id: str
    conversation_id: str
    state: str
    reason: str | None = None
    length: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def rank(self) -> int:
        """How late in a turn's life the state is."""
        return _RANKS.get(self.state, _ENDED)


class TurnTable:
    """The file of the projection ``turns``; made by ``opened``."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator["TurnTable"]:
        """Open the file, or make it.

        Raises:
            CommandFailed: It is no file of this kind, cannot be written, or another replay has it.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(path)) as connection:
                connection.executescript(_SCHEMA)
                yield cls(connection)
        except (sqlite3.Error, FileExistsError, NotADirectoryError, PermissionError) as error:
            msg = f"{path} cannot be used ({error}). Name another SQLite file with --out."
            raise CommandFailed(msg) from None

    def place(self, source: Source) -> tuple[dict[str, str], bool]:
        """How far a source was read, and whether to its end."""
        row = self._connection.execute(
            "select place, is_complete from progress where source = ?", (source,)
        ).fetchone()
        return (orjson.loads(row[0]), bool(row[1])) if row else ({}, False)

    def take(
        self, source: Source, facts: Iterable[TurnFact], place: Mapping[str, str], *, is_last: bool
    ) -> None:
        """Write facts together with how far they reach: after a crash nothing is done twice."""
        progress = (source, orjson.dumps(dict(place)).decode(), int(is_last))
        with self._connection:
            rows = [(*astuple(fact), fact.rank) for fact in facts]
            self._connection.executemany(_UPSERT, rows)
            self._connection.execute("insert or replace into progress values (?, ?, ?)", progress)

    def clear(self) -> None:
        """Forget everything: the next replay begins at the beginning."""
        with self._connection:
            self._connection.execute("delete from turns")
            self._connection.execute("delete from progress")

    def turns(self) -> list[tuple[str, str, str | None, int | None]]:
        """Turn, state, reason and length of each, in the order of their ids."""
        return self._connection.execute(
            "select turn_id, state, reason, length from turns where state <> ? order by turn_id",
            (PURGED,),
        ).fetchall()

    def totals(self) -> list[tuple[str, str, str | None, int]]:
        """Tenant, state, reason and number of turns."""
        return self._connection.execute(
            "select tenant_id, state, reason, turns from totals order by 1, 2, 3"
        ).fetchall()
