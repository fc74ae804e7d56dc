"""Says which Debian packages the browser lane lacks, and fails if there are any."""

import shutil
import sys

NEEDED = {"chromium": "chromium"}
"""Command -> Debian package."""


def main() -> int:
    """0 when everything is there; else 1, with the packages' names."""
    missing = sorted(package for command, package in NEEDED.items() if not shutil.which(command))
    if missing:
        names = " ".join(missing)
        sys.stderr.write(f"these tests need Debian packages: apt-get install {names}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
