"""The shape and the hash of API keys: made by the command line, checked by the gateway."""

import base64
import hashlib
import re
from typing import Final

PREFIX: Final = "tw_"
SECRET_BYTES: Final = 32  # 256 random bits: a plain hash at rest cannot be searched
VISIBLE_CHARACTERS: Final = 10  # enough to tell keys apart in a list, useless for guessing
SCOPES: Final = ("chat", "read", "admin")

_SHAPE = re.compile(r"tw_[a-z2-7]{52}\Z")


def new_api_key(random_bytes: bytes) -> str:
    """The key for 32 random bytes: ``tw_`` and 52 characters that survive a double click.

    Raises:
        ValueError: There are not exactly ``SECRET_BYTES`` bytes.
    """
    if len(random_bytes) != SECRET_BYTES:
        msg = f"an API key is made of {SECRET_BYTES} random bytes, got {len(random_bytes)}"
        raise ValueError(msg)
    return PREFIX + base64.b32encode(random_bytes).decode().rstrip("=").lower()


def hash_api_key(key: str) -> bytes:
    """What is stored of a key: its SHA-256, 32 bytes."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def visible_prefix(key: str) -> str:
    """The first characters of a key, kept in clear to name it in lists."""
    return key[:VISIBLE_CHARACTERS]


def is_api_key(text: str) -> bool:
    """Whether a text has the shape of a key; says nothing about whether it is one."""
    return _SHAPE.match(text) is not None
