from uuid import UUID

import pytest

from services.context_assembly.core.posture import keeps_payload

EVEN = UUID(int=1_000)  # its last three decimal digits choose the sample
ODD = UUID(int=1_999)


@pytest.mark.parametrize(
    ("status", "reason", "kept"),
    [
        ("failed", "internal", True),
        ("partial", "provider_cut", True),
        ("partial", "max_tokens", False),
        ("completed", None, False),
        ("cancelled", "user", False),
    ],
)
def test_payloads_are_kept_after_failures_alone(
    status: str, reason: str | None, kept: bool
) -> None:
    assert keeps_payload(ODD, status, reason, sampled_per_mille=0) is kept


def test_a_share_is_sampled_by_the_turns_id() -> None:
    assert keeps_payload(EVEN, "completed", None, sampled_per_mille=1)
    assert not keeps_payload(ODD, "completed", None, sampled_per_mille=999)
    assert keeps_payload(ODD, "completed", None, sampled_per_mille=1_000)
