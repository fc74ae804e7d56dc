"""One trial: directed tests or cases, run in a copy of the tree by processes of their own."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import orjson

from tests.mutants.mutant import Mutant, apply
from tests.mutants.witness import FILE_VARIABLE
from tests.sim.campaign import Case

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("services", "libs", "schemas", "deploy", "tests", "pyproject.toml")
LEFT_OUT = shutil.ignore_patterns(".*", "*.log")

TRIAL_S = {"ci": 120.0, "full": 240.0}
"""Longest trial, many times what it takes; one that takes longer has caught nothing."""

END_S = 15.0
"""An interrupted trial ends the parts that it started; then it is killed."""

TESTS_FAILED = 1
LONGEST_OUTPUT = 3_000


@dataclass(frozen=True, slots=True)
class Finding:
    """What a trial came to.

    Attributes:
        is_red: A test said no by assertion, or a case broke the promise that was named.
        is_green: Everything was run and nothing was wrong.
        text: What the red one said, or why it is neither red nor green.
    """

    is_red: bool
    is_green: bool
    text: str
    seconds: float = 0.0

    def and_then(self, other: "Finding") -> "Finding":
        """Both trials of one mutant: red only if both are."""
        return Finding(
            self.is_red and other.is_red,
            self.is_green or other.is_green,
            other.text if self.is_red else self.text,
            self.seconds + other.seconds,
        )


@contextmanager
def copied(mutant: Mutant | None = None) -> Iterator[Path]:
    """A copy of the tree for as long as the block runs, broken by a mutant.

    Raises:
        BadPatch: The mutant fits no longer.
    """
    with tempfile.TemporaryDirectory(prefix="turnwire-mutant-") as made:
        tree = Path(made).resolve() / "tree"
        tree.mkdir()
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tree / name, ignore=LEFT_OUT)
            else:
                shutil.copy2(ROOT / name, tree / name)
        if mutant is not None:
            apply(mutant, tree)
        yield tree


def run_tests(
    tests: Sequence[str],
    tree: Path,
    *,
    server: str | None,
    within_s: float,
    says_no_by: Sequence[str] = (),
) -> Finding:
    """Run these tests in a copy.

    Args:
        server: A Postgres to use, or None where the tests start everything themselves.
        says_no_by: Exceptions that count as an assertion.
    """
    began = monotonic()
    witness = tree.parent / "witness.jsonl"
    command = (
        *("-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"),
        *("-p", "tests.mutants.witness", f"--basetemp={tree.parent / 'pytest'}"),
        *tests,
    )
    settings = {FILE_VARIABLE: str(witness)}
    if server is not None:
        settings["DATABASE_URL"] = server
    status, output = _run(command, tree, settings, within_s=within_s)
    notes = witness.read_bytes().splitlines() if witness.exists() else []
    told = [orjson.loads(line) for line in notes]
    for note in told:
        note["is_no"] = note.get("is_assertion") or note.get("error") in says_no_by
    return _timed(_judged(told, tests, tree, (status, output)), began)


def run_cases(
    cases: Sequence[Case], tree: Path, *, promise: str, server: str, within_s: float
) -> Finding:
    """Play cases of the simulation in a copy until one breaks a promise."""
    began = monotonic()
    command = ("-m", "tests.mutants.playing", "--server", server, *map(str, cases))
    status, output = _run(command, tree, {"PYTHONHASHSEED": "0"}, within_s=within_s)
    try:
        told = orjson.loads([line for line in output.splitlines() if line[:1] == "{"][-1])
        wrong_tree = told["root"] != str(tree)
    except (orjson.JSONDecodeError, IndexError, KeyError, TypeError):
        return _timed(_neither(f"the simulation broke ({status}): {output}"), began)
    if wrong_tree:
        return _timed(_neither(f"the simulation played {told['root']}, not the copy"), began)
    if not told["broken"]:
        return _timed(Finding(is_red=False, is_green=True, text="every case passed"), began)
    text = f"case {told['played'][-1]}: {told['text']}"
    if promise not in told["broken"]:
        others = sorted(set(told["broken"]))
        return _timed(_neither(f"not {promise} but {others} broke; {text}"), began)
    return _timed(Finding(is_red=True, is_green=False, text=text), began)


def _judged(
    notes: Sequence[Mapping[str, Any]],
    tests: Sequence[str],
    tree: Path,
    ended: tuple[int | None, str],
) -> Finding:
    """Red needs an assertion in every named test; an error anywhere is neither red nor green."""
    status, output = ended
    phases = [note for note in notes if "test" in note]
    if not notes or notes[0].get("root") != str(tree) or not phases:
        return _neither(f"no test of the copy was run ({status}): {output}")
    errors = [note for note in phases if note["error"] is not None]
    for note in errors:
        if note["when"] != "call" or not note["is_no"]:
            what = f"{note['test']} broke in its {note['when']}: {note['error']} {note['text']}"
            return _neither(what)
    done = {note["test"] for note in phases if note["when"] == "call"}
    missing = [test for test in tests if not _has(test, done)]
    if missing:
        return _neither(f"these tests were not run ({status}): {missing}")
    if not errors and status == 0:
        return Finding(is_red=False, is_green=True, text="every test passed")
    said_no = {note["test"] for note in errors}
    green = [test for test in tests if not _has(test, said_no)]
    if green or status != TESTS_FAILED:
        return _neither(f"these tests did not notice it ({status}): {green}")
    return Finding(is_red=True, is_green=False, text=errors[0]["text"])


def _has(test: str, ids: set[str]) -> bool:
    """Whether a test, or one of its parameters if it is named without, is among ``ids``."""
    return any(found == test or found.startswith(f"{test}[") for found in ids)


def _neither(text: str) -> Finding:
    return Finding(is_red=False, is_green=False, text=text[-LONGEST_OUTPUT:])


def _timed(finding: Finding, began: float) -> Finding:
    return Finding(finding.is_red, finding.is_green, finding.text, monotonic() - began)


def _run(
    command: Sequence[str], tree: Path, settings: Mapping[str, str], *, within_s: float
) -> tuple[int | None, str]:
    """Exit status, None where it took too long, and the end of what was printed."""
    # Only the copy is imported from, also by processes that start elsewhere.
    environment = {**os.environ, "PYTHONPATH": str(tree), **settings}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # so that it ends the parts that it started
        try:
            output, _ = process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            output = ""
        return None, f"it took longer than {within_s:.0f} s\n{output[-LONGEST_OUTPUT:]}"
    finally:
        process.kill()
        process.wait()
    return process.returncode, output[-LONGEST_OUTPUT:]
