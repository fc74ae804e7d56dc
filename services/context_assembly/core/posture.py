"""Decides whose payload is kept after its turn ended; everybody else's is deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from uuid import UUID

Posture = Literal["none", "failures"]

_ORDINARY_CUTS: Final = frozenset({"max_tokens"})
"""Reasons of a partial answer that are no failure: the turn asked for that length."""


@dataclass(frozen=True, slots=True)
class CaptureChoice:
    """What a tenant chose about its payloads.

    Attributes:
        posture: ``none`` keeps nothing, whatever else was chosen; ``failures`` keeps payloads of
            turns that failed.
        sampled_per_mille: Of 1,000 turns that went well, how many are kept as well.
    """

    posture: Posture
    sampled_per_mille: int


def decide(
    turn_id: UUID, choice: CaptureChoice, *, is_flagged: bool, status: str, reason: str | None
) -> str | None:
    """Why the payloads of an ended turn are kept for a while; None keeps nothing.

    Always of a flagged conversation, always after a failure, and of a share of all others that is
    chosen by the turn's id, so that a repeat of the event decides the same.
    """
    if choice.posture == "none":
        return None
    if status == "failed" or (status == "partial" and reason not in _ORDINARY_CUTS):
        return reason or status
    if is_flagged:
        return "flagged"
    if turn_id.int % 1000 < choice.sampled_per_mille:
        return "sampled"
    return None
