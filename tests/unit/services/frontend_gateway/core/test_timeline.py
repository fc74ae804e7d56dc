"""The hops of a turn: their order, and durations that no clock can make negative."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from services.frontend_gateway.core.timeline import AttemptView, StepView, hops
from services.frontend_gateway.core.turns import TurnView

AT = datetime(2026, 1, 31, 9, 40, tzinfo=UTC)
STEP = uuid4()


def after(ms: float) -> datetime:
    return AT + timedelta(milliseconds=ms)


def turn(
    *, started: float | None = 4, ended: float | None = 1_900, status: str = "completed"
) -> TurnView:
    return TurnView(
        id=uuid4(),
        tenant_id=uuid4(),
        conversation_id=uuid4(),
        principal_id=uuid4(),
        status=status,
        seq=1,
        created_at=AT,
        started_at=None if started is None else after(started),
        ended_at=None if ended is None else after(ended),
    )


def step(at: float, *, number: int = 1, reason: str | None = None, id_: UUID = STEP) -> StepView:
    state = "planned" if reason is None else "refused"
    return StepView(id_, number, state, reason, None, "m", after(at))


def attempt(
    number: int, began: float | None, ended: float | None, first: int | None = None
) -> AttemptView:
    took = None if began is None or ended is None else round(ended - began)
    return AttemptView(
        STEP,
        number,
        "m",
        "running" if ended is None else "completed",
        first_token_ms=first,
        duration_ms=took,
        began_at=None if began is None else after(began),
        ended_at=None if ended is None else after(ended),
    )


def test_a_plain_turn_passes_every_hop_and_they_add_up_to_the_whole() -> None:
    passed = hops(turn(), [step(31)], [attempt(1, 43, 1_877, first=412)])

    assert [(hop.name, hop.duration_ms) for hop in passed] == [
        ("accepted", None),
        ("started", 4),
        ("planned", 27),
        ("called", 12),
        ("first_token", 412),
        ("call_ended", 1_422),
        ("committed", 23),
    ]
    assert sum(hop.duration_ms or 0 for hop in passed) == 1_900
    assert [hop.attempt for hop in passed] == [None, None, None, 1, 1, 1, None]


def test_a_queued_turn_was_accepted_and_nothing_else() -> None:
    passed = hops(turn(started=None, ended=None, status="pending"), [], [])
    assert [hop.name for hop in passed] == ["accepted"]


def test_a_refused_step_is_no_planned_one_and_calls_nobody() -> None:
    passed = hops(turn(ended=58, status="failed"), [step(29, reason="context_too_large")], [])
    assert [hop.name for hop in passed] == ["accepted", "started", "refused", "committed"]


def test_every_attempt_has_its_own_hops_and_a_lost_one_has_its_end_alone() -> None:
    lost, second = attempt(1, None, 9_100), attempt(2, 9_180, 13_390, first=840)
    passed = hops(turn(ended=13_420), [step(31)], [lost, second])

    assert [(hop.name, hop.attempt) for hop in passed[3:]] == [
        ("call_ended", 1),
        ("called", 2),
        ("first_token", 2),
        ("call_ended", 2),
        ("committed", None),
    ]


def test_a_running_attempt_was_called_and_shows_no_token_yet() -> None:
    passed = hops(turn(ended=None, status="generating"), [step(31)], [attempt(1, 43, None)])
    assert [hop.name for hop in passed] == ["accepted", "started", "planned", "called"]


def test_attempts_stand_behind_the_step_they_belong_to() -> None:
    other = uuid4()
    passed = hops(
        turn(), [step(31), step(1_880, number=2, id_=other)], [attempt(1, 43, 1_877, first=412)]
    )
    names = [(hop.name, hop.step_no) for hop in passed]
    assert names[2:] == [
        ("planned", 1),
        ("called", 1),
        ("first_token", 1),
        ("call_ended", 1),
        ("planned", 2),
        ("committed", None),
    ]


def test_a_clock_that_is_behind_takes_no_time_and_hides_none() -> None:
    passed = hops(turn(), [step(-500)], [attempt(1, -480, 1_877, first=900)])

    assert all((hop.duration_ms or 0) >= 0 for hop in passed)
    assert sum(hop.duration_ms or 0 for hop in passed) == 1_900


def test_a_first_token_that_was_measured_longer_than_the_call_is_inside_of_it() -> None:
    odd = AttemptView(
        STEP, 1, "m", "completed", None, None, 1, 90, 60, after(40), after(100), None, None
    )
    passed = hops(turn(ended=110), [step(31)], [odd])
    assert [hop.duration_ms for hop in passed if hop.name == "first_token"] == [60]
