"""The second planner and the product's come to the same bytes, whatever the history looks like."""

import hashlib
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from libs.catalogue import Catalogue, ModelCard, SectionCard
from libs.tokens import count
from services.context_assembly.app import limits_from
from services.context_assembly.core.budget import prompt_budget, sampling_of
from services.context_assembly.core.history import HistoryRow
from services.context_assembly.core.instructions import (
    Instruction,
    SystemPolicy,
    shown_instructions,
)
from services.context_assembly.core.payload import seal
from services.context_assembly.core.plan import TurnToPlan
from services.context_assembly.core.planner import Planner
from tests.rig.replanning import Limits, Said, _fingerprint, _head, _plan_again, _possible_histories

WORDS = ("harbour", "löffel", "夜の港", "🙂", "tide\n", "salt")
TENANT = UUID(int=1)
PLANNED_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG_AGO, LATER = PLANNED_AT - timedelta(hours=1), PLANNED_AT + timedelta(hours=1)


ALL_THAT_IS_LEFT = SectionCard(priority=5)
NAMED = ("kind", "scope", "version")


def set_as(kind: str, scope: str, version: int, text: str) -> dict[str, Any]:
    """A row of instructions."""
    return {"kind": kind, "scope": scope, "version": version, "text": text, "created_at": LONG_AGO}


@dataclass(frozen=True)
class Told:
    """What the operator tells the model, and what the history may have."""

    policy: str = ""
    instructions: tuple[Instruction, ...] = ()
    history: SectionCard = ALL_THAT_IS_LEFT

    @property
    def named(self) -> list[dict[str, str]]:
        """As a plan names what it shows."""
        shown = shown_instructions(SystemPolicy(self.policy, "1"), self.instructions)
        return [{name: getattr(one, name) for name in NAMED} for one in shown]


INSTRUCTIONS = (
    Instruction("workspace", "conversation", "1", "Call her 夜."),
    Instruction("system_policy", "tenant", "3", "Never shout."),
    Instruction("workspace", "tenant", "2", "We sell rope."),
)
TOLD = {
    "nothing": Told(),
    "a policy": Told("Be brief."),
    "instructions": Told("Be brief.", INSTRUCTIONS),
    "instructions of a conversation": Told(instructions=INSTRUCTIONS[:1]),
    "little history": Told(history=SectionCard(ceiling=90, priority=5)),
    "instructions and little history": Told(
        "Be brief.", INSTRUCTIONS[2:], SectionCard(floor=20, ceiling=150, priority=5)
    ),
}


def card(*, alternate_roles: bool) -> ModelCard:
    shipped = Catalogue.load().model("scripted")
    return shipped.model_copy(
        update={"window": 600, "max_output": 100, "alternate_roles": alternate_roles}
    )


def history(dice: random.Random, turns: int) -> list[dict[str, Any]]:
    """Messages of ended turns and the question of one more, newest first; some were deleted."""
    rows: list[dict[str, Any]] = []

    def say(turn: int, role: str, status: str, text: str | None) -> None:
        rows.insert(
            0,
            {
                "id": UUID(int=100 + len(rows)),
                "tenant_id": TENANT,
                "turn_id": UUID(int=10_000 + turn),
                "seq": len(rows) + 1,
                "role": role,
                "status": status,
                "text": text,
                "deleted_at": dice.choice((None, None, None, LONG_AGO, LATER)),
            },
        )

    for turn in range(turns):
        said = [" ".join(dice.choices(WORDS, k=dice.randint(1, 12))) for _ in range(2)]
        end = dice.choice(("completed", "completed", "partial", "cancelled", "failed"))
        say(turn, "user", "completed", said[0])
        say(turn, "assistant", end, None if end == "failed" else said[1])
    say(turns, "user", "completed", "and now?")
    return rows


def said_of(rows: list[dict[str, Any]], siblings: int, told: Told) -> Said:
    """The rows as they are stored, with the turns that follow each other, and a branch beside them.

    Args:
        siblings: Turns that part from the first one and belong to nobody's history.
    """
    turns: dict[UUID, dict[str, Any]] = {}
    parent = None
    for row in reversed(rows):
        turn = turns.setdefault(
            row["turn_id"],
            {"parent_turn_id": parent, "user_message_id": None, "assistant_message_id": None},
        )
        turn[f"{row['role']}_message_id"] = row["id"]
        parent = row["turn_id"]
    others = []
    for number in range(siblings):
        other = {
            **rows[-1],
            "id": UUID(int=50_000 + number),
            "turn_id": UUID(int=60_000 + number),
            "text": "never on this path",
        }
        others.append(other)
        turns[other["turn_id"]] = {
            "parent_turn_id": None,
            "user_message_id": other["id"],
            "assistant_message_id": UUID(int=70_000 + number),
        }
    stored = [set_as(one.kind, one.scope, int(one.version), one.text) for one in told.instructions]
    return Said([*rows, *others], turns, stored)


def planned_by_the_product(
    rows: list[dict[str, Any]], model: ModelCard, told: Told
) -> tuple[list[str], str]:
    sections = {**Catalogue.load().sections(model.name), "history": told.history}
    limits = limits_from(model, sections)
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
        if row["deleted_at"] != LONG_AGO
    ]
    policy = SystemPolicy(told.policy, "1")
    planner = Planner(limits, policy, sampling_of(None, limits), told.instructions)
    texts = {str(row["id"]): row["text"] or "" for row in rows}
    plan, payload = seal(planner.plan(turn, known), texts)
    assert plan.fingerprint == hashlib.sha256(payload).hexdigest()
    return list(plan.message_ids), plan.fingerprint


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
@pytest.mark.parametrize("alternate_roles", [False, True])
def test_both_show_the_same_messages_and_render_the_same_bytes(
    told: Told, *, alternate_roles: bool
) -> None:
    dice = random.Random(7)
    model = card(alternate_roles=alternate_roles)
    lengths = set()
    for _ in range(60):
        rows = history(dice, dice.randint(0, 40))
        current = rows[0]
        said = said_of(rows, dice.randint(0, 2), told)
        shown, fingerprint = planned_by_the_product(rows, model, told)
        turn = {
            "tenant_id": TENANT,
            "planned_at": PLANNED_AT,
            "parent_turn_id": said.turns[current["turn_id"]]["parent_turn_id"],
            "user_message_id": current["id"],
            "continues": None,
            "plan": {"instructions": told.named},
        }
        head, is_current = _head(turn, said, told.policy)
        budget = prompt_budget(limits_from(model), model.max_output)
        (seen,) = _possible_histories(turn, said)
        made = _plan_again(turn, said, seen, Limits(model, head, budget, told.history.ceiling))
        payload = {
            "model": model.name,
            "messages": made.messages,
            "max_tokens": model.max_output,
        }

        assert is_current
        assert (made.shown, _fingerprint(payload)) == (shown, fingerprint)
        lengths.add(len(made.shown) < len(rows))

    assert lengths == {True, False}  # some histories fit, some were trimmed


@pytest.mark.parametrize(
    ("named", "is_current"),
    [
        ([], False),
        ([("workspace", "tenant", "1")], False),
        ([("workspace", "tenant", "2")], True),
        ([("workspace", "tenant", "3")], True),
        ([("workspace", "tenant", "4")], False),
        ([("workspace", "tenant", "9")], False),
        ([("workspace", "tenant", "2"), ("workspace", "conversation", "1")], False),
        ([("workspace", "tenant", "2"), ("system_policy", "tenant", "1")], False),
    ],
)
def test_a_plan_names_instructions_that_were_current_about_when_it_was_made(
    named: list[tuple[str, str, str]], *, is_current: bool
) -> None:
    """Version 1 was replaced long ago, 3 was set about then, and 4 long after."""
    moments = (LONG_AGO, LONG_AGO + timedelta(minutes=1), PLANNED_AT, LATER)
    versions = [
        {**set_as("workspace", "tenant", number, f"text {number}"), "created_at": at}
        for number, at in enumerate(moments, 1)
    ]
    plan = {"instructions": [dict(zip(NAMED, one, strict=True)) for one in named]}
    turn = {"planned_at": PLANNED_AT, "plan": plan}

    texts, found = _head(turn, Said([], {}, versions), "")

    assert found == is_current
    assert len(texts) <= 1


def test_what_was_deleted_about_when_the_plan_was_made_goes_in_the_order_of_deletion() -> None:
    rows = [row | {"deleted_at": None} for row in history(random.Random(3), 2)]
    first, second = rows[-1]["id"], rows[2]["id"]
    rows[-1]["deleted_at"] = PLANNED_AT - timedelta(seconds=2)
    rows[2]["deleted_at"] = PLANNED_AT + timedelta(seconds=1)
    turn = {
        "tenant_id": TENANT,
        "planned_at": PLANNED_AT,
        "parent_turn_id": rows[1]["turn_id"],
        "user_message_id": rows[0]["id"],
        "continues": None,
    }

    shown = [
        {row["id"] for row in seen} & {first, second}
        for seen in _possible_histories(turn, said_of(rows, 0, Told()))
    ]

    assert shown == [{first, second}, {second}, set()]
