"""Suggests the known name that an unknown one was probably meant to be."""

import difflib
from collections.abc import Iterable

MIN_LIKENESS = 0.6  # difflib's own default: below it suggestions mislead more than they help
MAX_CHARACTERS = 64  # a longer name is no slip of the pen, and comparing is quadratic


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name, or None if nothing is similar."""
    if len(name) > MAX_CHARACTERS:
        return None
    by_folded = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=MIN_LIKENESS)
    return by_folded[found[0]] if found else None
