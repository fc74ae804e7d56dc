"""Reads the header Idempotency-Key: a string of RFC 8941 section 3.3.3, or a bare word."""

import re
from collections.abc import Sequence

from services.frontend_gateway.core.problems import Problem

MAX_CHARACTERS = 255  # fits an index row and every client's key of choice

_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
# Visible ASCII without quote, comma, semicolon and backslash.
_BARE = re.compile(r"[!#-+\-./:<-\[\]-~0-9]+")
_ESCAPED = re.compile(r'\\(["\\])')


def idempotency_key(values: Sequence[str], *, required: bool) -> str | None:
    """The key that a request names; quoted and bare spellings of one word are one key.

    Args:
        values: Every occurrence of the header.

    Raises:
        Problem: ``idempotency-key-missing`` if required and absent; ``idempotency-key-invalid`` if
            it stands twice, is empty, too long, or holds other characters.
    """
    if not values:
        if required:
            detail = (
                "This request starts work, so it needs the header Idempotency-Key: without it a "
                "repeat would be a second turn. Send a fresh key."
            )
            raise Problem("idempotency-key-missing", detail)
        return None
    if len(values) > 1:
        raise _invalid("it stands more than once")
    raw = values[0].strip(" \t")
    if match := _QUOTED.fullmatch(raw):
        key = _ESCAPED.sub(r"\1", match[1])
    elif _BARE.fullmatch(raw):
        key = raw
    else:
        raise _invalid("it is neither a quoted string nor a bare word of visible ASCII characters")
    if not 1 <= len(key) <= MAX_CHARACTERS:
        raise _invalid(f"it has {len(key)} characters, allowed are 1 to {MAX_CHARACTERS}")
    return key


def _invalid(why: str) -> Problem:
    return Problem(
        "idempotency-key-invalid",
        f"The header Idempotency-Key cannot be used: {why}. Nothing was stored.",
    )
