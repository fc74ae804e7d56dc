"""When deltas of a model become entries of the stream: the first at once, later ones gathered."""

DELAY_S = 0.040
"""Entries are at least so far apart: 25 a second are smooth to a reader and bounded for Redis."""

MAX_CHARACTERS = 256
"""So much text is never held back, however little time has passed."""


class Coalescer:
    """Gathers text between entries. Times are seconds of any monotonic clock, passed in.

    Nothing is lost or reordered: what ``add`` and ``flush`` return, joined, is what was added.
    """

    def __init__(self, *, delay_s: float = DELAY_S, max_characters: int = MAX_CHARACTERS) -> None:
        self._delay_s = delay_s
        self._max_characters = max_characters
        self._held: list[str] = []
        self._characters = 0
        self._due_at: float | None = (
            None  # None: nothing was sent yet, so the next text goes at once
        )

    @property
    def due_at(self) -> float | None:
        """When held text must be flushed; None while nothing is held."""
        return self._due_at if self._held else None

    def add(self, text: str, now: float) -> str | None:
        """Take text; returns what is to be sent now, or None."""
        self._held.append(text)
        self._characters += len(text)
        if self._due_at is None or now >= self._due_at or self._characters >= self._max_characters:
            return self.flush(now)
        return None

    def flush(self, now: float) -> str | None:
        """Everything held, to be sent now; None if nothing is."""
        if not self._held:
            return None
        text = "".join(self._held)
        self._held.clear()
        self._characters = 0
        self._due_at = now + self._delay_s
        return text or None
