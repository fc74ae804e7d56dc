"""Makes any text storable: what Postgres and UTF-8 cannot hold is removed or replaced."""

import re
from dataclasses import dataclass

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")

REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Storable:
    """A text that every store and every encoder accepts.

    Attributes:
        nul_removed: How many U+0000 stood in the original.
        surrogates_replaced: How many unpaired surrogates became U+FFFD.
    """

    text: str
    nul_removed: int
    surrogates_replaced: int


def storable(text: str) -> Storable:
    """Remove U+0000, join surrogate pairs, and put U+FFFD where half of a pair stands alone.

    Applied before a text is fingerprinted or stored. Doing it twice changes nothing.
    """
    nul_removed = text.count("\0")
    if nul_removed:
        text = text.replace("\0", "")
    surrogates_replaced = 0
    if not text.isascii() and _SURROGATE.search(text):
        text = _PAIR.sub(_joined, text)
        text, surrogates_replaced = _SURROGATE.subn(REPLACEMENT, text)
    return Storable(text, nul_removed, surrogates_replaced)


def _joined(match: re.Match[str]) -> str:
    return match[0].encode("utf-16", "surrogatepass").decode("utf-16")
