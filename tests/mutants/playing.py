"""Plays cases of the simulation in the tree it is started in, until one breaks a promise."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson
import structlog

import services
from tests.rig import parts
from tests.sim import faults, postgres
from tests.sim.campaign import parse_faults
from tests.sim.mutants import unchanged
from tests.sim.run import run

LEAST_LOG_LEVEL = 50  # the trace says more than a log


def main(given: Sequence[str] | None = None) -> int:
    """Print what was played as one line of JSON.

    ``broken`` are the promises that the last case broke, the first one first.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="URL of a superuser")
    parser.add_argument("cases", nargs="+", help="a seed, or one with its faults, as one word")
    arguments = parser.parse_args(given)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(LEAST_LOG_LEVEL))
    played: list[str] = []
    broken: list[str] = []
    with (
        parts.migrated_template(arguments.server) as template,
        postgres.store(arguments.server, template, rewrite=unchanged) as store,
    ):
        for case in arguments.cases:
            played.append(case)
            number, *only = shlex.split(case)
            seed = int(number)
            broken = run(seed, parse_faults(only) if only else faults.draw(seed), store).broken
            if broken:
                break
    told = {
        "root": str(Path(services.__file__).parents[1]),
        "played": played,
        "broken": [text.partition(":")[0] for text in broken],
        "text": broken[0] if broken else "",
    }
    sys.stdout.buffer.write(orjson.dumps(told) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
