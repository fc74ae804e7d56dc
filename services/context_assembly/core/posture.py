"""Decides whose payload is kept after its turn ended; everybody else's is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from uuid import UUID

_ORDINARY_CUTS: Final = frozenset({"max_tokens"})
"""Reasons of a partial answer that are no failure: the turn asked for that length."""


def keeps_payload(
    turn_id: UUID, status: str, reason: str | None, *, sampled_per_mille: int
) -> bool:
    """Whether the payloads of an ended turn are kept for a while.

    Always after a failure, and for a share of all others that is chosen by the turn's id, so that
    a repeat of the event decides the same.

    Args:
        sampled_per_mille: 0 keeps no payload of a turn that went well, 1000 keeps all.
    """
    if status == "failed" or (status == "partial" and reason not in _ORDINARY_CUTS):
        return True
    return turn_id.int % 1000 < sampled_per_mille
