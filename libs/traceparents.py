"""W3C trace context as text, and where a turn's own span stands in it. Pure.

The span of a whole turn is written when the turn ends, yet everything that happens in between hangs
below it. That works because its id is known from the start: it follows from the turn's id.
"""

import re
from dataclasses import dataclass
from typing import Final
from uuid import UUID

_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A position in a trace.

    Attributes:
        trace_id: 32 hexadecimal digits, not all zero.
        span_id: 16 hexadecimal digits, not all zero.
        is_sampled: Whether whoever wrote it keeps its spans.
    """

    trace_id: str
    span_id: str
    is_sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def parse(text: str | None) -> TraceParent | None:
    """Read a ``traceparent``; None for anything that is not one, so that no caller can hurt us.

    Later versions are read as version 0, as the standard asks for; ``ff`` and all-zero ids are
    invalid.
    """
    match = _TRACEPARENT.fullmatch(text or "")
    if match is None or (match[5] and match[1] == "00"):
        return None
    return TraceParent(match[2], match[3], bool(int(match[4], 16) & _SAMPLED))


def turn_span_id(turn_id: UUID) -> str:
    """Id of the span that stands for a whole turn."""
    return turn_id.hex[16:]


def turn_traceparent(turn_id: UUID) -> str:
    """The span of a turn that came without a trace: the root of a trace with the turn's own id."""
    digits = turn_id.hex
    return f"00-{digits}-{digits[16:]}-01"


def given_or_turns(traceparent: str | None, turn_id: UUID) -> str:
    """The parent of what happens before a turn is stored: what came along, else the turn's span."""
    return traceparent if parse(traceparent) and traceparent else turn_traceparent(turn_id)


def below_turn(turn_id: UUID, stored: str | None) -> str:
    """The parent of what a turn causes: the turn's span, in the trace that the turn was stored in.

    Args:
        stored: Trace context of the turn's row; the same row gives the same parent for ever.
    """
    known = parse(stored)
    if known is None:
        return turn_traceparent(turn_id)
    return str(TraceParent(known.trace_id, turn_span_id(turn_id), known.is_sampled))


def above_turn(turn_id: UUID, stored: str | None) -> str | None:
    """The parent of a turn's span; None where the turn began its trace and its span is the root."""
    known = parse(stored)
    return None if known is None or known.trace_id == turn_id.hex else str(known)
