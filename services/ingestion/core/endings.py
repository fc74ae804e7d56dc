"""Which end of a turn an event of another service means."""

from services.ingestion.core.turn import REASONS, Ending, TurnState

COMPLETED = Ending(TurnState.COMPLETED)
INTERNAL = Ending(TurnState.FAILED, "internal")
DEAD_LETTERED = Ending(TurnState.FAILED, "dead_lettered")

QUEUE_TIMEOUT = Ending(TurnState.FAILED, "queue_timeout")

_OUT_OF_TIME = frozenset({"deadline", "step_deadline", "idle_timeout"})
"""Reasons that say which time was over, whether or not anything was shown by then."""

# Finish reasons of a completed call that are not the whole answer.
_CUT_BY_FINISH = {"length": "max_tokens", "content_filter": "content_filter"}


def of_completed(finish_reason: str, *, length: int) -> Ending:
    """The end of a turn whose model call came to its own end.

    Args:
        finish_reason: Normalised: ``stop``, ``length`` or ``content_filter``; others count as stop.
        length: Bytes of the text. A filter that let nothing through is a refusal.
    """
    reason = _CUT_BY_FINISH.get(finish_reason)
    if reason is None:
        return COMPLETED
    if reason == "content_filter" and length == 0:
        return Ending(TurnState.FAILED, "provider_refused")
    return Ending(TurnState.PARTIAL, reason)


def of_interrupted(reason: str, *, length: int) -> Ending:
    """The end of a turn whose answer stopped in the middle.

    A cancel keeps what was shown. Without a single byte there is nothing to call partial.
    """
    if reason in REASONS[TurnState.CANCELLED]:
        return Ending(TurnState.CANCELLED, reason)
    if length == 0:
        known = reason if reason in _OUT_OF_TIME else "provider_unavailable"
        return Ending(TurnState.FAILED, known)
    if reason in REASONS[TurnState.PARTIAL]:
        return Ending(TurnState.PARTIAL, reason)
    return Ending(TurnState.PARTIAL, "provider_cut")


def of_failed(reason: str) -> Ending:
    """The end of a turn that will show nothing; an unknown reason becomes ``internal``."""
    if reason in REASONS[TurnState.CANCELLED]:
        return Ending(TurnState.CANCELLED, reason)
    if reason in REASONS[TurnState.FAILED]:
        return Ending(TurnState.FAILED, reason)
    return INTERNAL


def of_deadline(*, length: int) -> Ending:
    """The end of a turn whose time ran out, by whether anything was shown."""
    return Ending(TurnState.PARTIAL if length else TurnState.FAILED, "deadline")


def of_cancel(reason: str) -> Ending:
    """The end of a turn that somebody wanted to stop; an unknown reason becomes ``internal``."""
    if reason in REASONS[TurnState.CANCELLED]:
        return Ending(TurnState.CANCELLED, reason)
    return INTERNAL
