"""Laws of a turn's live stream, for every order in which writers may come."""

import asyncio
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.redis.memory import MemoryDoorbell, MemoryLiveStream, MemoryRedis
from libs.redis.ports import Appended, bell_channel, parse_bell
from schemas.streams import BEFORE_ALL, Entry, EntryId, content_delta, fence

TURN = UUID(int=1)
ALL = 10_000

numbers = st.tuples(st.integers(0, 4), st.integers(1, 6))
single = numbers.map(lambda pair: content_delta(EntryId(*pair), f"{pair}"))
fences = st.integers(1, 5).map(fence)
appends = st.lists(
    st.lists(single | fences, min_size=1, max_size=5).map(
        lambda entries: sorted(entries, key=lambda entry: entry.id)
    ),
    max_size=25,
)


async def written(batches: list[list[Entry]]) -> tuple[list[Appended], list[Entry], list[Entry]]:
    """Results, what is stored, what was rung."""
    server = MemoryRedis(now=lambda: 0.0)
    stream, rung = MemoryLiveStream(server), list[Entry]()
    async with MemoryDoorbell(server).listen(
        bell_channel(TURN), lambda _, body: rung.append(parse_bell(body))
    ):
        results = [await stream.append(TURN, batch) for batch in batches]
    return results, await stream.read(TURN, BEFORE_ALL, ALL), rung


@given(appends)
@settings(deadline=None)
def test_ids_only_rise_and_everything_accepted_is_stored_and_rung_once(batches):
    results, stored, rung = asyncio.run(written(batches))

    ids = [entry.id for entry in stored]
    assert ids == sorted(set(ids))
    assert len(stored) == sum(result.accepted for result in results)
    assert rung == [entry for entry in stored if not entry.is_fence]


@given(appends)
@settings(deadline=None)
def test_no_attempt_appears_again_after_a_higher_one(batches):
    _, stored, _ = asyncio.run(written(batches))

    attempts = [entry.id.attempt for entry in stored]
    assert attempts == sorted(attempts)


@given(appends)
@settings(deadline=None)
def test_repeating_every_append_at_once_changes_nothing(batches):
    twice = [batch for batch in batches for _ in range(2)]

    results, stored, rung = asyncio.run(written(twice))
    once = asyncio.run(written(batches))

    assert (stored, rung) == once[1:]
    assert all(result.accepted == 0 for result in results[1::2])


@given(appends)
@settings(deadline=None)
def test_a_refused_append_is_fenced_exactly_if_a_higher_attempt_wrote_before(batches):
    results, _, _ = asyncio.run(written(batches))

    highest = -1
    for batch, result in zip(batches, results, strict=True):
        mine = max(entry.id.attempt for entry in batch)
        assert result.fenced == (highest > mine)
        highest = max(highest, mine)
