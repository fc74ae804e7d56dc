"""``python -m tests.bench.peer``: measure both, print, and write into ``docs/benchmarks.md``."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.bench.bench_house import BenchHouse
from tests.bench.page_file import write_part
from tests.bench.peer.comparing import Comparison, compare
from tests.bench.peer.environment import peer_python
from tests.bench.peer.page import GOAL_CLIENTS, render

BOUND_S = 420.0
"""A run takes two to three minutes once the environment is there; a hung one must not stay."""

CLIENTS = (1, 8, 32)


async def run(*, clients: list[int], seconds: float) -> Comparison:
    """Measure on a house in a temporary folder."""
    python = await peer_python()
    with tempfile.TemporaryDirectory(prefix="turnwire-bench-") as folder:
        async with asyncio.timeout(BOUND_S), BenchHouse(Path(folder)) as house:
            return await compare(house, python, clients=clients, seconds=seconds)


def main() -> None:
    """Read the options, measure, print; the page is written only by a whole run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of one window")
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS))
    parser.add_argument("--quick", action="store_true", help="only 32 clients; writes no page")
    chosen = parser.parse_args()
    clients = [GOAL_CLIENTS] if chosen.quick else chosen.clients
    found = uvloop.run(run(clients=clients, seconds=chosen.seconds))
    text = render(found, seconds=chosen.seconds)
    sys.stdout.write(text + "\n")
    if set(CLIENTS) <= set(clients):
        write_part("peer", text)


if __name__ == "__main__":
    main()
