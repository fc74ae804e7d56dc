"""Who may speak at the door: the signature of a record, and the tenants its key stands for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from libs.door import DOOR_KEY_ID_HEADER, DOOR_MAC_HEADER, door_secret, verify

UNSIGNED = "door_unsigned"
UNKNOWN_KEY = "door_key_unknown"
REVOKED_KEY = "door_key_revoked"
WRONG_MAC = "door_mac_wrong"
FOREIGN_TENANT = "door_tenant_foreign"


@dataclass(frozen=True, slots=True)
class DoorKey:
    """A key of a front end.

    Attributes:
        tenant_id: The one tenant it may speak for; None for all.
    """

    id: UUID
    tenant_id: UUID | None
    is_revoked: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """The headers by which a record says who sent it."""

    key_id: UUID
    mac: bytes


def signature_of(headers: Sequence[tuple[str, bytes]]) -> Signature | None:
    """The record's signature, or None where it is missing, doubled or unreadable.

    Two headers of one name would let two readers see two senders, so that counts as none.
    """
    ids = [value for name, value in headers if name == DOOR_KEY_ID_HEADER]
    macs = [value for name, value in headers if name == DOOR_MAC_HEADER]
    if len(ids) != 1 or len(macs) != 1:
        return None
    try:
        key_id = UUID(ids[0].decode("ascii"))
    except (ValueError, AttributeError):
        return None
    return Signature(key_id, macs[0])


def refusal(
    signature: Signature | None,
    value: bytes,
    tenant_id: UUID,
    *,
    keys: Mapping[UUID, DoorKey],
    master_key: bytes,
) -> str | None:
    """Why a record may not enter, or None if it may.

    Args:
        value: The record's raw bytes; they are what was signed.
        keys: All door keys, revoked ones too.
    """
    if signature is None:
        return UNSIGNED
    key = keys.get(signature.key_id)
    if key is None:
        return UNKNOWN_KEY
    if not verify(door_secret(master_key, key.id), value, signature.mac):
        return WRONG_MAC
    if key.is_revoked:
        return REVOKED_KEY
    if key.tenant_id is not None and key.tenant_id != tenant_id:
        return FOREIGN_TENANT
    return None
