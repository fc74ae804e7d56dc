"""Who may speak at the door."""

from uuid import UUID

import pytest

from libs.door import DOOR_KEY_ID_HEADER, DOOR_MAC_HEADER, door_mac, door_secret
from services.ingestion.core.door import DoorKey, Signature, refusal, signature_of

MASTER = b"master key"
KEY = UUID(int=7)
TENANT, OTHER = UUID(int=1), UUID(int=2)
VALUE = b'{"a": 1}'
MAC = door_mac(door_secret(MASTER, KEY), VALUE).encode()


def verdict(
    key: DoorKey, *, signature: Signature | None = None, value: bytes = VALUE
) -> str | None:
    return refusal(
        signature or Signature(KEY, MAC), value, TENANT, keys={key.id: key}, master_key=MASTER
    )


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (DoorKey(KEY, None, is_revoked=False), None),
        (DoorKey(KEY, TENANT, is_revoked=False), None),
        (DoorKey(KEY, OTHER, is_revoked=False), "door_tenant_foreign"),
        (DoorKey(KEY, None, is_revoked=True), "door_key_revoked"),
        (DoorKey(UUID(int=8), None, is_revoked=False), "door_key_unknown"),
    ],
)
def test_a_key_speaks_for_its_tenant_until_it_is_revoked(
    key: DoorKey, expected: str | None
) -> None:
    assert verdict(key) == expected


def test_a_changed_value_and_a_foreign_mac_are_refused() -> None:
    key = DoorKey(KEY, None, is_revoked=False)

    assert verdict(key, value=VALUE + b" ") == "door_mac_wrong"
    assert verdict(key, signature=Signature(KEY, b"\xff\x00")) == "door_mac_wrong"
    assert refusal(None, VALUE, TENANT, keys={}, master_key=MASTER) == "door_unsigned"


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((DOOR_KEY_ID_HEADER, str(KEY).encode()),),
        ((DOOR_MAC_HEADER, MAC),),
        ((DOOR_KEY_ID_HEADER, b"\xff"), (DOOR_MAC_HEADER, MAC)),
        ((DOOR_KEY_ID_HEADER, b"no uuid"), (DOOR_MAC_HEADER, MAC)),
        (
            (DOOR_KEY_ID_HEADER, str(KEY).encode()),
            (DOOR_KEY_ID_HEADER, str(KEY).encode()),
            (DOOR_MAC_HEADER, MAC),
        ),
    ],
)
def test_missing_doubled_and_unreadable_headers_are_no_signature(
    headers: tuple[tuple[str, bytes], ...],
) -> None:
    assert signature_of(headers) is None


def test_a_signature_is_read_from_among_other_headers() -> None:
    headers = (
        ("traceparent", b"x"),
        (DOOR_MAC_HEADER, MAC),
        (DOOR_KEY_ID_HEADER, str(KEY).encode()),
    )

    assert signature_of(headers) == Signature(KEY, MAC)
