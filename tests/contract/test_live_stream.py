"""The live stream: one suite for Valkey and for its twin in memory."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prometheus_client import CollectorRegistry

from libs.errors import LiveStreamUnavailable
from libs.redis.live_stream import RedisLiveStream
from libs.redis.ports import ENDED_EXPIRE_S, STREAM_EXPIRE_S, bell_channel
from libs.telemetry.metrics import Metrics
from schemas.streams import (
    BEFORE_ALL,
    REAPER_FENCE_ATTEMPT,
    TERMINAL_ATTEMPT,
    Entry,
    EntryId,
    TurnEnd,
    content_delta,
    fence,
    generating,
    message_started,
    terminal_entries,
)
from tests.contract.redis_rig import (
    KINDS,
    PATIENCE_S,
    Harness,
    MortalHarness,
    Valkey,
    eventually,
    mortal_opener,
    opener,
    running_valkey,
)

ALL = 1_000


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Harness]:
    return opener(request.param, request)


@pytest.fixture
async def harness(opened: AbstractAsyncContextManager[Harness]) -> AsyncIterator[Harness]:
    async with opened as harness:
        yield harness


@pytest.fixture(params=KINDS)
async def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MortalHarness]:
    async with mortal_opener(request.param, tmp_path) as harness:
        yield harness


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    with running_valkey(tmp_path) as server:
        yield server


def delta(attempt: int, n: int, text: str = "…") -> Entry:
    return content_delta(EntryId(attempt, n), text)


def attempt_of(length: int, *, attempt: int = 1) -> list[Entry]:
    return [generating(attempt), *(delta(attempt, n, f"w{n} ") for n in range(2, length + 1))]


def end() -> tuple[Entry, ...]:
    return terminal_entries(
        TurnEnd(status="completed", reason=None, length=0, sha256=None, usage=None)
    )


async def test_entries_come_back_as_they_were_written_and_in_order(harness: Harness):
    turn = uuid4()
    first = message_started(turn_id=turn, message_id=uuid4(), seq=2)
    rest = attempt_of(5)

    began = await harness.stream.append(turn, [first])
    went_on = await harness.stream.append(turn, rest)

    assert (began.accepted, began.last, began.created) == (1, EntryId(0, 1), True)
    assert (went_on.accepted, went_on.last, went_on.created) == (5, EntryId(1, 5), False)
    assert await harness.stream.read(turn, BEFORE_ALL, ALL) == [first, *rest]


async def test_bytes_of_every_kind_survive(harness: Harness):
    turn = uuid4()
    text = 'a "quote", a \\ backslash, a line\nend, 漢字, 😀, % and \t'

    await harness.stream.append(turn, [delta(1, 1, text)])

    assert await harness.stream.read(turn, BEFORE_ALL, ALL) == [delta(1, 1, text)]


async def test_reading_starts_after_the_given_id_and_stops_at_the_limit(harness: Harness):
    turn = uuid4()
    await harness.stream.append(turn, attempt_of(9))

    page = await harness.stream.read(turn, EntryId(1, 3), 4)

    assert [str(entry.id) for entry in page] == ["1-4", "1-5", "1-6", "1-7"]
    assert await harness.stream.read(turn, EntryId(1, 9), ALL) == []


async def test_a_turn_without_a_stream_has_no_entries(harness: Harness):
    turn = uuid4()

    assert await harness.stream.read(turn, BEFORE_ALL, ALL) == []
    assert await harness.stream.last_id(turn) is None
    assert not await harness.stream.exists(turn)


async def test_a_repeat_changes_nothing_and_counts_as_success(harness: Harness):
    turn = uuid4()
    entries = attempt_of(4)
    await harness.stream.append(turn, entries)

    again = await harness.stream.append(turn, entries)

    assert (again.accepted, again.last, again.fenced) == (0, EntryId(1, 4), False)
    assert await harness.stream.read(turn, BEFORE_ALL, ALL) == entries


async def test_of_a_tail_that_was_half_written_only_the_missing_half_is_accepted(harness: Harness):
    turn = uuid4()
    entries = attempt_of(6)
    await harness.stream.append(turn, entries[:4])

    whole = await harness.stream.append(turn, entries)

    assert (whole.accepted, whole.last, whole.fenced) == (2, EntryId(1, 6), False)
    assert await harness.stream.read(turn, BEFORE_ALL, ALL) == entries


async def test_a_fence_shuts_out_the_older_attempt_for_good(harness: Harness):
    turn = uuid4()
    await harness.stream.append(turn, attempt_of(3))
    await harness.stream.append(turn, [fence(2)])

    late = await harness.stream.append(turn, [delta(1, 4), delta(1, 5)])

    assert (late.accepted, late.last, late.fenced) == (0, EntryId(2, 0), True)
    assert [str(entry.id) for entry in await harness.stream.read(turn, BEFORE_ALL, ALL)] == [
        "1-1",
        "1-2",
        "1-3",
        "2-0",
    ]


async def test_the_attempt_behind_its_fence_can_write(harness: Harness):
    turn = uuid4()
    await harness.stream.append(turn, attempt_of(3))
    await harness.stream.append(turn, [fence(2)])

    new = await harness.stream.append(turn, attempt_of(2, attempt=2))

    assert (new.accepted, new.fenced) == (2, False)


async def test_a_repeated_fence_is_not_fenced_by_itself(harness: Harness):
    turn = uuid4()
    await harness.stream.append(turn, [fence(2)])

    again = await harness.stream.append(turn, [fence(2)])

    assert (again.accepted, again.fenced) == (0, False)


async def test_after_the_end_every_entry_is_refused(harness: Harness):
    turn = uuid4()
    await harness.stream.append(turn, attempt_of(3))
    await harness.stream.append(turn, [fence(REAPER_FENCE_ATTEMPT)])
    await harness.stream.append(turn, end())

    for late in (delta(1, 4), generating(7), fence(8), fence(REAPER_FENCE_ATTEMPT)):
        refused = await harness.stream.append(turn, [late])
        assert (refused.accepted, refused.fenced) == (0, True)
        assert refused.last == EntryId(TERMINAL_ATTEMPT, 1)

    again = await harness.stream.append(turn, end())
    assert (again.accepted, again.fenced) == (0, False)


async def test_a_stream_expires_and_the_end_shortens_its_life(harness: Harness):
    turn = uuid4()

    await harness.stream.append(turn, attempt_of(2))
    running = await harness.expires_in(turn)
    await harness.stream.append(turn, end())
    ended = await harness.expires_in(turn)

    assert running == pytest.approx(STREAM_EXPIRE_S, abs=5)
    assert ended == pytest.approx(ENDED_EXPIRE_S, abs=5)


async def test_a_refused_entry_does_not_lengthen_the_life_of_an_ended_stream(harness: Harness):
    turn = uuid4()
    await harness.stream.append(turn, end())

    await harness.stream.append(turn, [delta(1, 9)])

    assert await harness.expires_in(turn) == pytest.approx(ENDED_EXPIRE_S, abs=5)


async def test_every_accepted_write_sets_the_expiry_again(harness: Harness):
    turn = uuid4()
    await harness.stream.append(turn, [generating(1)], expire_s=60)

    await harness.stream.append(turn, [delta(1, 2)], expire_s=120)

    assert await harness.expires_in(turn) == pytest.approx(120, abs=5)


async def test_accepted_entries_ring_with_their_body_and_refused_ones_do_not(harness: Harness):
    turn = uuid4()
    heard: list[bytes] = []
    async with harness.doorbell.listen(bell_channel(turn), lambda _, body: heard.append(body)):
        await harness.stream.append(turn, [generating(1), delta(1, 2, "hi you")])
        await harness.stream.append(turn, [generating(1)])
        await harness.stream.append(turn, [fence(2)])
        await harness.stream.append(turn, end())
        await eventually(lambda: any(b" done " in body for body in heard))

    assert heard[:2] == [
        b'1-1 status {"state":"generating","attempt":1}',
        b'1-2 content_delta {"text":"hi you"}',
    ]
    assert [body.split(b" ")[0] for body in heard] == [b"1-1", b"1-2", b"2147483647-1"]


async def test_many_turns_are_written_in_one_batch(harness: Harness):
    turns = [uuid4() for _ in range(50)]
    twice = turns[0]

    results = await harness.stream.append_many(
        [
            *((turn, attempt_of(3)) for turn in turns),
            (twice, [delta(1, 4), delta(1, 5)]),
        ]
    )

    assert {turn: result.accepted for turn, result in results.items()} == {
        turn: 5 if turn == twice else 3 for turn in turns
    }
    assert await harness.stream.last_id(twice) == EntryId(1, 5)


async def test_concurrent_writers_keep_each_turn_whole_and_in_order(harness: Harness):
    turns = [uuid4() for _ in range(64)]

    async def write(turn: UUID) -> None:
        for entry in attempt_of(20):
            result = await harness.stream.append(turn, [entry])
            assert result.accepted == 1

    await asyncio.gather(*(write(turn) for turn in turns))

    for turn in turns:
        assert await harness.stream.read(turn, BEFORE_ALL, ALL) == attempt_of(20)


async def test_an_empty_append_tells_the_last_id(harness: Harness):
    turn = uuid4()
    await harness.stream.append(turn, attempt_of(2))

    nothing = await harness.stream.append(turn, [])

    assert (nothing.accepted, nothing.last, nothing.fenced) == (0, EntryId(1, 2), False)


async def test_a_killed_server_is_an_error_that_may_be_retried_and_then_forgotten(
    mortal: MortalHarness,
):
    turn = uuid4()
    await mortal.stream.append(turn, attempt_of(3))

    await mortal.kill()
    with pytest.raises(LiveStreamUnavailable):
        await mortal.stream.append(turn, [delta(1, 4)])
    with pytest.raises(LiveStreamUnavailable):
        await mortal.stream.read(turn, BEFORE_ALL, ALL)
    assert not await mortal.stream.ring("reply:x", b"1")
    await mortal.start()

    after = await mortal.stream.append(turn, [delta(1, 4)])
    assert (after.accepted, after.created) == (1, True)  # and so the writer learns of the loss
    assert await mortal.stream.read(turn, BEFORE_ALL, ALL) == [delta(1, 4)]


async def test_a_ring_reaches_whoever_listens(harness: Harness):
    heard: list[tuple[str, bytes]] = []
    async with harness.doorbell.listen("reply:1", lambda *bell: heard.append(bell)):
        assert await harness.stream.ring("reply:1", b"accepted")
        await eventually(lambda: bool(heard))

    assert heard == [("reply:1", b"accepted")]


async def test_a_forgotten_stream_is_gone_and_those_of_other_turns_stay(harness: Harness):
    turn, other = uuid4(), uuid4()
    await harness.stream.append(turn, [*attempt_of(3), *end()])
    await harness.stream.append(other, attempt_of(3))

    assert await harness.stream.forget(turn)
    assert await harness.stream.forget(turn)  # a repeat is no error

    assert not await harness.stream.exists(turn)
    assert await harness.stream.read(turn, BEFORE_ALL, ALL) == []
    assert len(await harness.stream.read(other, BEFORE_ALL, ALL)) == 3


async def test_without_a_server_forgetting_is_refused_and_never_an_error(mortal: MortalHarness):
    await mortal.kill()

    assert not await mortal.stream.forget(uuid4())


async def test_watchers_are_counted_and_a_turn_never_watched_is_unknown(harness: Harness):
    turn = uuid4()
    assert await harness.stream.watchers(turn) is None

    await harness.stream.watch(turn, "gateway-1")
    await harness.stream.watch(turn, "gateway-2")
    await harness.stream.watch(turn, "gateway-2")
    assert await harness.stream.watchers(turn) == 2

    await harness.stream.unwatch(turn, "gateway-1")
    await harness.stream.unwatch(turn, "gateway-2")
    assert await harness.stream.watchers(turn) == 0


async def test_without_a_server_watchers_are_unknown_and_never_an_error(mortal: MortalHarness):
    turn = uuid4()
    await mortal.stream.watch(turn, "gateway-1")

    await mortal.kill()

    assert await mortal.stream.watchers(turn) is None
    assert not await mortal.stream.watch(turn, "gateway-1")
    assert not await mortal.stream.unwatch(turn, "gateway-1")
    await mortal.start()
    assert await mortal.stream.watchers(turn) is None


@pytest.mark.redis
async def test_a_hanging_server_fails_what_waits_and_is_used_again_afterwards(valkey: Valkey):
    turn = uuid4()
    async with RedisLiveStream.open(valkey.url, answer_timeout_s=0.2) as stream:
        await stream.append(turn, [generating(1)])
        valkey.pause()

        async with asyncio.timeout(PATIENCE_S):
            results = await asyncio.gather(
                stream.append(turn, [delta(1, 2)]),
                stream.read(turn, BEFORE_ALL, ALL),
                return_exceptions=True,
            )
        assert [type(result) for result in results] == [LiveStreamUnavailable] * 2

        valkey.resume()
        await eventually(lambda: stream.connected)
        await stream.append(turn, [delta(1, 2)])  # accepted before or now: in the stream once
        assert await stream.read(turn, BEFORE_ALL, ALL) == [generating(1), delta(1, 2)]


@pytest.mark.redis
async def test_what_redis_did_not_do_is_counted_by_its_use(valkey: Valkey):
    turn, registry = uuid4(), CollectorRegistry()
    errors = Metrics(registry).live_stream_errors_total
    async with RedisLiveStream.open(valkey.url, answer_timeout_s=0.1, errors=errors) as stream:
        await stream.append(turn, [generating(1)])
        valkey.pause()
        with pytest.raises(LiveStreamUnavailable):
            await stream.append(turn, [delta(1, 2)])
        with pytest.raises(LiveStreamUnavailable):
            await stream.read(turn, BEFORE_ALL, ALL)
        assert not await stream.ring("reply:x", b"")
        assert not await stream.watch(turn, "gateway-1")
        valkey.resume()

    name = "turnwire_live_stream_errors_total"
    for use in ("append", "read", "ring", "watch"):
        assert registry.get_sample_value(name, {"use": use}) == 1


@pytest.mark.redis
async def test_a_cancelled_command_does_not_shift_the_answers_of_the_others(valkey: Valkey):
    turns = [uuid4() for _ in range(20)]
    async with RedisLiveStream.open(valkey.url) as stream:
        for number, turn in enumerate(turns, start=1):
            await stream.append(turn, attempt_of(number))
        tasks = [asyncio.create_task(stream.last_id(turn)) for turn in turns]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)

    assert results[1::2] == [EntryId(1, number) for number in range(2, 21, 2)]
    assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])


@pytest.mark.redis
async def test_a_process_starts_without_a_server_and_finds_it_later(tmp_path):
    server = Valkey(tmp_path)
    async with RedisLiveStream.open(server.url) as stream:
        assert not stream.connected
        with pytest.raises(LiveStreamUnavailable):
            await stream.exists(uuid4())
        server.start()
        try:
            await eventually(lambda: stream.connected)
            assert not await stream.exists(uuid4())
        finally:
            server.kill()


@pytest.mark.redis
async def test_scripts_forgotten_by_the_server_are_sent_again(valkey: Valkey):
    turn = uuid4()
    async with RedisLiveStream.open(valkey.url) as stream:
        await stream.append(turn, [generating(1)])
        await stream._pipe.execute("SCRIPT", "FLUSH")

        assert (await stream.append(turn, [delta(1, 2)])).accepted == 1


@pytest.mark.redis
async def test_a_refusal_of_the_server_does_not_quote_the_command(valkey: Valkey):
    turn = uuid4()
    async with RedisLiveStream.open(valkey.url) as stream:
        await stream._pipe.execute("SET", f"turn:{turn}", "not a stream")

        with pytest.raises(LiveStreamUnavailable) as refused:
            await stream.append(turn, [delta(1, 2, "canary")])

    assert "WRONGTYPE" in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.redis
async def test_a_watcher_that_falls_silent_stops_to_count(valkey: Valkey):
    turn = uuid4()
    async with RedisLiveStream.open(valkey.url) as stream:
        await stream.watch(turn, "gateway-1")
        await stream.watch(turn, "gateway-2")
        await stream._pipe.execute("ZADD", f"watch:{turn}", 1, "gateway-1")  # its time ran out

        assert await stream.watchers(turn) == 1
