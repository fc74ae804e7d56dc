"""Images cost what their dimensions say, whatever their bytes weigh."""

import struct

import pytest

from libs.images import Dimensions, dimensions, image_tokens, tokens_of

MOST = 1_445


def png(width: int, height: int, padding: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + b"\0" * padding


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0" * 10


def jpeg(width: int, height: int, *, frame: int = 0xC0, before: bytes = b"") -> bytes:
    segment = struct.pack(">BBHBHHB", 0xFF, frame, 11, 8, height, width, 3)
    return b"\xff\xd8" + before + segment + b"\0" * 20


def webp(form: bytes, rest: bytes) -> bytes:
    return b"RIFF" + b"\0" * 4 + b"WEBP" + form + rest


EXIF = b"\xff\xe1" + struct.pack(">H", 60_000) + b"x" * 59_998
SMALL_SEGMENTS = (b"\xff\xe0" + struct.pack(">H", 4) + b"ab") * 30
PICTURES = [
    (png(640, 480), (640, 480)),
    (png(1, 1), (1, 1)),
    (png(30_000, 20_000), (30_000, 20_000)),
    (gif(320, 200), (320, 200)),
    (jpeg(1_024, 768), (1_024, 768)),
    (jpeg(1_024, 768, frame=0xC2), (1_024, 768)),
    (jpeg(33, 44, before=EXIF), (33, 44)),
    (jpeg(33, 44, before=SMALL_SEGMENTS + b"\xff\xff"), (33, 44)),
    (
        webp(b"VP8X", b"\0" * 8 + (799).to_bytes(3, "little") + (599).to_bytes(3, "little")),
        (800, 600),
    ),
    (webp(b"VP8L", b"\0" * 4 + b"\x2f" + (799 | 599 << 14).to_bytes(4, "little")), (800, 600)),
    (webp(b"VP8 ", b"\0" * 10 + struct.pack("<HH", 800, 600)), (800, 600)),
]


@pytest.mark.parametrize(("data", "size"), PICTURES)
def test_dimensions_are_read_from_the_header(data: bytes, size: tuple[int, int]) -> None:
    assert dimensions(data) == Dimensions(*size)


@pytest.mark.parametrize("data", [picture for picture, _ in PICTURES])
def test_a_picture_that_is_cut_anywhere_never_raises(data: bytes) -> None:
    for length in range(min(len(data), 300)):
        size = dimensions(data[:length])
        assert size is None or min(size) > 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF8",
        b"not a picture",
        b"\xff\xd8" + b"\xff\xff" * 5_000,
        b"\xff\xd8" + b"\xff\xe0\0\0" * 5_000,
        png(0, 5),
        gif(0, 0),
    ],
)
def test_what_has_no_dimensions_costs_what_the_model_says(data: bytes) -> None:
    assert dimensions(data) is None
    assert image_tokens(data, unknown=1_600) == 1_600


def test_two_megabytes_of_picture_cost_what_a_small_file_of_that_size_costs() -> None:
    heavy = png(1_920, 1_080, padding=2 * 1024 * 1024)

    assert image_tokens(heavy, unknown=1) == image_tokens(png(1_920, 1_080), unknown=1) < 3_000


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        ((1, 1), 255),
        ((512, 512), 255),
        ((513, 512), 425),
        ((1_024, 1_024), 765),
        ((2_048, 768), MOST),
        ((768, 2_048), MOST),
        ((60_000, 60_000), 765),
        ((65_535, 1), 765),
    ],
)
def test_the_cost_follows_the_tiles(size: tuple[int, int], tokens: int) -> None:
    assert tokens_of(Dimensions(*size)) == tokens


def test_no_size_costs_more_than_the_bound() -> None:
    sides = [1, 2, 511, 512, 513, 767, 768, 769, 1_535, 2_047, 2_048, 2_049, 9_999, 65_535]

    assert max(tokens_of(Dimensions(w, h)) for w in sides for h in sides) == MOST
