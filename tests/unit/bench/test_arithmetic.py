"""A benchmark that counts wrong proves nothing: its arithmetic is tested like everything else."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from time import perf_counter
from typing import Any

import pytest

from tests.bench.arithmetic import Delays, random_starts, ratio, settled, slope
from tests.bench.machine import percentile
from tests.bench.open_loop import open_loop
from tests.bench.page_file import PARTS, replaced
from tests.bench.wire import Answer

STALL_S = 0.3


def test_a_percentile_is_one_of_the_values_and_the_last_one_at_the_end() -> None:
    values = [float(n) for n in range(1, 101)]
    random.Random(1).shuffle(values)
    assert percentile(values, 50) == 51.0
    assert percentile(values, 99) == 100.0
    assert percentile(values, 100) == 100.0
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 99) == 0.0


def test_one_slow_answer_in_fifty_is_what_p99_shows_and_p50_hides() -> None:
    delays = Delays()
    for n in range(100):
        delays.note(0.5 if n % 50 == 0 else 0.01)
    assert delays.p(50) == pytest.approx(10)
    assert delays.p(99) == pytest.approx(500)
    assert delays.longest == pytest.approx(500)


def test_random_starts_keep_their_rate_their_order_and_their_seed() -> None:
    starts = random_starts(100, 50, random.Random(4))
    assert starts == random_starts(100, 50, random.Random(4))
    assert starts == sorted(starts)
    assert starts[-1] < 50
    assert 4_600 < len(starts) < 5_400  # four standard deviations of such a count are 283
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert sum(gap > 0.02 for gap in gaps) > len(gaps) * 0.1  # e^-2 of them; a metronome has none


def test_a_slope_is_found_under_noise_and_is_zero_where_nothing_grows() -> None:
    dice = random.Random(2)
    points = [(float(x), 3.0 * x + 10 + dice.uniform(-1, 1)) for x in range(200)]
    assert slope(points) == pytest.approx(3.0, abs=0.02)
    assert slope([(0.0, 5.0), (1.0, 5.0), (2.0, 5.0)]) == 0.0
    assert slope([(1.0, 5.0)]) == 0.0
    assert slope([(1.0, 5.0), (1.0, 9.0)]) == 0.0


def test_what_grows_only_at_the_beginning_does_not_grow_in_the_later_half() -> None:
    points = [(float(x), min(float(x), 40.0)) for x in range(100)]
    assert slope(points) > 0
    assert slope(settled(points)) == 0.0


def test_a_ratio_to_nothing_is_not_infinite() -> None:
    assert ratio(6.0, 3.0) == 2.0
    assert ratio(6.0, 0.0) == 0.0


def _client(*takes_s: float) -> Callable[[], Coroutine[Any, Any, Answer]]:
    left = list(takes_s)

    async def turn() -> Answer:
        answer = Answer(perf_counter(), 200)
        ends = answer.sent_at + (left.pop(0) if left else 0)
        while perf_counter() < ends:
            await asyncio.sleep(0.002)
        answer.first_at = answer.ended_at = perf_counter()
        return answer

    return turn


async def test_a_turn_that_had_to_wait_behind_a_stalled_one_counts_its_wait() -> None:
    samples = await open_loop([_client(STALL_S)], [0.0, 0.01, 0.02])
    assert samples.turns == 3
    assert samples.most_waiting == 2
    assert all(ms > (STALL_S - 0.021) * 1000 for ms in samples.first.ms)
    # Counted from the sending, as a closed loop does, two of the three users never waited.
    assert sorted(samples.unaware.ms)[1] < (STALL_S - 0.021) * 1000


async def test_a_stall_of_one_client_does_not_hold_up_turns_that_others_can_take() -> None:
    samples = await open_loop([_client(STALL_S), _client(), _client()], [0.0, 0.001, 0.002])
    assert samples.most_waiting == 0
    assert sorted(samples.first.ms)[1] < STALL_S * 1000


async def test_an_open_loop_starts_every_turn_of_its_schedule_and_none_before_its_time() -> None:
    sent: list[float] = []

    async def turn() -> Answer:
        answer = Answer(perf_counter(), 200)
        sent.append(answer.sent_at)
        answer.first_at = answer.ended_at = perf_counter()
        return answer

    starts = [0.0, 0.02, 0.021, 0.05]
    began = perf_counter()
    samples = await open_loop([turn, turn], starts)
    assert samples.turns == len(starts)
    assert all(at - began >= start for at, start in zip(sent, starts, strict=True))


def test_one_command_replaces_its_own_part_of_the_page_and_keeps_the_others() -> None:
    page = ""
    for part in PARTS:
        page = replaced(page, part, f"first of {part}")
    page = replaced(page, "peer", "second of peer")
    assert [page.count(f"first of {part}") for part in PARTS] == [1, 0, 1]
    assert page.count("second of peer") == 1
    assert page.index("first of bench") < page.index("second of peer") < page.index("first of soak")
    assert replaced(page, "peer", "second of peer") == page


def test_a_part_that_was_never_written_leaves_no_empty_place() -> None:
    page = replaced("", "bench", "figures")
    assert "figures" in page
    assert "peer" not in page
