"""Faults of the provider: what a caller of it gets while they last, and that they end."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import pytest

from tests.chaos import faults_provider
from tests.chaos.caller import AT_LENGTH, LOTS
from tests.chaos.faults_provider import MANY_BYTES, Scripted, be_well, inside_a_character
from tests.chaos.house import ChaosHouse
from tests.chaos.proxy import Proxy
from tests.rig.provider import Rule, ScriptedProvider
from tests.rig.waiting import until

SEEDS = range(12)


@dataclass
class Premises:
    """What these faults touch of a house."""

    provider: ScriptedProvider
    edges: dict[str, Proxy] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)

    async def hold(self, resource: str) -> None:
        self.held.add(resource)

    def let_go(self, resource: str) -> None:
        self.held.remove(resource)


@dataclass
class Got:
    """What a caller got of one answer."""

    status: int = 0
    body: bytes = b""
    is_whole: bool = False
    retry_after: str = ""


@asynccontextmanager
async def premises() -> AsyncIterator[tuple[Premises, ChaosHouse]]:
    async with ScriptedProvider() as provider:
        be_well(provider)
        found = Premises(provider)
        yield found, cast("ChaosHouse", found)


async def ask(provider: ScriptedProvider, said: str, *, within_s: float = 5.0) -> Got:
    """One request; what had come of it when it ended or the time was over."""
    got = Got()
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": said}]}
    try:
        async with (
            asyncio.timeout(within_s),
            aiohttp.ClientSession() as session,
            session.post(f"{provider.base_url}/chat/completions", json=body) as response,
        ):
            got.status = response.status
            got.retry_after = response.headers.get("Retry-After", "")
            async for chunk in response.content.iter_any():
                got.body += chunk
            got.is_whole = True
    except (aiohttp.ClientError, TimeoutError):
        pass
    return got


def lot_of(fault: Scripted) -> str:
    """A message that the fault strikes."""
    return f"{fault.rules[0].match}tell me"


def made(kind: str, dice: random.Random) -> Scripted:
    fault = faults_provider.FAULTS[kind](dice)
    assert isinstance(fault, Scripted)
    return fault


SCRIPTED = sorted(set(faults_provider.FAULTS) - {"provider_refusing"})


@pytest.mark.parametrize("kind", SCRIPTED)
async def test_a_fault_strikes_its_lots_and_no_other_and_is_over_when_healed(kind: str) -> None:
    dice = random.Random(kind)
    async with premises() as (found, house):
        fault = made(kind, dice)
        await fault.inject(house, dice)
        lots = {int((rule.match or "").removeprefix("lot-")) for rule in fault.rules}
        spared = next(lot for lot in range(LOTS) if lot not in lots)
        struck = asyncio.create_task(ask(found.provider, lot_of(fault)))

        async def is_struck() -> bool:
            return found.provider.times_used(fault.rules[0]) == 1

        await until(is_struck, within_s=5)
        well = await ask(found.provider, f"lot-{spared} tell me")
        figures = await fault.heal(house)
        await asyncio.wait_for(struck, 10)  # nothing goes on for ever after it was healed
        after = await ask(found.provider, lot_of(fault))

    assert figures["answers"] == 1
    assert well.is_whole
    assert well.body.count(b"content") > 1
    assert after.is_whole
    assert after.status == 200
    assert b"[DONE]" in after.body


async def test_a_throttled_caller_is_told_so_and_sometimes_for_how_long() -> None:
    waits = set()
    for seed in SEEDS:
        async with premises() as (found, house):
            dice = random.Random(seed)
            fault = made("provider_429", dice)
            await fault.inject(house, dice)
            got = await ask(found.provider, lot_of(fault))
        assert got.status == 429
        waits.add(got.retry_after)
    assert waits == {"", "1"}


async def test_failing_is_a_status_or_an_error_where_deltas_should_come() -> None:
    ways = set()
    for seed in SEEDS:
        async with premises() as (found, house):
            dice = random.Random(seed)
            fault = made("provider_failing", dice)
            await fault.inject(house, dice)
            got = await ask(found.provider, lot_of(fault))
        assert b"server_error" in got.body
        ways.add(got.status)
    assert ways == {200, 500, 503}


async def test_a_hanging_answer_says_nothing_more_until_it_is_released() -> None:
    for seed in SEEDS:
        async with premises() as (found, house):
            dice = random.Random(seed)
            fault = made("provider_hanging", dice)
            await fault.inject(house, dice)
            got = await ask(found.provider, lot_of(fault), within_s=0.3)
        assert not got.is_whole
        assert b"[DONE]" not in got.body


async def test_a_cut_answer_lacks_its_end() -> None:
    for seed in SEEDS:
        async with premises() as (found, house):
            dice = random.Random(seed)
            fault = made("provider_cut", dice)
            await fault.inject(house, dice)
            got = await ask(found.provider, lot_of(fault))
        assert got.status == 200
        assert b'finish_reason":"stop' not in got.body
        assert b"[DONE]" not in got.body


@pytest.mark.parametrize("delta", range(len(MANY_BYTES)))
async def test_an_answer_is_cut_between_two_bytes_of_one_character(delta: int) -> None:
    rule = Rule(match="cut", deltas=MANY_BYTES, delay_ms=5)
    at = inside_a_character(rule, delta)
    async with premises() as (found, _):
        found.provider.script(Rule(match="cut", deltas=MANY_BYTES, delay_ms=5, reset_at_byte=at))
        got = await ask(found.provider, "cut me")
    assert not got.is_whole
    assert len(got.body) == at
    with pytest.raises(UnicodeDecodeError, match="unexpected end of data"):
        got.body.decode()
    assert got.body.count(b"content") == delta + 2  # the role, whole deltas, and half of one


async def test_an_answer_that_never_ends_is_cut_when_the_fault_is_healed() -> None:
    dice = random.Random(3)
    async with premises() as (found, house):
        fault = made("provider_never_ending", dice)
        await fault.inject(house, dice)
        struck = asyncio.create_task(ask(found.provider, lot_of(fault), within_s=20))

        async def goes_on() -> bool:
            sent = [record.deltas_sent for record in found.provider.requests]
            return bool(sent) and sent[0] > 3 * len(MANY_BYTES)

        await until(goes_on, within_s=10)
        figures = await fault.heal(house)
        got = await asyncio.wait_for(struck, 5)
    assert figures == {"answers": 1, "still_running": 1}
    assert not got.is_whole


async def test_a_long_answer_fills_more_than_the_buffers_of_a_connection() -> None:
    async with premises() as (found, _):
        got = await ask(found.provider, f"lot-3 {AT_LENGTH} please", within_s=20)
    assert got.is_whole
    assert len(got.body) > 200_000


async def test_nobody_is_there_while_the_provider_refuses() -> None:
    async with premises() as (found, house):
        proxy = Proxy("127.0.0.1", found.provider.port)
        await proxy.start()
        found.edges[faults_provider.EDGE] = proxy
        fault = faults_provider.FAULTS["provider_refusing"](random.Random(0))
        try:
            await fault.inject(house, random.Random(0))
            assert found.held == {"edge llm_gateway-provider"}
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", proxy.port)
            await fault.heal(house)
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.close()
        finally:
            await proxy.stop()
    assert found.held == set()


# The provider's own side


async def test_a_withdrawn_rule_is_chosen_no_more_and_others_stay() -> None:
    first, second = Rule(match="a", deltas=("one",)), Rule(match="a", deltas=("two",))
    async with ScriptedProvider() as provider:
        provider.script(first, second)
        answers: list[Any] = [await ask(provider, "a")]
        running = provider.withdraw(first)
        answers.append(await ask(provider, "a"))
        counts = provider.times_used(first), provider.times_used(second)
    assert [b"one" in one.body for one in answers] == [True, False]
    assert b"two" in answers[1].body
    assert (running, counts) == (0, (1, 1))
