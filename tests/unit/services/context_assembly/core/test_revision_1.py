"""What revision 1 of the planner sent, revision 2 sends byte for byte."""

import json

import pytest

from services.context_assembly.core.payload import seal
from services.context_assembly.core.planner import Planner
from tests.unit.services.context_assembly.core.builders import text_of
from tests.unit.services.context_assembly.core.revision_1 import CASES, STORED, case

KEPT = json.loads(STORED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", range(CASES))
def test_a_conversation_without_data_gives_the_bytes_of_revision_1(number: int) -> None:
    limits, policy, sampling, turn, rows = case(number)
    plan = Planner(limits, policy, sampling).plan(turn, rows)
    sealed, payload = seal(plan, {block.id: text_of(block.id) for block in plan.blocks})

    assert payload.decode() == KEPT[str(number)]["payload"]
    assert sealed.fingerprint == KEPT[str(number)]["fingerprint"]
    assert (plan.tokens, plan.trimmed) == (
        KEPT[str(number)]["tokens"],
        KEPT[str(number)]["trimmed"],
    )


def test_the_stored_cases_trim_and_alternate() -> None:
    trimmed = [number for number in range(CASES) if KEPT[str(number)]["trimmed"]]

    assert len(trimmed) > 20
    assert any("[no answer]" in KEPT[str(number)]["payload"] for number in trimmed)
