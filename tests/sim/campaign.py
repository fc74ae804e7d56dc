"""Plays many seeds in several processes, shrinks what fails, and says how much was attacked."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
import structlog

from tests.rig import parts
from tests.sim import faults as fault_plan
from tests.sim import postgres
from tests.sim.faults import PORTS, Fault
from tests.sim.mutants import MUTANTS, rewrite_of, unchanged
from tests.sim.run import Result, run

KEPT_SEEDS = Path(__file__).with_name("seeds.txt")
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 -- a folder of ours is made inside it
SEEDS_FOR_EVERY_PORT = 40
"""From so many seeds on, every port must have been hit."""

SEEDS_FOR_EVERY_KIND = 400
"""From so many seeds on, every kind of fault must have struck."""

MOST_FAILURES = 5
"""After so many failing seeds a campaign ends: more would say the same."""

SEEDS_PER_LINE = 100
LEAST_LOG_LEVEL = 50  # a run's log lines are not read; its trace says more


@dataclass(slots=True)
class Campaign:
    """What the seeds came to."""

    played: dict[int, str] = field(default_factory=dict)
    failed: list[dict[str, Any]] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    uses: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, told: Mapping[str, Any]) -> None:
        """Count one seed's result."""
        self.played[told["seed"]] = told["trace"]
        for name in ("hits", "uses", "checked", "ends"):
            getattr(self, name).update(told[name])
        if told["broken"]:
            self.failed.append(dict(told))

    def never_hit(self) -> list[str]:
        """Ports, or kinds of faults, that a run of this size should have hit and did not."""
        missing: list[str] = []
        for port, kinds in PORTS.items():
            unhit = [kind for kind in sorted(set(kinds)) if not self.hits[f"{port}/{kind}"]]
            is_unhit = len(unhit) == len(set(kinds))
            if is_unhit and len(self.played) >= SEEDS_FOR_EVERY_PORT:
                missing.append(port)
            elif len(self.played) >= SEEDS_FOR_EVERY_KIND:
                missing += [f"{port}/{kind}" for kind in unhit]
        return missing


def kept_seeds() -> list[int]:
    """Seeds that once failed."""
    lines = KEPT_SEEDS.read_text(encoding="utf-8").splitlines()
    return [int(line.split()[0]) for line in lines if line.strip() and line[0] != "#"]


@contextmanager
def prepared_server() -> Iterator[tuple[str, str]]:
    """URL of a server without durability, and the name of a migrated database on it."""
    folder = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="turnwire-sim-", dir=folder) as made,
        postgres.server(Path(made) / "postgres") as url,
        parts.migrated_template(url) as template,
    ):
        yield url, template


def play(
    seeds: Sequence[int],
    *,
    server: tuple[str, str],
    workers: int = 1,
    mutant: str | None = None,
    most_failures: int = MOST_FAILURES,
    tell: Callable[[Campaign], None] = lambda _campaign: None,
) -> Campaign:
    """Play seeds in processes of their own, each takes every n-th; too many failures end it.

    Args:
        tell: Called after each seed.

    Raises:
        RuntimeError: A process broke; it has said why.
    """
    campaign = Campaign()
    began = monotonic()
    lock = threading.Lock()

    def follow(process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with lock:
                campaign.add(orjson.loads(line))
                is_enough = len(campaign.failed) >= most_failures
                tell(campaign)
            if is_enough:
                for each in started:
                    each.terminate()
                return

    started = [
        _worker(seeds[number::workers], mutant, server)
        for number in range(min(workers, len(seeds)))
    ]
    threads = [threading.Thread(target=follow, args=[process]) for process in started]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for process in started:
            process.terminate()
        for thread in threads:
            thread.join()
        codes = [_ended(process) for process in started]
    if len(campaign.failed) < most_failures and len(campaign.played) < len(set(seeds)):
        msg = f"a process of the simulation broke; exit codes {codes}"
        raise RuntimeError(msg)
    campaign.seconds = monotonic() - began
    return campaign


def _ended(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdout is not None
    process.stdout.close()
    return process.wait()


def _worker(
    seeds: Sequence[int], mutant: str | None, server: tuple[str, str]
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.sim", "--play", orjson.dumps(list(seeds)).decode()]
    command += ["--server", *server]
    if mutant is not None:
        command += ["--mutant", mutant]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        cwd=Path(__file__).parents[2],
    )


def _play_here(arguments: argparse.Namespace) -> int:
    """One worker: plays its seeds one after the other, a line of JSON for each."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(LEAST_LOG_LEVEL))
    mutant = MUTANTS[arguments.mutant] if arguments.mutant else None
    rewrite = rewrite_of(mutant) if mutant else unchanged
    url, template = arguments.server
    with postgres.store(url, template, rewrite=rewrite) as store:
        for seed in orjson.loads(arguments.play):
            faults = (
                fault_plan.draw(seed) if arguments.only is None else parse_faults(arguments.only)
            )
            result = run(seed, faults, store, tell=arguments.trace)
            if result.broken and not mutant:
                result = _shrunk(result, store)
            sys.stdout.buffer.write(orjson.dumps(_told(result)) + b"\n")
            sys.stdout.flush()
    return 0


def _shrunk(result: Result, store: postgres.Store) -> Result:
    """The same seed with as few faults as still break the same promise first."""
    promise = _promise(result)
    place = 0
    while place < len(result.faults):
        fewer = [*result.faults[:place], *result.faults[place + 1 :]]
        tried = run(result.seed, fewer, store, tell=bool(result.lines))
        if tried.broken and _promise(tried) == promise:
            result = tried
        else:
            place += 1
    return result


def _promise(result: Result) -> str:
    return result.broken[0].partition(":")[0]


def _told(result: Result) -> dict[str, Any]:
    return {
        "seed": result.seed,
        "trace": result.trace,
        "faults": [str(fault) for fault in result.faults],
        "broken": result.broken,
        "checked": dict(result.checked),
        "hits": dict(result.hits),
        "uses": dict(result.uses),
        "ends": dict(result.ends),
        "steps": result.steps,
        "virtual_s": result.virtual_s,
        "lines": result.lines,
    }


def parse_faults(texts: Sequence[str]) -> tuple[Fault, ...]:
    """Faults as a report prints them, for a replay with just these."""
    found = []
    for text in texts:
        port, _, rest = text.partition("/")
        kind, _, rest = rest.partition("@")
        nth, _, value = rest.partition("(")
        found.append(Fault(port, kind, int(nth), float(value.rstrip(")"))))
    return tuple(found)


def _report(campaign: Campaign) -> int:
    missing = campaign.never_hit()
    _print_coverage(campaign)
    for told in campaign.failed:
        _say(f"\nseed {told['seed']} FAILS with the faults {told['faults'] or 'none'}")
        _say(f"  first promise broken: {told['broken'][0][:600]}")
        only = " ".join(f"'{fault}'" for fault in told["faults"])
        _say(f"  replay: python -m tests.sim --seed {told['seed']} --only {only}")
    if missing:
        _say(f"\nnever hit: {', '.join(missing)}")
    verdict = "FAILED" if campaign.failed or missing else "passed"
    _say(
        f"\n{len(campaign.played)} seeds {verdict} in {campaign.seconds:.0f} s; turns: "
        + ", ".join(f"{count} {status}" for status, count in sorted(campaign.ends.items()))
    )
    return 1 if campaign.failed or missing else 0


def _print_coverage(campaign: Campaign) -> None:
    _say(f"{'port':<18}{'used':>10}  faults that struck")
    for port in (*PORTS, "client"):
        kinds = sorted(set(PORTS.get(port, ("disconnect", "duplicate", "foreign_read"))))
        struck = "  ".join(f"{kind} {campaign.hits[f'{port}/{kind}']}" for kind in kinds)
        _say(f"{port:<18}{campaign.uses[port]:>10}  {struck}")
    _say("\nchecked: " + ", ".join(f"{name} {n}" for name, n in campaign.checked.items()))


def _progress(campaign: Campaign) -> None:
    if len(campaign.played) % SEEDS_PER_LINE == 0:
        _say(f"{len(campaign.played)} seeds, {len(campaign.failed)} failed")


def _end(_number: int, _frame: object) -> None:
    sys.exit(1)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=600, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="play this one and print its trace")
    parser.add_argument("--only", nargs="*", help="with --seed: these faults instead of its own")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="play a broken house")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    parser.add_argument("--server", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Exit status: 0 if every promise held and every port was hit."""
    arguments = _arguments(given)
    if arguments.play:
        return _play_here(arguments)
    signal.signal(signal.SIGTERM, _end)  # so that nothing we started outlives us
    with prepared_server() as server:
        if arguments.seed is not None:
            return _replay(arguments, server)
        wanted = range(arguments.first, arguments.first + arguments.seeds)
        seeds = list(dict.fromkeys([*kept_seeds(), *wanted]))
        campaign = play(
            seeds,
            workers=arguments.workers,
            mutant=arguments.mutant,
            server=server,
            tell=_progress,
        )
        return _report(campaign)


def _replay(arguments: argparse.Namespace, server: tuple[str, str]) -> int:
    """One seed in a process of its own, with every line of its trace."""
    process = subprocess.run(
        [
            *(sys.executable, "-m", "tests.sim", "--trace", "--server", *server),
            *("--play", f"[{arguments.seed}]"),
            *(("--mutant", arguments.mutant) if arguments.mutant else ()),
            *(("--only", *arguments.only) if arguments.only is not None else ()),
        ],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        cwd=Path(__file__).parents[2],
        check=True,
    )
    told = orjson.loads(process.stdout)
    for line in told.pop("lines"):
        _say(line)
    for name, value in told.items():
        _say(f"{name}: {value}")
    return 1 if told["broken"] else 0
