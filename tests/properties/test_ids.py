"""Laws of the derived ids and of uuid7."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs import ids

UUIDS = st.uuids()
MOMENTS = st.integers(0, 2**48 - 1)
RANDOM = st.binary(min_size=10, max_size=10)


@given(UUIDS, UUIDS, st.text(min_size=1), st.text(min_size=1))
def test_two_keys_of_one_conversation_are_two_turns(
    tenant: UUID, conversation: UUID, key: str, other: str
) -> None:
    same = ids.turn_id(tenant, conversation, key) == ids.turn_id(tenant, conversation, other)

    assert same == (key == other)


@given(UUIDS, UUIDS, UUIDS, st.text(min_size=1))
def test_one_key_in_two_tenants_or_conversations_is_two_turns(
    tenant: UUID, other: UUID, conversation: UUID, key: str
) -> None:
    here = ids.turn_id(tenant, conversation, key)

    assert (here == ids.turn_id(other, conversation, key)) == (tenant == other)
    assert (here == ids.turn_id(tenant, other, key)) == (conversation == other)


@given(UUIDS)
def test_the_messages_the_steps_and_the_branch_of_a_turn_never_share_an_id(turn: UUID) -> None:
    made = [ids.message_id(turn, "user"), ids.message_id(turn, "assistant")]
    made += [ids.step_id(turn, number) for number in range(1, 5)]
    made += [ids.branch_id(turn), turn]

    assert len(set(made)) == len(made)


@given(MOMENTS, MOMENTS, RANDOM, RANDOM)
def test_uuid7_is_a_version_7_uuid_and_sorts_by_time(
    first_ms: int, second_ms: int, left: bytes, right: bytes
) -> None:
    first, second = ids.uuid7(first_ms, left), ids.uuid7(second_ms, right)

    assert (first.version, first.variant) == (7, "specified in RFC 4122")
    assert first.int >> 80 == first_ms
    if first_ms < second_ms:
        assert str(first) < str(second)


def test_uuid7_refuses_too_little_randomness() -> None:
    with pytest.raises(ValueError, match="10 random bytes"):
        ids.uuid7(0, b"short")
