"""Tries every mutant of a lane, after the tree itself has passed the same tests, and reports."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from queue import SimpleQueue
from time import monotonic

from tests.mutants.mutant import BadPatch, Lane, Mutant, load_all
from tests.mutants.trial import TRIAL_S, Finding, copied, run_cases, run_tests
from tests.sim import postgres
from tests.sim.campaign import Case

SLOTS = 2
"""Trials at a time: one for each core of the smallest machine that is supported."""

UNBROKEN_S = 300.0
"""Longest run of all directed tests of one slot on the tree as it is."""

LONGEST_SAID = 120
"""Characters of what a test said; enough to see that it is red for the right reason."""

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 -- a folder of ours is made inside it


@dataclass(slots=True)
class Report:
    """What was found, and what the last line says."""

    caught: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, mutant: Mutant, finding: Finding) -> None:
        """Count one mutant and print its line."""
        if finding.is_red:
            self.caught.append(mutant.name)
            verdict = "caught"
        else:
            self.wrong.append(mutant.name)
            verdict = "SURVIVED" if finding.is_green else "NOT TRIED"
        say(f"{verdict:<9} {finding.seconds:5.1f} s  {mutant.name}  ({mutant.promise})")
        for test in mutant.tests:
            say(f"{'':20}{test}")
        if mutant.cases:
            say(f"{'':20}simulation, {len(mutant.cases)} cases")
        if finding.is_red:
            say(f"{'':20}said: {finding.text.strip().partition(chr(10))[0][:LONGEST_SAID]}")
        else:
            say(f"{'':20}{mutant.breaks}\n{'':20}{finding.text}")


def try_all(mutants: Sequence[Mutant]) -> int:
    """Try mutants and print a report.

    Returns:
        0 if the tree itself passed, and every mutant was caught by what it names.
    """
    began = monotonic()
    report = Report()
    for lane in ("ci", "full"):
        chosen = [mutant for mutant in mutants if mutant.lane == lane]
        if not chosen:
            continue
        slots = SLOTS if lane == "ci" else 1  # a whole house needs the machine for itself
        with slot_servers(slots if lane == "ci" else 0) as servers:
            if not _unbroken_passes(chosen, lane, servers or [None]):
                return 1
            _try(chosen, lane, servers or [None], report)
    seconds = monotonic() - began
    say(f"\n{len(report.caught)} of {len(mutants)} mutants caught in {seconds:.0f} s")
    if report.wrong:
        say(f"NOT caught: {', '.join(report.wrong)}")
    return 1 if report.wrong else 0


@contextmanager
def slot_servers(count: int) -> Iterator[list[str | None]]:
    """URLs of so many Postgres servers, which forget everything at their end.

    One for each slot, since the roles of a server are shared by all of its databases.
    """
    folder = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
    if count == 0:
        yield []
        return
    with (
        tempfile.TemporaryDirectory(prefix="turnwire-mutants-", dir=folder) as made,
        postgres.server(Path(made) / "postgres") as url,
        slot_servers(count - 1) as others,
    ):
        yield [url, *others]


def _unbroken_passes(mutants: Sequence[Mutant], lane: Lane, servers: Sequence[str | None]) -> bool:
    """Whether the tree as it is passes everything that has to go red; else red means nothing."""
    began = monotonic()
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    cases = sorted({case for mutant in mutants for case in mutant.cases}, key=str)
    within_s = UNBROKEN_S if lane == "ci" else TRIAL_S[lane] * len(mutants)

    def work(server: str | None, share: Sequence[str], played: Sequence[Case]) -> list[Finding]:
        with copied() as tree:
            found = []
            if share:
                found.append(run_tests(share, tree, server=server, within_s=within_s))
            if played and server is not None:
                promise = mutants[0].promise  # none may break, whatever its name
                found.append(
                    run_cases(played, tree, promise=promise, server=server, within_s=within_s)
                )
            return found

    count = len(servers)
    with ThreadPoolExecutor(count) as pool:
        waiting = [
            pool.submit(work, server, tests[place::count], cases[place::count])
            for place, server in enumerate(servers)
        ]
        findings = [finding for one in waiting for finding in one.result()]
    wrong = [finding.text for finding in findings if not finding.is_green]
    for text in wrong:
        say(f"the unbroken tree fails a directed test, so no mutant can be judged: {text}")
    if not wrong:
        done = f"{len(tests)} tests and {len(cases)} cases in {monotonic() - began:.0f} s"
        say(f"the unbroken tree passes the directed {done}\n")
    return not wrong


def _try(
    mutants: Sequence[Mutant], lane: Lane, servers: Sequence[str | None], report: Report
) -> None:
    free: SimpleQueue[str | None] = SimpleQueue()
    for server in servers:
        free.put(server)

    def work(mutant: Mutant) -> Finding:
        server = free.get()
        try:
            return _tried(mutant, lane, server)
        finally:
            free.put(server)

    with _pool(len(servers)) as submit:
        running = {submit(work, mutant): mutant for mutant in mutants}
        while running:
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                report.add(running.pop(done), done.result())


@contextmanager
def _pool(
    size: int,
) -> Iterator[Callable[[Callable[[Mutant], Finding], Mutant], "Future[Finding]"]]:
    """Threads that begin nothing more once the block is left."""
    pool = ThreadPoolExecutor(size)
    try:
        yield pool.submit
    finally:
        pool.shutdown(cancel_futures=True)


def _tried(mutant: Mutant, lane: Lane, server: str | None) -> Finding:
    found: list[Finding] = []
    within_s = TRIAL_S[lane]
    try:
        with copied(mutant) as tree:
            if mutant.tests:
                found.append(
                    run_tests(
                        mutant.tests,
                        tree,
                        server=server,
                        within_s=within_s,
                        says_no_by=mutant.says_no_by,
                    )
                )
            if mutant.cases and server is not None:
                promise = mutant.promise
                found.append(
                    run_cases(mutant.cases, tree, promise=promise, server=server, within_s=within_s)
                )
    except BadPatch as error:
        return Finding(is_red=False, is_green=False, text=str(error))
    return reduce(Finding.and_then, found)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _end(_number: int, _frame: object) -> None:
    sys.exit(1)


def main(given: Sequence[str] | None = None) -> int:
    """Exit status: 0 if every mutant was caught."""
    mutants = load_all()
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", choices=sorted(mutants), action="append", metavar="NAME")
    parser.add_argument("--lane", choices=("ci", "full"), default="ci")
    arguments = parser.parse_args(given)
    signal.signal(signal.SIGTERM, _end)  # so that nothing we started outlives us
    if arguments.only:
        return try_all([mutants[name] for name in arguments.only])
    return try_all([m for m in mutants.values() if m.lane == "ci" or arguments.lane == "full"])
