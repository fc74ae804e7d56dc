"""The long conversations of the benchmark are such as ingestion would have made them."""

import pytest

from libs import ids
from tests.bench.lengths import copy_turns
from tests.contract.ingestion.rig import TENANT, Rig, post
from tests.contract.ingestion.stages import answered, complete, history, state

pytestmark = pytest.mark.postgres


async def test_a_turn_after_copied_ones_is_shown_all_of_them(rig: Rig) -> None:
    conversation, (turn,) = await answered(rig, "a")
    await copy_turns(rig.test_database.admin_url, conversation, turn, 5)

    await rig.ingestion.requests.handle([post(conversation, "next")])

    following = ids.turn_id(TENANT, conversation, "next")
    assert history(rig, following) == list(range(1, 11))
    assert rig.one("select seq from ingestion.turns where id = %s", following) == 11
    await complete(rig, conversation, following)
    assert state(rig, following) == ("completed", None)
