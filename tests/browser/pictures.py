"""Makes screenshots smaller: 256 of their colours, compressed as well as it goes.

Pages of text have few colours beside the edges of letters, so nobody sees the difference.
"""

import zlib
from collections import Counter

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = 256
FARTHEST = 3 * 255**2 + 1
"""Above the square of the distance between any two colours."""
TRUE_COLOUR = (2, 6)  # without and with transparency


def smaller(picture: bytes) -> bytes:
    """The same picture in fewer bytes, or itself where it is none of a browser's."""
    chunks = _chunks(picture)
    head = chunks[0][1]
    width, height = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    if head[8] != 8 or head[9] not in TRUE_COLOUR or head[12] != 0:
        return picture
    channels = 3 if head[9] == TRUE_COLOUR[0] else 4
    packed = b"".join(body for name, body in chunks if name == b"IDAT")
    rows = _rows(zlib.decompress(packed), height, channels, width * channels)
    pixels = [_pixels(row, channels) for row in rows]
    palette, places = _palette(pixels)
    data = b"".join(b"\0" + bytes(places[colour] for colour in row) for row in pixels)
    made = SIGNATURE + b"".join(
        _chunk(name, body)
        for name, body in (
            (b"IHDR", head[:8] + b"\x08\x03\0\0\0"),
            (b"PLTE", palette),
            (b"IDAT", zlib.compress(data, 9)),
            (b"IEND", b""),
        )
    )
    return min(made, picture, key=len)


def _pixels(row: bytearray, channels: int) -> list[bytes]:
    return [bytes(row[at : at + 3]) for at in range(0, len(row), channels)]


def _palette(rows: list[list[bytes]]) -> tuple[bytes, dict[bytes, int]]:
    """The colours that matter most, and for each colour of the picture the nearest of them.

    One after the other the colour is taken that all others so far stand in for worst, times how
    often it is there: a red sign of a few dots keeps its red.
    """
    counts = Counter(colour for row in rows for colour in row)
    missed = dict.fromkeys(counts, FARTHEST)
    places: dict[bytes, int] = {}
    chosen: list[bytes] = []
    while len(chosen) < min(COLOURS, len(counts)):
        worst = max(counts, key=lambda colour: counts[colour] * missed[colour])
        place = len(chosen)
        chosen.append(worst)
        red, green, blue = worst
        for colour, least in missed.items():
            distance = (colour[0] - red) ** 2 + (colour[1] - green) ** 2 + (colour[2] - blue) ** 2
            if distance < least:
                missed[colour] = distance
                places[colour] = place
    return b"".join(chosen), places


def _chunks(picture: bytes) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    at = len(SIGNATURE)
    while at < len(picture):
        length = int.from_bytes(picture[at : at + 4], "big")
        found.append((picture[at + 4 : at + 8], picture[at + 8 : at + 8 + length]))
        at += length + 12
    return found


def _chunk(name: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(name + body)
    return len(body).to_bytes(4, "big") + name + body + checksum.to_bytes(4, "big")


def _rows(data: bytes, height: int, channels: int, length: int) -> list[bytearray]:
    """The rows without the filters of PNG (section 9 of its specification)."""
    rows: list[bytearray] = []
    above = bytearray(length)
    for number in range(height):
        start = number * (length + 1)
        row = bytearray(data[start + 1 : start + 1 + length])
        _unfilter(data[start], row, above, channels)
        rows.append(row)
        above = row
    return rows


def _unfilter(kind: int, row: bytearray, above: bytearray, channels: int) -> None:
    if kind == 0:
        return
    for at, value in enumerate(row):
        left = row[at - channels] if at >= channels else 0
        up = above[at]
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = up
        elif kind == 3:
            guess = (left + up) // 2
        else:
            guess = _paeth(left, up, above[at - channels] if at >= channels else 0)
        row[at] = (value + guess) & 255


def _paeth(left: int, up: int, corner: int) -> int:
    estimate = left + up - corner
    to_left, to_up, to_corner = abs(estimate - left), abs(estimate - up), abs(estimate - corner)
    if to_left <= to_up and to_left <= to_corner:
        return left
    return up if to_up <= to_corner else corner
