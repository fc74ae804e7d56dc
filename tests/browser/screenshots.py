"""Takes the pictures of the documents: ``python -m tests.browser.screenshots [FOLDER] [PAGE …]``.

PAGE is one of ``chat``, ``inspector`` and ``ops``; without one, all of them are taken. The pages
are real, in a real browser, before rows that are planted, so that the pictures stay the same.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.browser import scenes_chat, scenes_inspector, scenes_ops
from tests.browser.pictures import smaller

FOLDER = Path(__file__).parents[2] / "docs" / "images"
PAGES = ("chat", "inspector", "ops")
MAX_BYTES = 150_000
"""A picture above it makes a page of the documents slow to open."""


async def take(folder: Path, pages: Sequence[str]) -> None:
    """Take the pictures of these pages into a folder."""
    if "chat" in pages:
        await scenes_chat.take(folder)
    if "inspector" in pages:
        await scenes_inspector.take(folder)
    if "ops" in pages:
        await scenes_ops.main(folder, scenes_ops.PICTURED)


def main(arguments: Sequence[str]) -> int:
    """Take the pictures; 1 if one of them is too large."""
    pages = [one for one in arguments if one in PAGES] or PAGES
    folders = [Path(one) for one in arguments if one not in PAGES]
    folder = folders[0] if folders else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(folder, pages))
    is_fine = True
    for path in sorted(folder.glob("*.png")):
        size = path.write_bytes(smaller(path.read_bytes()))
        is_fine = is_fine and size <= MAX_BYTES
        note = "" if size <= MAX_BYTES else "  too large"
        print(f"{size:>8}  {path}{note}")  # noqa: T201 -- a command
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
