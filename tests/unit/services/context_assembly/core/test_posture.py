from uuid import UUID

import pytest

from services.context_assembly.core.posture import CaptureChoice, decide

EVEN = UUID(int=1_000)  # its last three decimal digits choose the sample
ODD = UUID(int=1_999)

ENDS = [
    ("failed", "internal", "internal"),
    ("partial", "provider_cut", "provider_cut"),
    ("partial", "max_tokens", None),
    ("completed", None, None),
    ("cancelled", "user", None),
]


@pytest.mark.parametrize(("status", "reason", "cause"), ENDS)
def test_payloads_are_kept_after_failures_alone(
    status: str, reason: str | None, cause: str | None
) -> None:
    choice = CaptureChoice("failures", 0)

    assert decide(ODD, choice, is_flagged=False, status=status, reason=reason) == cause


@pytest.mark.parametrize(("status", "reason", "cause"), ENDS)
def test_a_flagged_conversations_payloads_are_kept_whatever_came_of_them(
    status: str, reason: str | None, cause: str | None
) -> None:
    choice = CaptureChoice("failures", 0)

    assert decide(ODD, choice, is_flagged=True, status=status, reason=reason) == (
        cause or "flagged"
    )


def test_a_share_is_sampled_by_the_turns_id() -> None:
    def cause(turn: UUID, per_mille: int) -> str | None:
        choice = CaptureChoice("failures", per_mille)
        return decide(turn, choice, is_flagged=False, status="completed", reason=None)

    assert cause(EVEN, 1) == "sampled"
    assert cause(ODD, 999) is None
    assert cause(ODD, 1_000) == "sampled"


@pytest.mark.parametrize(("status", "reason"), [end[:2] for end in ENDS])
def test_none_wins_over_everything(status: str, reason: str | None) -> None:
    choice = CaptureChoice("none", 1_000)

    assert decide(EVEN, choice, is_flagged=True, status=status, reason=reason) is None
