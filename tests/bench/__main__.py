"""``python -m tests.bench``: measure, print, and write the figures to ``docs/benchmarks.md``."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.bench.bench_house import BenchHouse
from tests.bench.measuring import ALL, QUICK, Measuring, Options, Report, Sizes
from tests.bench.page import render
from tests.bench.page_file import write_part

BOUND_S = 900.0
"""A run takes seven to eight minutes; a hung one must not stay."""

CLIENTS = (1, 8, 32, 128)
QUICK_CLIENTS = (1, 32)
WINDOW_S = 12.0
QUICK_WINDOW_S = 5.0


async def bench(options: Options, *, profiled: str) -> Report:
    """Measure on a house in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="turnwire-bench-") as folder:
        async with asyncio.timeout(BOUND_S), BenchHouse(Path(folder), profiled=profiled) as house:
            return await Measuring(house, options).run()


def main() -> None:
    """Read the options, measure, print; the page is written only by a whole run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, help=f"of one window; {WINDOW_S:.0f}")
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--only", choices=ALL, nargs="+", default=list(ALL))
    parser.add_argument(
        "--quick", action="store_true", help="less of everything, in two minutes; writes no page"
    )
    parser.add_argument(
        "--profiled", default="", help="a service, or all: write <service>.profile here"
    )
    chosen = parser.parse_args()
    options = Options(
        chosen.seconds or (QUICK_WINDOW_S if chosen.quick else WINDOW_S),
        chosen.clients or (QUICK_CLIENTS if chosen.quick else CLIENTS),
        chosen.only,
        QUICK if chosen.quick else Sizes(),
    )
    report = uvloop.run(bench(options, profiled=chosen.profiled))
    text = render(report)
    sys.stdout.write(text + "\n")
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.stage_s.items())
    sys.stderr.write(f"took: {took}\n")
    is_whole = set(options.only) == set(ALL) and set(CLIENTS) <= set(options.clients)
    if is_whole and not chosen.quick and not chosen.profiled:
        write_part("bench", text)


if __name__ == "__main__":
    main()
