"""Writes generated files, or tells which of them are stale."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write_or_check(
    files: Mapping[str, str],
    arguments: Sequence[str],
    *,
    command: str,
    superfluous: Sequence[Path] = (),
) -> int:
    """Bring files up to date; with ``--check`` among the arguments only tell what is not.

    Args:
        files: Their texts, by path below the root.
        command: The module that makes them, for who has to run it.
        superfluous: Files that are no longer made, to be removed.

    Returns:
        The exit code: 1 if a check found anything.
    """
    stale = {
        path: text
        for path, text in files.items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text
    }
    if "--check" in arguments:
        names = [*stale, *(str(path.relative_to(ROOT)) for path in superfluous)]
        sys.stderr.writelines(f"{name} is stale: run python -m {command}\n" for name in names)
        return 1 if names else 0
    for path, text in stale.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    for page in superfluous:
        page.unlink()
    return 0
