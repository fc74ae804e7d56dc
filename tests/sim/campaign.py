"""Plays many seeds in several processes, shrinks what fails, and says how much was attacked."""

import argparse
import contextlib
import gc
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import orjson
import structlog

from tests.rig import parts
from tests.rig.verdict import table, too_few
from tests.sim import faults as fault_plan
from tests.sim import postgres
from tests.sim.faults import DEEDS, OPERATIONS, PORTS, Fault
from tests.sim.mutants import MUTANTS, rewrite_of, unchanged
from tests.sim.run import Result, run

KEPT_SEEDS = Path(__file__).with_name("seeds.txt")
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 -- a folder of ours is made inside it
SEEDS_FOR_EVERY_PORT = 40
"""From so many seeds on, every port must have been hit."""

SEEDS_FOR_EVERY_KIND = 400
"""From so many seeds on, every kind of fault must have struck."""

LEAST_CHECKED: Mapping[str, float] = {
    "one_turn_per_key": 10,
    "one_terminal_per_turn": 10,
    "no_accepted_turn_lost": 3,
    "stream_equals_store": 10,
    "serial_per_conversation": 2,
    "current_turn_once_in_plan": 3,
    "superseded_excluded": 3,
    "plan_within_budget": 3,
    "plan_deterministic": 6,
    "tenant_isolation": 30,
    "policy_kept": 0.5,
    "deleted_is_gone": 3,
    "cancelled_in_time": 0.03,
    "canary_seen": 8,
    "at_rest": 10,
    "recovery_in_time": 0.01,  # few deaths meet a turn and no other fault
}
"""A campaign looked at each promise at least so often a seed, or it has seen nothing."""

MOST_FAILURES = 5
"""After so many failing seeds a campaign ends: more would say the same."""

SEEDS_PER_LINE = 100
LEAST_LOG_LEVEL = 50  # a run's log lines are not read; its trace says more


@dataclass(frozen=True, slots=True)
class Case:
    """A seed, and the faults to play it with; None leaves those that the seed draws."""

    seed: int
    only: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return str(self.seed) if self.only is None else shlex.join([str(self.seed), *self.only])


@dataclass(slots=True)
class Campaign:
    """What the seeds came to; ``played`` has the trace hash of each case by its name."""

    played: dict[str, str] = field(default_factory=dict)
    failed: list[dict[str, Any]] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    uses: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, told: Mapping[str, Any]) -> None:
        """Count one seed's result."""
        self.played[told["case"]] = told["trace"]
        for name in ("hits", "uses", "struck", "checked", "ends"):
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
        if len(self.played) >= SEEDS_FOR_EVERY_PORT:
            deeds = [f"{who}/{deed}" for who, deeds in DEEDS.items() for deed in deeds]
            missing += [deed for deed in deeds if not self.hits[deed]]
        if len(self.played) >= SEEDS_FOR_EVERY_KIND:
            missing += [f"during {one}" for one in OPERATIONS if not self.struck_during(one)]
        return missing

    def struck_during(self, operation: str) -> dict[str, int]:
        """How often faults struck while somebody waited for an operation, by port."""
        found = {port: self.struck[f"{operation}/{port}"] for port in PORTS}
        return {port: count for port, count in found.items() if count}

    def unseen(self) -> list[str]:
        """Promises that a run of this size should have checked more often."""
        if len(self.played) < SEEDS_FOR_EVERY_KIND:
            return []
        least = {name: int(each * len(self.played)) for name, each in LEAST_CHECKED.items()}
        return too_few(self.checked, least)


def kept_cases(name: str | None = None) -> list[Case]:
    """Cases that once failed, or that a broken house must fail; all, or those of one name."""
    cases = []
    for line in KEPT_SEEDS.read_text(encoding="utf-8").splitlines():
        words = shlex.split(line, comments=True)
        if words and name in (None, words[0]):
            cases.append(Case(int(words[1]), tuple(words[2:]) if len(words) > 2 else None))
    return cases


def kept_names() -> list[str]:
    """Names under which cases are kept."""
    lines = KEPT_SEEDS.read_text(encoding="utf-8").splitlines()
    return sorted({words[0] for line in lines if (words := shlex.split(line, comments=True))})


@contextlib.contextmanager
def prepared_server() -> Iterator[tuple[str, str]]:
    """URL of a server without durability, and the name of a migrated database on it."""
    folder = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="turnwire-sim-", dir=folder) as made,
        postgres.server(Path(made) / "postgres") as url,
        parts.migrated_template(url) as template,
    ):
        yield url, template


@dataclass(frozen=True, slots=True)
class Style:
    """How cases are played.

    Attributes:
        mutant: Name of what is broken in the house.
        most_failures: After so many failing cases no more are played.
        shrinks: Look for as few faults as still break the same promise first.
        spares_looks: See ``tests.sim.looks``.
    """

    mutant: str | None = None
    most_failures: int = MOST_FAILURES
    shrinks: bool = True
    spares_looks: bool = True


def play(
    cases: Sequence[Case],
    *,
    server: tuple[str, str],
    workers: int = 1,
    style: Style | None = None,
    tell: Callable[[Campaign], None] = lambda _campaign: None,
) -> Campaign:
    """Play cases in processes of their own, each takes the next; too many failures end it.

    Args:
        tell: Called after each case.

    Raises:
        RuntimeError: A process broke; it has said why.
    """
    campaign = Campaign()
    style = style or Style()
    began = monotonic()
    lock = threading.Lock()
    left = iter(cases)

    def follow(process: "subprocess.Popen[bytes]") -> None:
        _hand(process, left, lock)
        assert process.stdout is not None
        for line in process.stdout:
            _hand(process, left, lock)
            with lock:
                campaign.add(orjson.loads(line))
                is_enough = len(campaign.failed) >= style.most_failures
                tell(campaign)
            if is_enough:
                for each in started:
                    each.terminate()
                return

    started = [_worker(style, server) for _ in range(min(workers, len(cases)))]
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
    if len(campaign.failed) < style.most_failures and len(campaign.played) < len(set(cases)):
        msg = f"a process of the simulation broke; exit codes {codes}"
        raise RuntimeError(msg)
    campaign.seconds = monotonic() - began
    return campaign


def _hand(process: "subprocess.Popen[bytes]", left: Iterator[Case], lock: threading.Lock) -> None:
    """Give a process the next case; where there is none it ends."""
    with lock:
        case = next(left, None)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is gone, as its exit status will say
        if case is None:
            process.stdin.close()
        else:
            process.stdin.write(orjson.dumps([case.seed, case.only]) + b"\n")
            process.stdin.flush()


def _ended(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    return process.wait()


def _worker(style: Style, server: tuple[str, str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.sim", "--play", "--server", *server]
    if style.mutant is not None:
        command += ["--mutant", style.mutant]
    if not style.shrinks:
        command.append("--unshrunk")
    if not style.spares_looks:
        command.append("--every-look")
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        cwd=Path(__file__).parents[2],
    )


def _play_here(arguments: argparse.Namespace) -> int:
    """One worker: plays the cases that it is handed, a line of JSON for each."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(LEAST_LOG_LEVEL))
    mutant = MUTANTS[arguments.mutant] if arguments.mutant else None
    rewrite = rewrite_of(mutant) if mutant else unchanged
    url, template = arguments.server
    with postgres.store(
        url, template, rewrite=rewrite, spares_looks=not arguments.every_look
    ) as store:
        gc.disable()  # whatever happens at a collection happens between two runs
        for number, line in enumerate(sys.stdin.buffer):
            seed, only = orjson.loads(line)
            case = Case(seed, None if only is None else tuple(only))
            faults = fault_plan.draw(seed) if only is None else parse_faults(only)
            result = run(seed, faults, store, tell=arguments.trace)
            if result.broken and not arguments.unshrunk:
                result = _shrunk(result, store)
            told = {"case": str(case), **_told(result)}
            sys.stdout.buffer.write(orjson.dumps(told) + b"\n")
            sys.stdout.flush()
            gc.collect()
            if number == 0:
                gc.freeze()  # what has been loaded by now stays, and need not be looked at again
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
        "struck": dict(result.struck),
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


def report(campaign: Campaign) -> int:
    """Print what was attacked, what was seen and what failed; the exit status that follows."""
    missing, unseen = campaign.never_hit(), campaign.unseen()
    _print_coverage(campaign)
    for told in campaign.failed:
        _say(f"\nseed {told['seed']} FAILS with the faults {told['faults'] or 'none'}")
        _say(f"  first promise broken: {told['broken'][0][:600]}")
        only = " ".join(f"'{fault}'" for fault in told["faults"])
        _say(f"  replay: python -m tests.sim --seed {told['seed']} --only {only}")
    if missing:
        _say(f"\nnever hit: {', '.join(missing)}")
    for complaint in unseen:
        _say(f"\nseen too little: {complaint}")
    is_bad = bool(campaign.failed or missing or unseen)
    verdict = "FAILED" if is_bad else "passed"
    _say(
        f"\n{len(campaign.played)} seeds {verdict} in {campaign.seconds:.0f} s; turns: "
        + ", ".join(f"{count} {status}" for status, count in sorted(campaign.ends.items()))
    )
    return int(is_bad)


def _print_coverage(campaign: Campaign) -> None:
    _say(f"{'port':<18}{'used':>10}  faults that struck")
    for port, names in (*PORTS.items(), *DEEDS.items()):
        kinds = sorted(set(names))
        struck = "  ".join(f"{kind} {campaign.hits[f'{port}/{kind}']}" for kind in kinds)
        _say(f"{port:<18}{campaign.uses[port]:>10}  {struck}")
    _say(f"\n{'waited for':<18}{'struck':>10}  by faults of")
    for operation in OPERATIONS:
        by_port = campaign.struck_during(operation)
        told = "  ".join(f"{port} {count}" for port, count in by_port.items())
        _say(f"{operation:<18}{sum(by_port.values()):>10}  {told}")
    broken = Counter(told["broken"][0].partition(":")[0] for told in campaign.failed)
    _say("\n" + table(campaign.checked, broken))


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
    parser.add_argument("--kept", choices=kept_names(), help="play the kept cases of this name")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="play a broken house")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--server", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--every-look", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--unshrunk", action="store_true", help="report failures as they came")
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
        drawn = [] if arguments.kept else [Case(seed) for seed in wanted]
        campaign = play(
            list(dict.fromkeys([*kept_cases(arguments.kept), *drawn])),
            workers=arguments.workers,
            style=Style(arguments.mutant, shrinks=not arguments.unshrunk),
            server=server,
            tell=_progress,
        )
        return report(campaign)


def _replay(arguments: argparse.Namespace, server: tuple[str, str]) -> int:
    """One seed in a process of its own, with every line of its trace."""
    process = subprocess.run(
        [
            *(sys.executable, "-m", "tests.sim", "--trace", "--server", *server),
            "--play",
            *(("--mutant", arguments.mutant) if arguments.mutant else ()),
            "--unshrunk",
        ],
        input=orjson.dumps([arguments.seed, arguments.only]),
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
