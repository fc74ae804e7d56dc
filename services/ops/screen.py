"""Where a command's words go: results to stdout, messages and progress to stderr."""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from services.ops.failures import CommandFailed, ExitCode

GAP = "  "  # between columns
SIGNIFICANT_DIGITS = 3

_STYLES: Mapping[str, str] = {
    "ok": "32",
    "warn": "33",
    "bad": "31",
    "idle": "90",
    "wire": "36",
    "head": "4",
}
# States of turns and parts, and how each is shown; a word always stands beside its colour.
_STATE_STYLES: Mapping[str, str] = {
    "completed": "ok",
    "ready": "ok",
    "degraded": "warn",
    "silent": "bad",
    "absent": "bad",
    "queued": "idle",
    "ok": "ok",
    "included": "ok",
    "partial": "warn",
    "waiting_for_tool": "warn",
    "generating": "wire",
    "warn": "warn",
    "not ready": "warn",
    "failed": "bad",
    "fail": "bad",
    "ended": "bad",
    "revoked": "idle",
    "cancelled": "idle",
    "pending": "idle",
    "given": "idle",
}
# Terminals obey control characters; an answer must not be able to move the cursor.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Screen:
    """How this run speaks.

    Attributes:
        as_json: Results are one JSON document on stdout.
        quiet: Nothing but results and errors.
        no_input: Never ask; what would have to be asked is a usage error.
    """

    as_json: bool = False
    quiet: bool = False
    no_input: bool = False

    def result(self, data: Any, lines: Iterable[str]) -> None:
        """Print what was asked for: as a JSON document, or as lines for people."""
        if self.as_json:
            self.document(data)
            return
        for line in lines:
            self.out(line)

    def document(self, data: Any) -> None:
        """Print one JSON document."""
        self.out(json.dumps(data, indent=2, ensure_ascii=False, default=str))

    def out(self, text: str = "", *, end: str = "\n") -> None:
        """Print a part of the result at once."""
        print(text, end=end, flush=True)

    def say(self, text: str = "") -> None:
        """Tell the person something that is not the result."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def fail(self, text: str) -> None:
        """Tell why the command failed; never silenced."""
        mark = painted("Error:", "bad", on=sys.stderr)
        print(f"{mark} {text}", file=sys.stderr, flush=True)

    def state(self, word: str) -> str:
        """A state's word in its colour."""
        return painted(word, _STATE_STYLES.get(word, ""))

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only if the person agrees.

        Args:
            yes: Given by ``--yes``: do not ask.

        Raises:
            CommandFailed: The person said no, or nobody can be asked.
        """
        if yes:
            return
        if self.no_input or not sys.stdin.isatty():
            msg = f"{question} Nobody can be asked here; add --yes to go on."
            raise CommandFailed(msg, exit_code=ExitCode.USAGE)
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            msg = "You said no, so nothing was changed."
            raise CommandFailed(msg)


def painted(text: str, style: str, *, on: TextIO | None = None) -> str:
    """The text in a colour where the stream is a terminal that wants colours."""
    code = _STYLES.get(style)
    return f"\x1b[{code}m{text}\x1b[0m" if code and has_colours(on or sys.stdout) else text


def has_colours(stream: TextIO) -> bool:
    """Whether colours may be written to a stream."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def harmless(text: str) -> str:
    """A text without the characters that a terminal would obey; tabs and line ends stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()
) -> list[str]:
    """Lines of a table: two spaces between columns, the header underlined.

    Args:
        numbers: Columns that stand at the right.
    """
    cells = [list(row) for row in rows]
    widths = [
        max(width_of(column), *(width_of(row[n]) for row in cells), 0)
        for n, column in enumerate(columns)
    ]
    at_right = [column in numbers for column in columns]
    head = [_padded(c, w, r) for c, w, r in zip(columns, widths, at_right, strict=True)]
    if has_colours(sys.stdout):
        lines = [GAP.join(painted(cell, "head") for cell in head)]
    else:
        lines = [GAP.join(head).rstrip(), GAP.join("-" * width for width in widths)]
    for row in cells:
        padded = [_padded(c, w, r) for c, w, r in zip(row, widths, at_right, strict=True)]
        lines.append(GAP.join(padded).rstrip())
    return lines


def width_of(text: str) -> int:
    """Cells that a text takes on a terminal; colours take none, wide characters two."""
    plain = re.sub(r"\x1b\[\d+m", "", text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in plain
    )


def _padded(text: str, width: int, is_right: bool) -> str:  # noqa: FBT001 -- two sides
    space = " " * (width - width_of(text))
    return space + text if is_right else text + space


def duration(seconds: float) -> str:
    """A duration with three significant digits, such as ``1.24 s`` or ``2 h 5 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.{SIGNIFICANT_DIGITS}g} ms"
    if seconds < 60:  # noqa: PLR2004 -- seconds of a minute
        return f"{seconds:.{SIGNIFICANT_DIGITS}g} s"
    minutes, _ = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {int(seconds) % 60} s"
