"""The cache that every stack of one user shares: Kafka's class path and its start-up cache."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_path() -> Path:
    """``$XDG_CACHE_HOME/turnwire``, by default ``~/.cache/turnwire``; not made yet."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "turnwire"


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock file for as long as the block runs; yields whether we hold it.

    The kernel lets go of it when the process ends, however it ends.

    Args:
        wait: Whether to block until it is free; only for a process that does nothing else.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
