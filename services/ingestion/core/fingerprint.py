"""What makes two requests the same request: a hash of what was asked, in one canonical form."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

FORMAT = 1
"""Version of the form below; part of the hash, so that a later form never equals an earlier one."""


def fingerprint(
    kind: str,
    *,
    texts: Sequence[str] | None,
    policy: str | None,
    parent: UUID | None = None,
    model: str | None,
    settings: Mapping[str, Any],
) -> str:
    """SHA-256, in hexadecimal, of the canonical JSON of a request.

    Keys are sorted, there is no space, text is UTF-8. What the client left out is left out here
    too, so that a default that changes later does not turn a retry into a conflict. No header,
    route or version of the interface takes part.

    Args:
        kind: The event type.
        texts: Texts of the parts after cleaning; None where the request has no message.
        settings: ``options`` and whatever else the kind carries; entries that are None are unset.
    """
    stated: dict[str, Any] = {
        "v": FORMAT,
        "kind": kind,
        "parts": None if texts is None else [{"type": "text", "text": text} for text in texts],
        "policy": policy,
        "parent": None if parent is None else str(parent),
        "model": model,
        **settings,
    }
    canonical = json.dumps(
        {name: value for name, value in stated.items() if value is not None},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(canonical.encode()).hexdigest()
