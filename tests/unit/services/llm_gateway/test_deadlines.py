"""Deadlines on the loop that services run on: its timers may fire half a millisecond early."""

import pytest
import uvloop

from tests.rig.llm_worker import Terms, http_provider, running_worker, seed_turn
from tests.rig.parts import TestDatabase
from tests.rig.provider import Rule

pytestmark = pytest.mark.postgres

CALLS = 24
"""At once, each with a deadline of its own: about half of their timers are due too early."""


async def reasons_of(database: TestDatabase, deadline_s: float) -> set[str]:
    """Of turns whose provider falls silent, long before silence itself would end them."""
    turns = [seed_turn(database, terms=Terms(deadline_s, "turn")) for _ in range(CALLS)]
    async with (
        http_provider(Rule(deltas=("a", "b"), hang_after=1)) as (_, provider),
        running_worker(database, provider, max_running=CALLS) as worker,
    ):
        await worker.take(*turns)
        return {(await worker.ended(turn)).data.reason for turn in turns}


def test_a_deadline_is_never_told_as_silence_of_the_provider(database: TestDatabase) -> None:
    assert uvloop.run(reasons_of(database, deadline_s=2.0)) == {"deadline"}
