"""Laws of the pause before the next try."""

from hypothesis import given
from hypothesis import strategies as st

from libs.retry import Backoff

ATTEMPTS = st.integers(1, 10_000)
JITTER = st.floats(0, 1, exclude_max=True)


@given(ATTEMPTS, JITTER)
def test_a_pause_is_between_half_of_the_backoff_and_its_cap(attempt: int, jitter: float) -> None:
    backoff = Backoff(base_s=0.1, cap_s=5.0)
    full_s = min(5.0, 0.1 * 2.0 ** min(attempt - 1, 100))

    assert full_s / 2 <= backoff.delay_s(attempt, jitter=jitter) <= full_s


@given(ATTEMPTS, JITTER, st.floats(0, 600))
def test_what_the_other_side_asked_for_is_never_undercut(
    attempt: int, jitter: float, asked_s: float
) -> None:
    assert Backoff().delay_s(attempt, jitter=jitter, asked_s=asked_s) >= asked_s
