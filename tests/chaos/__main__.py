"""``python -m tests.chaos``: break the running house by plan and say whether it held."""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

import uvloop

from tests.chaos import report
from tests.chaos.campaign import run
from tests.chaos.faults_processes import FaketimeMissing, faketime_library
from tests.chaos.schedule import AFTERMATH_S, LANES, ROLLING, Lane

GOOD, BAD, NOT_READY = 0, 1, 3


def shortened(lane: Lane, seconds: float) -> Lane:
    """The lane with as many rounds as fit; what it wants and its minima shrink with it."""
    round_s = lane.burst_s + AFTERMATH_S + lane.calm_s
    rounds = max(1, round((seconds - lane.calm_s) / round_s))
    share = rounds / lane.rounds
    wants = {kind: max(1, round(count * share)) for kind, count in lane.wants.items()}
    return replace(
        lane,
        rounds=rounds,
        wants=wants,
        rolling=round(lane.rolling * share),
        faults=round(lane.faults * share),
        min_turns=round(lane.min_turns * share),
        min_faults=round(lane.min_faults * share),
        min_touched=round(lane.min_touched * share),
    )


def command(chosen: argparse.Namespace, seed: int) -> str:
    """What repeats a run, with everything that shaped it."""
    parts = ["python -m tests.chaos", f"--lane {chosen.lane}", f"--seed {seed}"]
    if chosen.seconds:
        parts.append(f"--seconds {chosen.seconds:g}")
    if chosen.only:
        parts.append(f"--only {' '.join(chosen.only)}")
    return " ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one lane; 0 is good, 1 broken or not valid, 3 a missing package."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--lane", choices=sorted(LANES), default="ci")
    parser.add_argument("--seed", type=int, help="drawn if not given, and printed")
    parser.add_argument("--seconds", type=float, help="of load; the lane's own by default")
    parser.add_argument("--only", nargs="+", help="these kinds of faults, to look into something")
    parser.add_argument("--keep", type=Path, help="a folder that keeps logs and data")
    parser.add_argument("--write", action="store_true", help="add the run to docs/reliability.md")
    chosen = parser.parse_args(arguments)
    seed = random.randrange(1_000_000) if chosen.seed is None else chosen.seed
    lane = LANES[chosen.lane]
    if chosen.seconds:
        lane = shortened(lane, chosen.seconds)
    if chosen.only:
        wants = {kind: lane.wants.get(kind, 1) for kind in chosen.only if kind != ROLLING}
        lane = replace(lane, wants=wants, faults=0, rolling=int(ROLLING in chosen.only))
        lane = replace(lane, min_turns=0, min_faults=0, min_kinds=0, min_touched=0)
    if "clock_skew" in lane.wants:
        try:
            faketime_library()
        except FaketimeMissing as error:
            sys.stderr.write(f"{error}\n")
            return NOT_READY
    sys.stderr.write(f"lane {lane.name}, seed {seed}\n")
    began = monotonic()
    with tempfile.TemporaryDirectory(prefix="turnwire-chaos-") as folder:
        outcome = uvloop.run(run(seed, lane, chosen.keep or Path(folder)))
    outcome.seconds = monotonic() - began  # with the time that stopping took
    outcome.repeat = command(chosen, seed)
    used = resource.getrusage(resource.RUSAGE_SELF)
    sys.stderr.write(f"the rig itself used {used.ru_utime + used.ru_stime:.0f} s of CPU\n")
    sys.stdout.write(f"{report.text(outcome)}\n{report.as_json(outcome)}\n")
    if chosen.write:
        report.append_row(outcome)
    return GOOD if report.is_good(outcome) else BAD


if __name__ == "__main__":
    sys.exit(main())
