"""The second planner and the product's come to the same bytes, whatever the history looks like."""

import hashlib
import random
from typing import Any
from uuid import UUID

import pytest

from libs.catalogue import Catalogue, ModelCard
from libs.tokens import count
from services.context_assembly.app import limits_from
from services.context_assembly.core.budget import prompt_budget, sampling_of
from services.context_assembly.core.history import HistoryRow
from services.context_assembly.core.payload import seal
from services.context_assembly.core.plan import Planner, SystemPolicy, TurnToPlan
from tests.rig.replanning import _fingerprint, _plan_again

WORDS = ("harbour", "löffel", "夜の港", "🙂", "tide\n", "salt")
TENANT, BRANCH = UUID(int=1), UUID(int=2)


def card(*, alternate_roles: bool) -> ModelCard:
    shipped = Catalogue.load().model("scripted")
    return shipped.model_copy(
        update={"window": 600, "max_output": 100, "alternate_roles": alternate_roles}
    )


def history(dice: random.Random, turns: int) -> list[dict[str, Any]]:
    """Messages of ended turns and the question of one more, newest first."""
    rows: list[dict[str, Any]] = []

    def say(turn: int, role: str, status: str, text: str | None) -> None:
        rows.insert(
            0,
            {
                "id": UUID(int=100 + len(rows)),
                "tenant_id": TENANT,
                "branch_id": BRANCH,
                "turn_id": UUID(int=10_000 + turn),
                "seq": len(rows) + 1,
                "role": role,
                "status": status,
                "text": text,
            },
        )

    for turn in range(turns):
        said = [" ".join(dice.choices(WORDS, k=dice.randint(1, 12))) for _ in range(2)]
        end = dice.choice(("completed", "completed", "partial", "cancelled", "failed"))
        say(turn, "user", "completed", said[0])
        say(turn, "assistant", end, None if end == "failed" else said[1])
    say(turns, "user", "completed", "and now?")
    return rows


def planned_by_the_product(
    rows: list[dict[str, Any]], model: ModelCard, policy: str
) -> tuple[list[str], str]:
    limits = limits_from(model)
    current, *before = rows
    turn = TurnToPlan(
        turn_id=current["turn_id"],
        step_id=UUID(int=3),
        step_no=1,
        base_seq=current["seq"],
        user_message_id=current["id"],
        current_tokens=count(current["text"], limits.tokenizer),
    )
    known = [
        HistoryRow(
            row["id"],
            row["turn_id"],
            row["seq"],
            row["role"],
            row["status"],
            count(row["text"] or "", limits.tokenizer),
            len((row["text"] or "").encode()),
        )
        for row in before
    ]
    planner = Planner(limits, SystemPolicy(policy, "1"), sampling_of(None, limits))
    texts = {str(row["id"]): row["text"] or "" for row in rows}
    plan, payload = seal(planner.plan(turn, known), texts)
    assert plan.fingerprint == hashlib.sha256(payload).hexdigest()
    return list(plan.message_ids), plan.fingerprint


@pytest.mark.parametrize("policy", ["", "Be brief."])
@pytest.mark.parametrize("alternate_roles", [False, True])
def test_both_show_the_same_messages_and_render_the_same_bytes(
    policy: str, *, alternate_roles: bool
) -> None:
    dice = random.Random(7)
    model = card(alternate_roles=alternate_roles)
    lengths = set()
    for _ in range(60):
        rows = history(dice, dice.randint(0, 40))
        current = rows[0]
        turn = {
            "tenant_id": TENANT,
            "branch_id": BRANCH,
            "seq": current["seq"],
            "user_message_id": current["id"],
        }
        budget = prompt_budget(limits_from(model), model.max_output)
        made = _plan_again(turn, rows, model, policy_text=policy, budget=budget)
        payload = {
            "model": model.name,
            "messages": made.messages,
            "max_tokens": model.max_output,
        }

        assert (made.shown, _fingerprint(payload)) == planned_by_the_product(rows, model, policy)
        lengths.add(len(made.shown) < len(rows))

    assert lengths == {True, False}  # some histories fit, some were trimmed
