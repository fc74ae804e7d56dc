"""A purged conversation that left something behind is found, and one that nobody deleted."""

import orjson
import pytest

from tests.rig.checked_world import CheckedWorld
from tests.rig.checker import Evidence, check
from tests.rig.ledger import Act, ActKind, Reply
from tests.rig.verdict import Verdict

pytestmark = pytest.mark.postgres

DONE: dict[ActKind, int] = {"delete": 204, "restore": 200}
EVERYTHING = (
    *("ingestion.messages", "ingestion.turns", "ingestion.branches"),
    *("context_assembly.plans", "context_assembly.steps"),
)
PURGE = """
delete from ingestion.transitions;
delete from ingestion.conversations;
insert into ingestion.purged_conversations (tenant_id, conversation_id, purged_at)
values ('{tenant}', '{conversation}', now())
"""


def purged(world: CheckedWorld, *, leaving: str | None = None) -> None:
    """Take every row of the conversation away, but for those of one table."""
    for table in EVERYTHING:
        if table != leaving:
            world.execute(f"delete from {table}")  # noqa: S608
    world.execute(PURGE.format(tenant=world.tenant, conversation=world.conversation))


def did(world: CheckedWorld, *kinds: ActKind, status: int | None = None) -> None:
    """What the client did to its conversation, and was told that it is done."""
    for kind in kinds:
        reply = Reply(status or DONE[kind], {}, {})
        world.ledger.acts.append(Act(kind, world.conversation, world.conversation, [reply]))


def judged(world: CheckedWorld) -> Verdict:
    """The verdict with everything that the provider was asked and the topics told."""
    topics = {
        topic: [
            orjson.dumps({**orjson.loads(raw), "conversation_id": world.conversation})
            for raw in records
        ]
        for topic, records in world.topics.items()
    }
    evidence = Evidence(topics=topics, prompts=[turn.prompt for turn in world.turns])
    return check(world.admin_url, [world.ledger], evidence=evidence)


def test_a_conversation_that_is_gone_for_good_breaks_nothing(world: CheckedWorld) -> None:
    did(world, "delete")
    before = judged(world).checked["deleted_is_gone"]
    purged(world)

    verdict = judged(world)

    assert verdict.broken == []
    assert verdict.checked["deleted_is_gone"] > before + 10


@pytest.mark.parametrize("table", EVERYTHING)
def test_a_row_that_a_purge_left_behind_is_named(world: CheckedWorld, table: str) -> None:
    did(world, "delete")
    purged(world, leaving=table)

    named = f"deleted_is_gone: {table} still has "
    assert any(told.startswith(named) for told in judged(world).broken)


@pytest.mark.parametrize("kinds", [(), ("delete", "restore")])
def test_a_conversation_that_its_client_has_still_may_not_be_purged(
    world: CheckedWorld, kinds: tuple[ActKind, ...]
) -> None:
    did(world, *kinds)
    purged(world)

    assert any("its client has it still" in told for told in judged(world).broken)


def test_a_restore_that_came_too_late_takes_nothing_back(world: CheckedWorld) -> None:
    did(world, "delete")
    did(world, "restore", status=410)
    purged(world)

    assert judged(world).broken == []


def test_what_is_not_purged_is_compared_as_ever(world: CheckedWorld) -> None:
    world.execute("delete from ingestion.turns")

    assert any(told.startswith("no_accepted_turn_lost") for told in judged(world).broken)


@pytest.mark.parametrize("moment", ["null", "now()"])
def test_a_conversation_that_was_taken_back_must_be_there(world: CheckedWorld, moment: str) -> None:
    did(world, "delete", "restore")
    world.execute(f"update ingestion.conversations set deleted_at = {moment}, purge_at = {moment}")  # noqa: S608

    broken = [told for told in judged(world).broken if "was restored" in told]

    assert bool(broken) == (moment == "now()")
