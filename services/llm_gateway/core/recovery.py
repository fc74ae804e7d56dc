"""What becomes of an attempt whose worker died: what was shown decides, and only proof counts."""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.streams import Entry, EntryId, delta_text
from services.llm_gateway.core.attempt import FIRST_DELTA_N

MAX_ATTEMPTS = 3
"""Attempts of one step; a step that killed three workers will kill a fourth."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Text of an attempt as stored in Postgres, up to a stream entry."""

    upto: EntryId
    text: str


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Nothing was shown: a new attempt may begin."""


@dataclass(frozen=True, slots=True)
class KeepShown:
    """Something was shown, or nobody can prove that nothing was: the turn ends with this text."""

    text: str
    upto: EntryId


@dataclass(frozen=True, slots=True)
class GiveUpStep:
    """Nothing was shown, and no attempt or no time is left."""

    reason: str


Recovery = StartAgain | KeepShown | GiveUpStep


def judge(
    attempt: int,
    *,
    entries: Sequence[Entry],
    checkpoint: Checkpoint | None,
    attempts_made: int,
    late_reason: str | None,
) -> Recovery:
    """Decide from the stream behind the fence and the last checkpoint.

    Args:
        attempt: The dead attempt's number.
        entries: The stream as read after the fence; empty where the stream is gone or unreachable.
        checkpoint: Of this attempt; None where none was stored.
        attempts_made: Attempts of this step, the dead one included.
        late_reason: Whose time is over, as the reason of an end; None while there is time.
    """
    deltas = [e for e in entries if e.id.attempt == attempt and e.event == "content_delta"]
    if deltas or checkpoint is not None:
        return _shown(attempt, deltas, checkpoint)
    # Entries are written in order, so one that stands before the first delta proves that the
    # stream lost nothing behind it.
    before_deltas = EntryId(attempt, FIRST_DELTA_N)
    if not any(not e.is_fence and e.id < before_deltas for e in entries):
        return KeepShown("", EntryId(attempt, FIRST_DELTA_N - 1))
    if late_reason is not None:
        return GiveUpStep(late_reason)
    if attempts_made >= MAX_ATTEMPTS:
        return GiveUpStep("internal")
    return StartAgain()


def _shown(attempt: int, deltas: Sequence[Entry], checkpoint: Checkpoint | None) -> KeepShown:
    """The longest text that is known without a gap: the checkpoint, continued by the stream."""
    start = checkpoint or Checkpoint(EntryId(attempt, FIRST_DELTA_N - 1), "")
    text, upto = [start.text], start.upto
    for entry in deltas:
        if entry.id <= upto:
            continue
        if entry.id.n != upto.n + 1:
            break
        text.append(delta_text(entry))
        upto = entry.id
    return KeepShown("".join(text), upto)
