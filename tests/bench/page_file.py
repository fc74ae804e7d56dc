"""The page of figures, to which several commands write: each replaces its own part only."""

import re
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"

PARTS: Sequence[str] = ("bench", "peer", "soak")
"""In the order of the page; ``make bench``, ``make bench-peer`` and ``make soak`` write them."""

TITLE = "# What a turn costs"


def replaced(page: str, part: str, body: str) -> str:
    """The page with one part's text replaced, or put in its place; the other parts stay."""
    bodies = {name: _body_of(page, name) for name in PARTS} | {part: body.strip()}
    written = [
        f"<!-- {name} -->\n\n{bodies[name]}\n\n<!-- end of {name} -->"
        for name in PARTS
        if bodies[name]
    ]
    return "\n\n".join([TITLE, *written]) + "\n"


def write_part(part: str, body: str) -> None:
    """Replace one part of the page in the tree."""
    known = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    PAGE.write_text(replaced(known, part, body), encoding="utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of the page."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def goal(name: str, wanted: str, found: str, *, is_met: bool) -> Sequence[str]:
    """One row of a table of goals."""
    return name, wanted, found, "met" if is_met else "missed"


GOAL_HEAD = ("goal", "wanted", "found", "")


def milliseconds(value: float) -> str:
    """As the page writes times."""
    return f"{value:.1f} ms"


def _body_of(page: str, part: str) -> str:
    found = re.search(rf"<!-- {part} -->\n\n(.*?)\n\n<!-- end of {part} -->", page, re.DOTALL)
    return found[1] if found else ""
