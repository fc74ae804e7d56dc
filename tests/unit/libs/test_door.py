"""Signatures at the door."""

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.door import GATEWAY_DOOR_KEY_ID, door_mac, door_secret, verify

MASTER = b"0123456789abcdef"


def test_a_secret_follows_from_master_key_and_id_alone() -> None:
    secret = door_secret(b"k", UUID("00000000-0000-0000-0000-000000000001"))
    assert len(secret) == 32
    assert secret == door_secret(b"k", UUID("00000000-0000-0000-0000-000000000001"))
    assert secret != door_secret(b"l", UUID("00000000-0000-0000-0000-000000000001"))
    assert secret != door_secret(b"k", UUID("00000000-0000-0000-0000-000000000002"))


def test_the_mac_is_the_one_of_the_standard() -> None:
    # RFC 4231, test case 2.
    assert door_mac(b"Jefe", b"what do ya want for nothing?") == (
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    )


def test_no_master_key_is_no_secret() -> None:
    with pytest.raises(ValueError, match="master key is empty"):
        door_secret(b"", GATEWAY_DOOR_KEY_ID)


@given(st.binary(max_size=50), st.binary(max_size=50), st.binary(max_size=80))
def test_only_the_mac_of_these_bytes_verifies(value: bytes, other: bytes, forged: bytes) -> None:
    secret = door_secret(MASTER, GATEWAY_DOOR_KEY_ID)
    mac = door_mac(secret, value)
    assert verify(secret, value, mac)
    assert verify(secret, value, mac.encode())
    assert verify(secret, other, mac) == (other == value)
    assert not verify(secret, value, forged)
    assert not verify(door_secret(MASTER, uuid4()), value, mac)


def test_any_text_can_be_refused() -> None:
    secret = door_secret(MASTER, GATEWAY_DOOR_KEY_ID)
    assert not verify(secret, b"v", "ключ \ud800")
