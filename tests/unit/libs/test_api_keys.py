"""The shape of API keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.api_keys import (
    VISIBLE_CHARACTERS,
    hash_api_key,
    is_api_key,
    new_api_key,
    visible_prefix,
)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_every_random_value_is_a_key_of_its_own(first: bytes, second: bytes) -> None:
    key = new_api_key(first)
    assert is_api_key(key)
    assert key.startswith("tw_")
    assert (new_api_key(second) == key) == (first == second)
    assert len(hash_api_key(key)) == 32
    assert visible_prefix(key) == key[:VISIBLE_CHARACTERS]


@pytest.mark.parametrize("text", ["", "tw_", "tw_abc", "sk_" + "a" * 52, "tw_" + "a" * 53, "tw_é"])
def test_other_texts_are_no_keys(text: str) -> None:
    assert not is_api_key(text)


def test_a_short_random_value_is_refused() -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        new_api_key(b"short")
