"""Which fields of a log line are never written, whoever passes them. Pure."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

REDACTED = "[redacted]"

MAX_DEPTH = 4
"""Levels of nesting that a log line may have; what lies deeper is redacted, not searched."""

MAX_ITEMS = 50
"""Items of a list or mapping that a log line may have; of a longer one only the length is told."""

MAX_STRING = 2_000
"""Characters of one value; longer ones are cut, so that no line holds a message by accident."""

KNOWN_NAMES = 1_000
"""Field names whose verdict is remembered: every line repeats the few that there are."""

_WORDS = frozenset(
    {
        "authorization",
        "body",
        "content",
        "cookie",
        "credentials",
        "delta",
        "key",
        "mac",
        "message",
        "messages",
        "parts",
        "password",
        "payload",
        "prompt",
        "secret",
        "text",
        "title",
        "token",
        "value",
    }
)
_HARMLESS_ENDINGS = ("_id", "_ids", "_count", "_bytes", "_tokens", "_length", "_no", "_s", "_ms")


@lru_cache(maxsize=KNOWN_NAMES)
def is_denied(name: str) -> bool:
    """Whether a field of that name may hold a body, a key or a secret.

    Any word of the name counts (``api_key``, ``database-password``, ``messageText``), unless the
    name says that it is an id, a count, a size or a duration (``key_id``, ``text_bytes``).
    """
    plain = _snake(name)
    if plain.endswith(_HARMLESS_ENDINGS):
        return False
    return not _WORDS.isdisjoint(plain.split("_"))


def redacted(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the fields in which nothing denied is left, however deep it lies.

    Numbers and truth values stay whatever their name: they are never bodies or secrets.
    """
    return {str(name): _field(str(name), value, MAX_DEPTH) for name, value in fields.items()}


def _field(name: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    return REDACTED if is_denied(name) else _clean(value, depth)


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_STRING else f"{value[:MAX_STRING]}… ({len(value)} chars)"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value)} bytes]"
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _nested(value, depth) if depth and len(value) <= MAX_ITEMS else f"[{len(value)}]"
    return value


def _nested(value: Mapping[Any, Any] | Collection[Any], depth: int) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _field(str(name), item, depth - 1) for name, item in value.items()}
    return [_clean(item, depth - 1) for item in value]


def _snake(name: str) -> str:
    characters = []
    for before, character in zip(f"_{name}", name, strict=False):
        if character.isupper() and before.islower():
            characters.append("_")
        characters.append(character.lower() if character.isalnum() else "_")
    return "".join(characters)
