import subprocess
import sys

import pytest

from libs.tokens import TOKENIZERS, UnknownTokenizer, count

LOOK_ALIKES = "<|endoftext|> <|im_start|>system </s> <|endofprompt|>"


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_text_that_looks_like_control_tokens_is_counted_as_plain_text(name: str) -> None:
    # A control token would be one token; as text it takes several.
    assert count("<|endoftext|>", name) > 3
    assert count(LOOK_ALIKES, name) > 15


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@pytest.mark.parametrize("text", ["", "\x00", "\ud800 alone", "\r\n\t", "é" * 10_000, " " * 10_000])
def test_counting_never_raises(name: str, text: str) -> None:
    tokens = count(text, name)

    assert tokens >= (1 if text else 0)
    assert tokens <= len(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize(
    ("text", "at_least"),
    [
        ("漢字仮名交じり文" * 12 + "漢字仮名", 60),
        ("한국어문장입니다" * 12 + "한국어문", 40),
        ("👨‍👩‍👧‍👦" * 20, 100),
        ("🇫🇷" * 20, 40),
    ],
)
def test_scripts_and_emoji_are_not_estimated_at_four_characters_a_token(
    text: str, at_least: int
) -> None:
    assert count(text, "o200k_base") >= at_least > len(text) / 4


TEXTS = [
    "hello world, this is ordinary English text with some punctuation.",
    "def f(x):\n    return {'a': x ** 2}  # code\n",
    "https://example.test/a?b=c&d=%20%7E 0123456789abcdef",
    "Straßenbahnhaltestellenhäuschen und Übergrößen",
    "Привет, как дела? Всё хорошо.",
    "مرحبا بالعالم كيف حالك اليوم",
    "नमस्ते दुनिया यह एक परीक्षण है",
    "สวัสดีชาวโลก นี่คือการทดสอบ",
    "漢字仮名交じり文" * 12,
    "한국어문장입니다" * 12,
    "👨‍👩‍👧‍👦" * 20,
    "🇫🇷" * 20,
    "☀️⭐🀄🪿" * 5,
    LOOK_ALIKES,
    " " * 300,
    "\x00\x01\ufffd",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_conservative_tokenizer_is_never_below_one_at_hand(text: str) -> None:
    assert count(text, "conservative") >= max(count(text, "o200k_base"), count(text, "cl100k_base"))


@pytest.mark.parametrize(
    ("text", "at_least"),
    [
        ("漢" * 100, 100),
        ("한" * 100, 100),
        ("あア" * 50, 100),
        ("𠮷" * 100, 100),
        ("👨‍👩‍👧‍👦" * 20, 20 * 4 * 2),
        ("🇫🇷" * 20, 20 * 2),
        ("🪿" * 30, 60),
        ("☀⭐" * 30, 120),
    ],
)
def test_without_a_tokenizer_an_ideograph_counts_one_and_an_emoji_two(
    text: str, at_least: int
) -> None:
    assert count(text, "conservative") >= at_least


def test_known_counts_of_the_published_encodings() -> None:
    assert count("hello world", "o200k_base") == 2
    assert count("tiktoken is great!", "cl100k_base") == 6  # the encoding's own documentation


def test_an_unpaired_surrogate_counts_like_the_character_that_is_stored_for_it() -> None:
    assert count("a\udfffb", "o200k_base") == count("a\ufffdb", "o200k_base")


def test_an_unknown_tokenizer_names_the_known_ones() -> None:
    with pytest.raises(UnknownTokenizer, match="cl100k_base, conservative, o200k_base"):
        count("text", "p50k_base")


def test_counting_neither_warns_nor_builds_the_vocabularies_in_python() -> None:
    program = (
        "import sys\n"
        "from libs.tokens import count\n"
        "assert count('hello world', 'o200k_base') == 2\n"
        "assert 'bpe_openai' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=30)
