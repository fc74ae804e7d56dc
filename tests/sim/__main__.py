"""Plays seeds: ``python -m tests.sim --seeds 600``, or ``--seed 17`` for one with its trace."""

import sys

from tests.sim.campaign import main

if __name__ == "__main__":
    sys.exit(main())
