"""What an image costs in a prompt: by its dimensions, never by the length of its bytes."""

from __future__ import annotations

from typing import Final, NamedTuple

LONGEST_SIDE: Final = 2_048
"""Providers shrink larger pictures to this, then their shorter side to ``SHORTER_SIDE``."""

SHORTER_SIDE: Final = 768
TILE_SIDE: Final = 512
TOKENS_PER_TILE: Final = 170
TOKENS_PER_IMAGE: Final = 85
"""The published rule of the widespread vision models: a price for each tile, and one for the image.
At most 8 tiles, so no image costs more than 1,445."""

MAX_JPEG_SEGMENTS: Final = 200
"""Segments before the frame header; cameras write some dozens."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_GIFS: Final = (b"GIF87a", b"GIF89a")
# Start-of-frame markers of JPEG: C0 to CF without the tables C4, C8 and CC.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_MARKER: Final = 0xFF
_STANDALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})


class Dimensions(NamedTuple):
    """Of a picture, in pixels."""

    width: int
    height: int


def dimensions(data: bytes) -> Dimensions | None:
    """Width and height as the header of a PNG, JPEG, GIF or WebP file says; None if it says none.

    Reads the header alone and never raises, whatever the bytes are.
    """
    if data.startswith(_PNG):
        found = _big(data, 16, 4), _big(data, 20, 4)
    elif data.startswith(_GIFS):
        found = _little(data, 6, 2), _little(data, 8, 2)
    elif data.startswith(b"\xff\xd8"):
        found = _jpeg(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        found = _webp(data)
    else:
        return None
    return Dimensions(*found) if min(found) > 0 else None


def image_tokens(data: bytes, *, unknown: int) -> int:
    """Tokens of an image in a prompt: from 255 to 1,445.

    Args:
        unknown: Of one whose dimensions cannot be read; a model's card says it.
    """
    size = dimensions(data)
    return unknown if size is None else tokens_of(size)


def tokens_of(size: Dimensions) -> int:
    """Tokens of an image of that size, after providers have shrunk it."""
    shrink = min(1.0, LONGEST_SIDE / max(size), SHORTER_SIDE / min(size))
    tiles = _tiles(size.width * shrink) * _tiles(size.height * shrink)
    return TOKENS_PER_IMAGE + TOKENS_PER_TILE * tiles


def _tiles(side: float) -> int:
    # Rounded first: 768 must not become 768.0000001, which is a tile more.
    return max(1, -(-round(side) // TILE_SIDE))


def _big(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big") if len(data) >= at + size else 0


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little") if len(data) >= at + size else 0


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(MAX_JPEG_SEGMENTS):
        if at + 4 > len(data) or data[at] != _MARKER:
            break
        marker = data[at + 1]
        if marker == _MARKER:  # padding before a marker
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif marker in _FRAMES:
            return _big(data, at + 7, 2), _big(data, at + 5, 2)
        else:
            at += 2 + max(2, _big(data, at + 2, 2))
    return 0, 0


def _webp(data: bytes) -> tuple[int, int]:
    form = data[12:16]
    if form == b"VP8X":
        return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1
    if form == b"VP8L":
        bits = _little(data, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8 ":
        return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
    return 0, 0
