"""Looks of the house's loops that find nothing: a wake-up that is not due costs no SQL.

What such a look is for comes into being when somebody writes, or as time goes by, and time alone
never takes it away. So it is asked for a time ahead of the present: if there is nothing then, there
is nothing now, and nothing in between, until a table that it reads is written. What is known to be
nothing is not asked for; in the trace it stands as if it had been, and a test compares the two.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from types import MappingProxyType

from libs.postgres import Row, Statement, load_queries

AHEAD_S = 10.0
"""Longer than a turn without faults takes, shorter than most of the limits that are looked for."""

EVER_S = 3600.0
"""Beyond the end of every run."""

WRITES = re.compile(r"\b(?:insert into|delete from|(?<!for )(?<!do )update) ([a-z_.]+)")
COMMENTS = re.compile(r"--[^\n]*")
NAMES = re.compile(r"\w+")
ANYTHING = "anything"
"""Stands for every table."""


@dataclass(frozen=True, slots=True)
class Look:
    """One statement of a loop; it finds nothing where it returns no rows, or only zeros.

    Attributes:
        reads: Tables of its own schema that it reads.
        ahead_s: So far ahead of the present it is asked; 0 where time gives it nothing to find.
        is_known: Whether what it finds follows from the rows alone, so that it is known even where
            it is something.
    """

    reads: tuple[str, ...]
    ahead_s: float = AHEAD_S
    is_known: bool = False


LOOKS: Mapping[tuple[str, str], Look] = {
    ("libs.outbox", "pending"): Look(("outbox",), ahead_s=EVER_S),
    ("libs.outbox", "status"): Look(("outbox",), ahead_s=0.0),
    ("services.ingestion", "overdue_turns"): Look(("open_turns",)),
    ("services.ingestion", "cancelled_turns"): Look(("open_turns",)),
    ("services.ingestion", "unstarted_heads"): Look(("open_turns",)),
    ("services.ingestion", "claim_silent_turns"): Look(("open_turns",)),
    ("services.ingestion", "count_open_turns"): Look(("open_turns",), ahead_s=0.0, is_known=True),
    ("services.ingestion", "uncounted_ends"): Look(("operator_actions",), ahead_s=0.0),
    # A step that is being answered is silent all the while: it is told again after six seconds.
    ("services.context_assembly", "silent_steps"): Look(("steps",), ahead_s=4.0),
    # What is ready may be claimed at once, so it is not time that it waits for.
    ("services.llm_gateway", "claim_ready"): Look(("work",), ahead_s=0.0),
    ("services.llm_gateway", "late_ready"): Look(("work",)),
    ("services.llm_gateway", "own_running"): Look(("work",), ahead_s=0.0, is_known=True),
}
"""By package and name; of the loops that look most often."""


@cache
def _looks() -> Mapping[str, Look]:
    """By text."""
    return MappingProxyType(
        {load_queries(package)[name]: look for (package, name), look in LOOKS.items()}
    )


@cache
def _plain(text: str) -> str:
    return " ".join(COMMENTS.sub("", text).split())


@cache
def _names(text: str) -> frozenset[str]:
    return frozenset(NAMES.findall(_plain(text)))


@dataclass(frozen=True, slots=True)
class Writer:
    """A function of the database that may write."""

    schema: str
    name: str
    body: str


class Writing:
    """What statements write, as their texts and those of the functions that they call say it."""

    def __init__(self, writers: Sequence[Writer]) -> None:
        self._writers = {writer.name: writer for writer in writers}
        self._known: dict[tuple[str, str], frozenset[str]] = {}

    def tables_of(self, schema: str, text: str) -> frozenset[str]:
        """Tables that a statement of a schema's role may write."""
        found = self._known.get((schema, text))
        if found is None:
            found = self._known[schema, text] = frozenset(self._tables(schema, text, set()))
        return found

    def _tables(self, schema: str, text: str, seen: set[str]) -> set[str]:
        tables = {_qualified(schema, table) for table in WRITES.findall(_plain(text))}
        for name in _names(text) & (self._writers.keys() - seen):
            seen.add(name)
            writer = self._writers[name]
            tables |= self._tables(writer.schema, writer.body, seen)
        return tables


@dataclass(slots=True)
class Known:
    """What a transaction of looks finds from now on.

    Attributes:
        version: Of the tables that it reads.
        until_s: Virtual time up to which it finds the same.
        rows: Of each statement; None where it soon finds more.
    """

    version: int
    until_s: float
    rows: Sequence[Sequence[Row]] | None


class Looks:
    """What the looks of one run are known to find."""

    def __init__(self, writing: Writing, *, spares: bool = True) -> None:
        """``spares`` is off where every look is to be asked for, known or not."""
        self._writing = writing
        self._spares = spares
        self._versions: Counter[str] = Counter()
        self._known: dict[str, Known] = {}

    def forget(self) -> None:
        """Somebody writes who does not tell what."""
        self._versions[ANYTHING] += 1

    def wrote(self, schema: str, texts: Collection[str]) -> None:
        """A transaction commits in which these statements ran."""
        for text in texts:
            self._versions.update(self._writing.tables_of(schema, text))

    def glance(self, schema: str, statements: Sequence[Statement]) -> "Glance | None":
        """A transaction that does nothing but look; None where it does something else."""
        looks = [look for text, _ in statements if (look := _looks().get(text)) is not None]
        if not self._spares or not looks or len(looks) < len(statements):
            return None
        tables = {_qualified(schema, table) for look in looks for table in look.reads}
        version = sum(self._versions[table] for table in (ANYTHING, *tables))
        return Glance(self._known, f"{schema} {statements!r}", looks, version)


class Glance:
    """One transaction of looks."""

    def __init__(
        self, known: dict[str, Known], key: str, looks: Sequence[Look], version: int
    ) -> None:
        self._all = known
        self._key = key
        self._looks = looks
        self._version = version
        found = known.get(key)
        self._known = found if found is not None and found.version == version else None
        self.ahead_s = max(look.ahead_s for look in looks)
        """So far ahead of the present it is asked."""

    @property
    def is_worth_asking(self) -> bool:
        """Whether it may find nothing ahead of the present."""
        return self._known is None or self._known.rows is not None

    def rows_at(self, now_s: float) -> list[list[Row]] | None:
        """What it finds at a moment; None where nobody knows."""
        if self._known is None or self._known.rows is None or now_s > self._known.until_s:
            return None
        return [[dict(row) for row in rows] for rows in self._known.rows]

    def found(self, now_s: float, results: Sequence[Sequence[Row]]) -> bool:
        """Note what it found when it was asked; whether that is nothing, or else known for good."""
        is_known = all(
            look.is_known or not any(any(row.values()) for row in rows)
            for look, rows in zip(self._looks, results, strict=True)
        )
        until_s = now_s + self.ahead_s if self.ahead_s else inf
        if is_known or self.ahead_s:
            self._all[self._key] = Known(self._version, until_s, results if is_known else None)
        return is_known


def _qualified(schema: str, table: str) -> str:
    return table if "." in table else f"{schema}.{table}"
