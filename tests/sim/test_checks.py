"""What only the simulation checks can fail too: a late cancel and a late recovery are named."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tests.rig.checked_world import CheckedWorld, open_world
from tests.rig.ledger import Act, Reply
from tests.rig.parts import TestDatabase
from tests.rig.verdict import Verdict
from tests.sim.checks import (
    CANCELLED_WITHIN_S,
    RECOVERED_WITHIN_S,
    UNDISTURBED_S,
    check_cancels,
    check_recovery,
)
from tests.sim.faults import Fault
from tests.sim.house import Death
from tests.sim.process import wall_time

pytestmark = pytest.mark.postgres

AT_S = 100.0
"""When the cancel was answered, and when the worker died."""

FAULT = Fault("provider", "hang", 1, 0.5)


@pytest.fixture
def world(database: TestDatabase) -> Iterator[CheckedWorld]:
    with open_world(database.admin_url) as opened:
        yield opened


def ends_after(world: CheckedWorld, seconds: float | None) -> None:
    """Let the first turn, and its attempt, end so many seconds after ``AT_S``, or never."""
    turn = world.turns[0].id
    if seconds is None:
        world.execute("delete from llm_gateway.attempts where turn_id = %(turn)s", {"turn": turn})
        world.execute(
            "update ingestion.turns set status = 'generating', ended_at = null where id = %(turn)s",
            {"turn": turn},
        )
        return
    values = {"at": wall_time(AT_S) + timedelta(seconds=seconds), "turn": turn}
    world.execute("update ingestion.turns set ended_at = %(at)s where id = %(turn)s", values)
    world.execute(
        "update llm_gateway.attempts set ended_at = %(at)s where turn_id = %(turn)s", values
    )


def cancels(world: CheckedWorld, status: int = 202) -> Act:
    """The first turn's cancel, answered at ``AT_S``."""
    act = Act("cancel", world.conversation, world.turns[0].id, [Reply(status, {}, {})])
    act.done_at = wall_time(AT_S) if act.is_done else None
    return act


def judged_cancel(world: CheckedWorld, struck_s: float | None = None, status: int = 202) -> Verdict:
    verdict = Verdict()
    strikes = [] if struck_s is None else [(struck_s, FAULT)]
    check_cancels(world.connection, [cancels(world, status)], strikes, verdict)
    return verdict


def judged_recovery(world: CheckedWorld, struck_s: float | None = None) -> Verdict:
    verdict = Verdict()
    strikes = [] if struck_s is None else [(struck_s, FAULT)]
    death = Death(AT_S, world.turns[0].values["step"], 1)
    check_recovery(world.connection, [death], strikes, verdict)
    return verdict


JUDGED: dict[str, tuple[Callable[..., Verdict], float]] = {
    "cancelled_in_time": (judged_cancel, CANCELLED_WITHIN_S),
    "recovery_in_time": (judged_recovery, RECOVERED_WITHIN_S),
}


@pytest.mark.parametrize("promise", JUDGED)
def test_an_end_in_time_is_seen(world: CheckedWorld, promise: str) -> None:
    judge, limit_s = JUDGED[promise]
    ends_after(world, limit_s - 0.1)

    judge(world).require(**{promise: 1})


@pytest.mark.parametrize("promise", JUDGED)
@pytest.mark.parametrize("late", ["late", "never"])
def test_a_late_end_is_named(world: CheckedWorld, promise: str, late: str) -> None:
    judge, limit_s = JUDGED[promise]
    ends_after(world, limit_s + 0.1 if late == "late" else None)

    (told,) = judge(world).broken

    assert told.startswith(f"{promise}: ")


@pytest.mark.parametrize("promise", JUDGED)
def test_what_something_else_disturbed_is_not_judged(world: CheckedWorld, promise: str) -> None:
    judge, _ = JUDGED[promise]
    ends_after(world, None)

    assert not judge(world, AT_S - UNDISTURBED_S + 1).checked
    assert judge(world, AT_S - UNDISTURBED_S - 1).broken
    assert judge(world, AT_S + UNDISTURBED_S + 1).broken


def test_a_cancel_that_was_refused_promises_nothing(world: CheckedWorld) -> None:
    ends_after(world, None)

    assert not judged_cancel(world, status=409).checked


def test_a_cancelled_answer_that_lost_what_was_shown_is_named(world: CheckedWorld) -> None:
    ends_after(world, 0.1)
    kept, lost = cancels(world), cancels(world)
    kept.shown_before, lost.shown_before = "answer 1 c", "answer 1 x"
    verdict = Verdict()

    check_cancels(world.connection, [kept], [], verdict)
    verdict.require(cancelled_in_time=1, stream_equals_store=1)
    check_cancels(world.connection, [lost], [], verdict)

    assert [told.partition(":")[0] for told in verdict.broken] == ["stream_equals_store"]
