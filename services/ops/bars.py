"""A bar on a terminal for what takes longer than a moment; nothing anywhere else."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from services.ops.screen import Screen

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOW_AFTER_S = 2.0  # what is done sooner needs no bar


class Bar:
    """How far something is. Made by ``bar``; one that is never shown only counts.

    Args:
        total: None while nobody knows; the bar then only says that it goes on.
    """

    def __init__(self, text: str = "", *, total: int | None = None) -> None:
        self._lock = threading.Lock()  # a timer shows it while the command goes on
        self._text = text
        self._total = total
        self._done = 0
        self._is_closed = False
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def stage(self, text: str, *, total: int | None = None) -> None:
        """The next part of the work begins."""
        with self._lock:
            self._text, self._total, self._done = text, total, 0
            if self._progress is not None and self._task is not None:
                self._progress.remove_task(self._task)
                self._task = self._progress.add_task(text, total=total)

    def advance(self, number: int) -> None:
        """So much more is done."""
        with self._lock:
            self._done += number
            if self._progress is not None and self._task is not None:
                self._progress.update(self._task, completed=self._done)

    def show(self) -> None:
        """Put it on the terminal, unless the work is over."""
        from rich.console import Console  # noqa: PLC0415 -- 0.1 s, and only on a terminal
        from rich.progress import Progress  # noqa: PLC0415 -- so is this

        with self._lock:
            if self._is_closed:
                return
            self._progress = Progress(
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._progress.start()
            self._task = self._progress.add_task(
                self._text, total=self._total, completed=self._done
            )

    def close(self) -> None:
        """Leave the terminal as it was."""
        with self._lock:
            self._is_closed = True
            if self._progress is not None:
                self._progress.stop()
                self._progress = None


@contextmanager
def bar(screen: Screen, text: str, *, total: int | None = None) -> Iterator[Bar]:
    """A bar that comes after a moment, whatever the work waits for, and is gone at its end."""
    shown = Bar(text, total=total)
    timer = threading.Timer(SHOW_AFTER_S, shown.show)
    timer.daemon = True  # a command that ends early is not held up
    if sys.stderr.isatty() and not screen.quiet:
        timer.start()
    try:
        yield shown
    finally:
        timer.cancel()
        shown.close()
