"""Token counts of texts that come again with every plan: instructions, marks, fences."""

from functools import lru_cache

from libs.tokens import count

MAX_REMEMBERED = 256
"""Texts of up to 32 KiB: at most 8 MB, and more than a process sees between two of one tenant."""


@lru_cache(maxsize=MAX_REMEMBERED)
def fixed_count(text: str, tokenizer: str) -> int:
    """Tokens of a text; asked for the same one many times."""
    return count(text, tokenizer)
