"""How long to wait before the next try; pure, so that its laws can be tested."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential growth from ``base_s`` to ``cap_s``."""

    base_s: float = 0.1
    cap_s: float = 5.0

    def delay_s(self, attempt: int, *, jitter: float, asked_s: float | None = None) -> float:
        """Seconds to wait after the ``attempt``-th failure (from 1).

        Args:
            attempt: Failures so far, at least 1.
            jitter: Uniform in [0, 1). The delay is between half of the backoff and all of it.
            asked_s: What the other side asked for; never undercut.
        """
        full_s = min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 32))
        return max(asked_s or 0.0, full_s * (0.5 + jitter / 2))
