"""The interface's document against the real house: nothing that is asked breaks it."""

import asyncio

import pytest

from libs import ids
from services.frontend_gateway.http.openapi import OPERATIONS
from tests.rig.fuzzing import fuzz
from tests.rig.house import House

pytestmark = [
    pytest.mark.system,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(300),  # some hundred requests, behind the start of the house
]

EXAMPLES = 16
"""Of each operation: the lane on twins asks far more, this one asks through all parts."""

WANT_WHAT_IS_NOWHERE = frozenset(
    {
        *("login", "read_capture", "cancel_turn", "continue_turn", "explain", "get_plan_text"),
        # Acts of operators want a turn that is stuck, or a record that is dead.
        *("reap_turn", "end_turn", "get_dead_letter", "redrive_dead_letter"),
    }
)
"""Operations that want what does not stand in this house: a good answer is luck."""

MAY_FIND_NOTHING = 0.25
"""Share of the others that may never have got a good answer: what sixteen examples hit upon is
chance. The lane on twins names each."""


async def test_whatever_is_asked_is_answered_as_documented(house: House) -> None:
    client = await house.client("fuzz")
    known = []
    for text in ("A good message first", "And another one elsewhere"):
        conversation = await client.conversation()
        post = await client.say(conversation, text)
        assert post.turn_id is not None
        known.append(
            {
                "turn_id": str(post.turn_id),
                "conversation_id": str(conversation),
                "message_id": str(ids.message_id(post.turn_id, "user")),
                "against": str(post.turn_id),
            }
        )
    await house.come_to_rest()
    everything = ("chat", "read", "admin", "captures")
    stranger = await house.make_key("fuzz-stranger", scopes=everything)
    owner = await house.make_key("fuzz", scopes=everything)

    told = await asyncio.to_thread(
        fuzz,
        house.gateway_url(),
        keys=[owner.key, owner.key, stranger.key],
        known=known * 2,
        examples=EXAMPLES,
    )

    assert set(told) == {operation.id for operation in OPERATIONS}
    expected = {n: statuses for n, statuses in told.items() if n not in WANT_WHAT_IS_NOWHERE}
    unanswered = {name for name, statuses in expected.items() if min(statuses) >= 300}
    assert len(unanswered) <= MAY_FIND_NOTHING * len(expected), f"never past a check: {unanswered}"
    await house.come_to_rest()
