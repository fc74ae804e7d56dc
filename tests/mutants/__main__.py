"""Tries the mutants: ``python -m tests.mutants``, or ``--only NAME`` for one."""

import sys

from tests.mutants.campaign import main

if __name__ == "__main__":
    sys.exit(main())
