"""Says which Debian packages the lanes that need some lack, and fails if there are any."""

import ctypes
import shutil
import sys

COMMANDS = {"chromium": "chromium", "promtool": "prometheus"}
"""Command -> Debian package."""

LIBRARIES = {"libatomic.so.1": "libatomic1"}
"""Shared library -> Debian package; the browser's driver needs it and does not bring it."""


def missing() -> list[str]:
    """Names of the packages that are not there, sorted."""
    names = {package for command, package in COMMANDS.items() if not shutil.which(command)}
    for library, package in LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            names.add(package)
    return sorted(names)


def main() -> int:
    """0 when everything is there; else 1, with the packages' names."""
    names = " ".join(missing())
    if names:
        sys.stderr.write(f"these tests need Debian packages: apt-get install {names}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
