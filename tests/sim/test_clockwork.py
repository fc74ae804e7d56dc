"""Virtual time and the order of actors."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from tests.sim.clockwork import START_S, NothingWillHappen, VirtualLoop
from tests.sim.faults import Fault
from tests.sim.process import Process, ProcessClock, wall_time
from tests.sim.world import World


def run(work: Coroutine[Any, Any, Any], order: int = 1) -> Any:
    loop = VirtualLoop(random.Random(order))
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_time_moves_only_to_the_next_timer() -> None:
    async def sleep() -> float:
        await asyncio.sleep(3_600)
        return asyncio.get_running_loop().time()

    assert run(sleep()) == pytest.approx(START_S + 3_600, abs=1e-3)


def test_a_run_in_which_nothing_can_happen_any_more_ends() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingWillHappen):
        run(wait_for_ever())


def test_processes_interleave_as_the_seed_says_and_keep_their_own_order() -> None:
    async def both() -> list[str]:
        world = World(1, ())
        told: list[str] = []

        async def count(name: str) -> None:
            for number in range(6):
                told.append(f"{name}{number}")
                await asyncio.sleep(0)

        tasks = [Process(name, "test", world).spawn(count(name)) for name in "ab"]
        await asyncio.gather(*tasks)
        return told

    orders = [run(both(), order) for order in range(8)]

    assert run(both(), 0) == orders[0]
    assert len({tuple(order) for order in orders}) > 1
    for order in orders:
        assert [one for one in order if one[0] == "a"] == [f"a{n}" for n in range(6)]


def test_a_paused_process_does_nothing_until_it_goes_on() -> None:
    async def pause() -> list[float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        process = Process("p", "test", World(1, ()))
        woken: list[float] = []

        async def sleep() -> None:
            await asyncio.sleep(1)
            woken.append(loop.time() - START_S)

        task = process.spawn(sleep())
        await asyncio.sleep(0.5)
        process.is_paused = True
        await asyncio.sleep(29.5)
        assert not woken
        process.is_paused = False
        loop.go_on(process)
        await task
        return woken

    assert run(pause()) == [pytest.approx(30, abs=1e-3)]


def test_a_killed_process_reaches_nothing_any_more() -> None:
    async def kill() -> list[str]:
        world = World(1, ())
        process = Process("p", "test", world)
        done: list[str] = []

        async def work() -> None:
            try:
                await asyncio.sleep(5)
            finally:
                await process.step("postgres")
                done.append("wrote after death")

        task = process.spawn(work())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.wait([task])
        return done

    assert run(kill()) == []


def test_a_fault_strikes_its_use_of_its_port_once_and_none_after_the_heal() -> None:
    async def strike() -> list[str]:
        faults = (Fault("postgres", "refused", 2, 0.5), Fault("postgres", "refused", 4, 0.5))
        world = World(1, faults)
        process = Process("p", "test", world)
        told = []
        for number in range(1, 5):
            world.is_healed = number == 4
            told.append(str(await process.step("postgres")))
        assert world.hits == {"postgres/refused": 1}
        return told

    assert run(strike()) == ["None", "postgres/refused@2(0.500)", "None", "None"]


def test_a_skewed_clock_is_wrong_about_the_day_and_right_about_durations() -> None:
    async def skew() -> None:
        world = World(1, ())
        process = Process("p", "test", world)
        clock = ProcessClock(process, world.random_bytes)
        before = clock.monotonic()
        process.skew_s = 600
        ahead_s = (clock.now() - wall_time(START_S)).total_seconds()
        assert ahead_s == pytest.approx(600, abs=1e-3)
        await clock.sleep(2)
        assert clock.monotonic() - before == pytest.approx(2, abs=1e-3)

    run(skew())
