"""Signatures of the request topic: who may speak for which tenant at the door.

A record of ``turn.requests`` carries the headers ``door-key-id`` and ``door-mac``. A door key's
secret is never stored: it is derived from the master key and the key's id, so that the gateway,
ingestion and the command line agree on it without exchanging anything.
"""

import hashlib
import hmac
from uuid import UUID

DOOR_KEY_ID_HEADER = "door-key-id"
DOOR_MAC_HEADER = "door-mac"

# The gateway's own key, which may speak for every tenant. The migration that creates the table
# ``frontend_gateway.door_keys`` inserts a row with this id; change both together.
GATEWAY_DOOR_KEY_ID = UUID("5e7d3c1a-90b4-5f26-8a17-c2d4e6f80a1b")


def door_secret(master_key: bytes, door_key_id: UUID) -> bytes:
    """The secret of one door key: HMAC-SHA256 of the id's canonical text, 32 bytes.

    Front ends are given it as lower-case hexadecimal and sign with the decoded bytes.

    Raises:
        ValueError: The master key is empty, which would make every secret public.
    """
    if not master_key:
        msg = "the door's master key is empty; set TURNWIRE_DOOR_MASTER_KEY"
        raise ValueError(msg)
    return hmac.new(master_key, str(door_key_id).encode(), hashlib.sha256).digest()


def door_mac(secret: bytes, value: bytes) -> str:
    """The value of the header ``door-mac``: HMAC-SHA256 of the raw record value, in hexadecimal."""
    return hmac.new(secret, value, hashlib.sha256).hexdigest()


def verify(secret: bytes, value: bytes, mac: str | bytes) -> bool:
    """Whether ``mac`` signs ``value``; takes the same time for every wrong answer.

    Header values come from foreign producers, so ``mac`` may be any bytes or text.
    """
    given = mac.encode("utf-8", "surrogatepass") if isinstance(mac, str) else mac
    return hmac.compare_digest(door_mac(secret, value).encode(), given)
