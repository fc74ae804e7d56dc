"""Started turns that are planned together share a tokenizer and no branch, and keep their order."""

import random
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from schemas.envelope import Event
from schemas.turns import TurnStartedV1
from services.context_assembly.handlers import _rounds

TOKENIZERS = {None: "o200k_base", "narrow": "o200k_base", "alternating": "cl100k_base"}


def started(number: int, branch: int, model: str | None) -> Event[TurnStartedV1]:
    """A turn of a branch that is to be planned for a model."""
    data: Any = TurnStartedV1(
        branch_id=UUID(int=branch),
        base_seq=number + 1,
        user_message_id=UUID(int=1),
        assistant_message_id=UUID(int=2),
        model=model,
        deadline_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return Event(
        id=UUID(int=number),
        source="ingestion",
        tenant_id=UUID(int=3),
        conversation_id=UUID(int=4),
        correlation_id=UUID(int=number),
        occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
        data=data,
    )


def test_turns_of_one_model_on_branches_of_their_own_are_one_round() -> None:
    turns = [started(number, number, None) for number in range(20)]

    assert _rounds(turns, TOKENIZERS) == [turns]


def test_models_with_one_tokenizer_share_a_round_and_others_do_not() -> None:
    first, second, third = (
        started(1, 1, None),
        started(2, 2, "alternating"),
        started(3, 3, "narrow"),
    )

    assert _rounds([first, second, third], TOKENIZERS) == [[first, third], [second]]


def test_every_turn_is_in_one_round_and_no_branch_goes_backwards() -> None:
    dice = random.Random(5)
    for _ in range(200):
        turns = [
            started(number, dice.randint(1, 4), dice.choice(list(TOKENIZERS)))
            for number in range(dice.randint(0, 12))
        ]
        rounds = _rounds(turns, TOKENIZERS)

        assert sorted(one.id for members in rounds for one in members) == [one.id for one in turns]
        for members in rounds:
            assert len({one.data.branch_id for one in members}) == len(members)
            assert len({TOKENIZERS[one.data.model] for one in members}) == 1
        for branch in range(1, 5):
            in_order = [
                one.id
                for members in rounds
                for one in members
                if one.data.branch_id == UUID(int=branch)
            ]
            assert in_order == sorted(in_order)
