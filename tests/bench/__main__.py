"""``python -m tests.bench``: measure, print the page, and write it to ``docs/benchmarks.md``."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.bench.bench_house import BenchHouse
from tests.bench.measuring import ALL, Measuring, Options, Report
from tests.bench.page import render

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BOUND_S = 420.0
"""A run takes three to four minutes; a hung one must not stay."""


async def bench(options: Options, *, profiled: str) -> Report:
    """Measure on a house in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="turnwire-bench-") as folder:
        async with asyncio.timeout(BOUND_S), BenchHouse(Path(folder), profiled=profiled) as house:
            return await Measuring(house, options).run()


def main() -> None:
    """Read the options, measure, print; the page is written only by a whole run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0, help="of one window")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--only", choices=ALL, nargs="+", default=list(ALL))
    parser.add_argument(
        "--profiled", default="", help="a service, or all: write <service>.profile here"
    )
    chosen = parser.parse_args()
    options = Options(chosen.seconds, chosen.clients, chosen.only)
    report = uvloop.run(bench(options, profiled=chosen.profiled))
    text = render(report)
    sys.stdout.write(text)
    is_whole = set(options.only) == set(ALL) and {1, 8, 32} <= set(options.clients)
    if is_whole and not chosen.profiled:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
