"""Tells a person who waits what is being started, and how long each thing took."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from time import monotonic
from typing import TYPE_CHECKING

from services.ops.screen import Screen, duration, painted

if TYPE_CHECKING:
    from rich.status import Status

SPIN_AFTER_S = 0.3  # what is done sooner needs no spinner
TELL_EVERY_S = 2.0  # where nothing can spin, a line says that it still goes on
NAME_WIDTH = 18


class Progress:
    """Steps that run side by side; lines on stderr, with a spinner where that is a terminal."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._open: dict[str, float] = {}
        self._status: Status | None = None
        self._told_at = monotonic()

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show what is going on for as long as the block runs."""
        watching = asyncio.create_task(self._watch(), name="progress")
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            self._clear()

    @contextlib.contextmanager
    def step(self, name: str, detail: str = "") -> Iterator[None]:
        """One step; its time is told when it is done.

        Args:
            detail: Stands behind the time.
        """
        self.begin(name)
        try:
            yield
        except BaseException:
            self._open.pop(name, None)
            raise
        self.end(name, detail)

    def begin(self, name: str) -> None:
        """A step begins."""
        self._open[name] = monotonic()

    def note(self, name: str, text: str) -> None:
        """Say what takes long, or what happened to a part."""
        self._line(name, text)

    def end(self, name: str, detail: str = "") -> None:
        """A step is done; tell how long it took."""
        seconds = monotonic() - self._open.pop(name, monotonic())
        mark = painted("ready in", "ok", on=sys.stderr)
        self._line(name, f"{mark} {duration(seconds):>8}{'  ' if detail else ''}{detail}")

    def _line(self, name: str, text: str) -> None:
        line = f"  {name:<{NAME_WIDTH}}{text}"
        if self._status is not None:
            self._status.stop()
            self._screen.say(line)
            self._status.start()
            return
        self._screen.say(line)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SPIN_AFTER_S)
            if not self._open or self._screen.quiet:
                self._clear()
            elif sys.stderr.isatty():
                self._spin()
            elif monotonic() - self._told_at >= TELL_EVERY_S:
                self._tell()

    def _spin(self) -> None:
        oldest = monotonic() - min(self._open.values())
        text = f"{', '.join(self._open)}  {duration(oldest)}"
        if self._status is None:
            from rich.console import Console  # noqa: PLC0415 -- 0.1 s, and only on a terminal
            from rich.status import Status  # noqa: PLC0415 -- so is this

            self._status = Status(text, console=Console(stderr=True), spinner="line")
            self._status.start()
        self._status.update(text)

    def _tell(self) -> None:
        self._told_at = monotonic()
        for name, began in self._open.items():
            seconds = monotonic() - began
            if seconds >= TELL_EVERY_S:
                self._line(name, f"still starting, {seconds:.0f} s")

    def _clear(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
