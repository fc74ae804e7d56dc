"""What a text looks like when every store can hold it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.text import storable

any_text = st.text(alphabet=st.characters(codec=None, categories=None))


@pytest.mark.parametrize(
    ("given_text", "text", "nul_removed", "replaced"),
    [
        ("plain", "plain", 0, 0),
        ("a\0b\0", "ab", 2, 0),
        ("\ud83d\ude00", "😀", 0, 0),
        ("\ud83d", "\ufffd", 0, 1),
        ("\ude00\ud83d!", "\ufffd\ufffd!", 0, 2),
        ("\ud83d\0\ude00", "😀", 1, 0),
        ("größer \ufffd 😀", "größer \ufffd 😀", 0, 0),
    ],
)
def test_nul_goes_and_half_pairs_become_replacement_characters(
    given_text: str, text: str, nul_removed: int, replaced: int
) -> None:
    cleaned = storable(given_text)

    assert cleaned.text == text
    assert (cleaned.nul_removed, cleaned.surrogates_replaced) == (nul_removed, replaced)


@given(any_text)
def test_every_text_becomes_utf_8_without_nul_and_cleaning_twice_changes_nothing(
    text: str,
) -> None:
    cleaned = storable(text).text

    assert b"\0" not in cleaned.encode()
    assert storable(cleaned).text == cleaned


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_text_that_is_fine_is_left_alone(text: str) -> None:
    assert storable(text).text == text
