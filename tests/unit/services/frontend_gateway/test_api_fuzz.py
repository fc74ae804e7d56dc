"""The interface's document against the gateway on twins: nothing that is asked breaks it."""

import asyncio
from uuid import UUID

from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http.openapi import OPERATIONS
from services.frontend_gateway.ports import CaptureView, PlanView
from tests.rig.fuzzing import fuzz
from tests.rig.gateway import AT, GatewayRig, gateway_rig
from tests.rig.stored_plans import plan

EXAMPLES = 40
"""Of each operation: about 1,200 requests in half a minute."""

EVERYTHING = ("chat", "read", "admin", "captures")

NEVER_GOOD = frozenset({"login"})
"""An invented key cannot be exchanged for a session."""

RARELY_GOOD = frozenset(
    {
        "get_plan_text",  # wants one of two fields, and never both
        *("get_story", "reap_turn", "end_turn"),  # the operators' twin knows no turns
        *("get_dead_letter", "redrive_dead_letter"),  # and no dead letters
    }
)
"""What is asked for stands nowhere here: a good answer is luck, or needs the real database."""


def place(turn: TurnView) -> dict[str, str]:
    """Ids that belong together, by the names of the parameters that take them."""
    return {
        "turn_id": str(turn.id),
        "conversation_id": str(turn.conversation_id),
        "message_id": str(turn.user_message_id),
        "against": str(turn.id),
    }


def allow_everything(rig: GatewayRig) -> None:
    hash_ = next(iter(rig.store.keys))
    caller = rig.store.keys[hash_]
    rig.store.keys[hash_] = type(caller)(
        caller.key_id, caller.tenant_id, caller.principal_id, frozenset(EVERYTHING)
    )


async def test_whatever_is_asked_is_answered_as_documented() -> None:
    async with gateway_rig() as rig:
        allow_everything(rig)
        stranger, _ = rig.new_key(list(EVERYTHING))
        running, first, cut = [await rig.turn(text) for text in ("Running?", "First?", "Cut?")]
        rig.end(first, "Yes.", None)
        rig.end(cut, "Ye", None, status="partial", reason="provider_cut")
        posted = await rig.post(first.conversation_id, "Ended?", key="second")
        ended = rig.end(rig.store.turn_rows[UUID(posted.json()["turn_id"])], "Yes.", None)
        for turn, text in ((first, "First?"), (ended, "Ended?"), (cut, "Cut?")):
            document = plan([(str(turn.user_message_id), "user", text, 1)], turn_id=turn.id)
            rig.store.plan_rows[turn.id] = [PlanView(turn.id, 1, document, AT)]
        rig.store.capture_rows[ended.id] = [CaptureView(1, "failed", AT, b"{}")]
        told = await asyncio.to_thread(
            fuzz,
            rig.url,
            keys=[rig.key, stranger],
            known=[place(turn) for turn in (running, ended, cut)],
            examples=EXAMPLES,
        )
    assert set(told) == {operation.id for operation in OPERATIONS}
    unanswered = {name for name, statuses in told.items() if min(statuses) >= 300}
    assert unanswered - RARELY_GOOD == NEVER_GOOD
