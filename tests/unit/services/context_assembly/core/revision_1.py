"""Conversations whose payloads were stored when revision 1 of the planner made them."""

from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import uuid5

from services.context_assembly.core.budget import ModelLimits, Sampling
from services.context_assembly.core.history import HistoryRow
from services.context_assembly.core.instructions import SystemPolicy
from services.context_assembly.core.plan import TurnToPlan
from tests.unit.services.context_assembly.core.builders import PLAIN, ROOT, turn_after

STORED = Path(__file__).parent / "revision_1.json"
"""Payload of each case by its number."""

CASES = 60


def case(
    number: int,
) -> tuple[ModelLimits, SystemPolicy, Sampling, TurnToPlan, list[HistoryRow]]:
    """One conversation and how it is planned; the same for ever."""
    random = Random(number)
    rows: list[HistoryRow] = []
    for at in range(random.randrange(0, 15)):
        turn = uuid5(ROOT, f"turn {number} {at}")
        ending = random.choice(["completed", "completed", "partial", "cancelled", "failed"])
        for role in ("user", "assistant"):
            if role == "assistant" and ending == "failed":
                continue
            tokens = random.randrange(1, 60)
            rows.append(
                HistoryRow(
                    message_id=uuid5(turn, role),
                    turn_id=turn,
                    seq=2 * at + (1 if role == "user" else 2),
                    role=role,  # type: ignore[arg-type]
                    status="completed" if role == "user" else ending,
                    tokens=tokens,
                    length=tokens * 4,
                )
            )
    limits = replace(
        PLAIN,
        window=random.choice([200, 300, 500, 5_000]),
        per_message_overhead=random.randrange(0, 6),
        reply_overhead=random.randrange(0, 10),
        safety_factor=random.choice([1.0, 1.5]),
        alternate_roles=number % 2 == 1,
    )
    policy = SystemPolicy("Answer briefly." if number % 3 == 0 else "", "2026-03")
    sampling = Sampling(50, temperature=0.5 if number % 4 == 0 else None, top_p=None)
    return limits, policy, sampling, turn_after(rows), rows
