"""What becomes of a dead worker's attempt."""

from uuid import UUID

from schemas.streams import (
    Entry,
    EntryId,
    content_delta,
    fence,
    generating,
    message_started,
)
from services.llm_gateway.core.recovery import (
    Checkpoint,
    GiveUpStep,
    KeepShown,
    Recovery,
    StartAgain,
    judge,
)

TURN = UUID(int=1)
STARTED = message_started(turn_id=TURN, message_id=UUID(int=2), seq=2)


def delta(n: int, text: str, attempt: int = 1) -> Entry:
    return content_delta(EntryId(attempt, n), text)


def fate(
    *entries: Entry,
    checkpoint: Checkpoint | None = None,
    attempts_made: int = 1,
    late_reason: str | None = None,
) -> Recovery:
    return judge(
        1,
        entries=[*entries, fence(2)],
        checkpoint=checkpoint,
        attempts_made=attempts_made,
        late_reason=late_reason,
    )


def test_a_whole_stream_without_a_delta_lets_the_step_start_again() -> None:
    assert fate(STARTED, generating(1)) == StartAgain()
    assert fate(STARTED) == StartAgain()


def test_what_the_stream_shows_is_kept_to_the_letter() -> None:
    kept = fate(STARTED, generating(1), delta(2, "a€"), delta(3, "b"))

    assert kept == KeepShown("a€b", EntryId(1, 3))


def test_a_stream_that_is_gone_proves_nothing() -> None:
    assert fate() == KeepShown("", EntryId(1, 1))


def test_a_stream_that_is_gone_leaves_the_checkpoint() -> None:
    stored = Checkpoint(EntryId(1, 4), "abc")

    assert fate(checkpoint=stored) == KeepShown("abc", EntryId(1, 4))


def test_the_stream_continues_a_checkpoint() -> None:
    stored = Checkpoint(EntryId(1, 3), "ab")

    assert fate(delta(3, "b"), delta(4, "c"), checkpoint=stored) == KeepShown("abc", EntryId(1, 4))


def test_a_checkpoint_ahead_of_the_stream_wins() -> None:
    stored = Checkpoint(EntryId(1, 5), "abcd")

    assert fate(STARTED, generating(1), delta(2, "a"), checkpoint=stored) == KeepShown(
        "abcd", EntryId(1, 5)
    )


def test_text_behind_a_gap_is_not_glued_on() -> None:
    stored = Checkpoint(EntryId(1, 3), "ab")

    assert fate(delta(6, "e"), checkpoint=stored) == KeepShown("ab", EntryId(1, 3))
    assert fate(delta(6, "e")) == KeepShown("", EntryId(1, 1))


def test_deltas_of_an_earlier_attempt_are_not_this_one_s() -> None:
    entries = [STARTED, generating(1), fence(2), generating(2), fence(3)]

    assert (
        judge(2, entries=entries, checkpoint=None, attempts_made=2, late_reason=None)
        == StartAgain()
    )


def test_a_step_that_killed_three_workers_is_given_up() -> None:
    assert fate(STARTED, generating(1), attempts_made=3) == GiveUpStep("internal")


def test_a_late_step_does_not_start_again() -> None:
    for reason in ("deadline", "step_deadline"):
        assert fate(STARTED, generating(1), late_reason=reason) == GiveUpStep(reason)
    assert fate(STARTED, delta(2, "a"), late_reason="deadline") == KeepShown("a", EntryId(1, 2))
