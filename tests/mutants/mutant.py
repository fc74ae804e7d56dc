"""What a mutant is, and how its file is read: one TOML file each, under ``patches/``.

A change replaces an exact text, so that a mutant outlives every edit that does not touch its own
lines; one that does is noticed, since the text then is no longer there.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from tests.sim.campaign import Case, kept_cases

Lane = Literal["ci", "full"]

PATCHES = Path(__file__).with_name("patches")


class BadPatch(Exception):
    """A mutant that no longer fits the tree, or whose file is not understood."""


@dataclass(frozen=True, slots=True)
class Change:
    """One exact text of one file, and what stands there instead.

    Attributes:
        file: From the root of the tree.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One broken house.

    Attributes:
        breaks: What is wrong in it, in one sentence.
        promise: Name of the promise that does not hold in it.
        tests: Ids of tests that must go red, every one of them.
        seeds: Of the simulation, tried in order; one of them must break the promise.
        kept: Name of cases that the simulation keeps in its own file, tried before the seeds.
        lane: ``full`` where only processes of their own can show it.
        says_no_by: Exceptions that count beside an assertion, where the limit of its own waiting is
            how the test says no.
    """

    name: str
    breaks: str
    promise: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    seeds: tuple[int, ...]
    kept: str | None
    lane: Lane
    says_no_by: tuple[str, ...]

    @property
    def cases(self) -> list[Case]:
        """What the simulation plays, in this order."""
        kept = kept_cases(self.kept) if self.kept else []
        return [*kept, *(Case(seed) for seed in self.seeds)]


def load_all(folder: Path = PATCHES) -> Mapping[str, Mutant]:
    """Every mutant by name, in the order of names.

    Raises:
        BadPatch: A file is not understood.
    """
    return {path.stem: _read(path) for path in sorted(folder.glob("*.toml"))}


def apply(mutant: Mutant, tree: Path) -> None:
    """Break a copy of the tree.

    Raises:
        BadPatch: A text is not there exactly once; nothing was written.
    """
    written: dict[Path, str] = {}
    for change in mutant.changes:
        path = tree / change.file
        if path not in written:
            if not path.is_file():
                msg = f"{mutant.name}: there is no {change.file} any more; write the mutant again"
                raise BadPatch(msg)
            written[path] = path.read_text(encoding="utf-8")
        times = written[path].count(change.old)
        if times != 1:
            msg = (
                f"{mutant.name}: {change.file} holds this text {times} times instead of once; "
                f"write the mutant again:\n{change.old}"
            )
            raise BadPatch(msg)
        written[path] = written[path].replace(change.old, change.new)
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")


def _read(path: Path) -> Mutant:
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        mutant = Mutant(
            name=path.stem,
            breaks=found.pop("breaks"),
            promise=found.pop("promise"),
            changes=tuple(_changes(found.pop("changes"))),
            tests=tuple(found.pop("tests", ())),
            seeds=tuple(found.pop("seeds", ())),
            kept=found.pop("kept", None),
            lane=found.pop("lane", "ci"),
            says_no_by=tuple(found.pop("says_no_by", ())),
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        msg = f"{path.name} is no mutant: {type(error).__name__} {error}"
        raise BadPatch(msg) from error
    if found or mutant.lane not in get_args(Lane):
        msg = f"{path.name} has unknown keys or an unknown lane: {sorted(found)} {mutant.lane}"
        raise BadPatch(msg)
    if not mutant.tests and not mutant.cases:
        msg = f"{path.name} names neither a test nor a seed that must notice it"
        raise BadPatch(msg)
    return mutant


def _changes(given: Sequence[Mapping[str, Any]]) -> Iterator[Change]:
    for one in given:
        change = Change(**one)
        if change.old == change.new:
            msg = f"a change of {change.file} changes nothing"
            raise BadPatch(msg)
        yield change
