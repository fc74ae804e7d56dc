"""What any provider promises: one suite for the real adapter over HTTP and for its twin."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Protocol

import pytest

from services.llm_gateway.core.completions import Done, Finished, Part, TextDelta
from services.llm_gateway.core.failures import Failure, FailureKind
from services.llm_gateway.ports import Provider, ProviderFailed
from services.llm_gateway.providers.memory import MemoryProvider, Script, answer
from services.llm_gateway.providers.openai_compatible import OpenAiCompatible
from tests.rig.provider import Rule, running_provider

PAYLOAD = b'{"max_tokens":8,"messages":[{"content":"hi","role":"user"}],"model":"m"}'


class Rig(Protocol):
    """Makes a provider that answers in one of the ways both can."""

    def answering(self, *deltas: str) -> AbstractAsyncContextManager[Provider]: ...

    def refusing(self) -> AbstractAsyncContextManager[Provider]: ...

    def breaking_after(self, *deltas: str) -> AbstractAsyncContextManager[Provider]: ...


class MemoryRig:
    @asynccontextmanager
    async def answering(self, *deltas: str) -> AsyncIterator[Provider]:
        yield MemoryProvider(answer(*deltas))

    @asynccontextmanager
    async def refusing(self) -> AsyncIterator[Provider]:
        yield MemoryProvider(Script(refused=Failure(FailureKind.THROTTLED, 429)))

    @asynccontextmanager
    async def breaking_after(self, *deltas: str) -> AsyncIterator[Provider]:
        packets = [[TextDelta(text)] for text in deltas]
        yield MemoryProvider(Script(packets=packets, cut=Failure(FailureKind.CUT)))


class HttpRig:
    @asynccontextmanager
    async def _with(self, rule: Rule) -> AsyncIterator[Provider]:
        async with (
            running_provider(rule) as server,
            OpenAiCompatible.open(
                base_url=server.base_url, api_key=None, now=lambda: datetime.now(UTC)
            ) as provider,
        ):
            yield provider

    def answering(self, *deltas: str) -> AbstractAsyncContextManager[Provider]:
        return self._with(Rule(deltas=deltas, usage=False))

    def refusing(self) -> AbstractAsyncContextManager[Provider]:
        return self._with(Rule(status=429))

    def breaking_after(self, *deltas: str) -> AbstractAsyncContextManager[Provider]:
        # The delay lets the last delta leave before the reset overtakes it.
        return self._with(Rule(deltas=(*deltas, "never"), delay_ms=20, cut_after=len(deltas)))


@pytest.fixture(params=[MemoryRig, HttpRig])
def rig(request: pytest.FixtureRequest) -> Rig:
    made: Rig = request.param()
    return made


async def read(provider: Provider) -> list[Part]:
    async with provider.stream(PAYLOAD) as packets:
        return [part async for parts in packets for part in parts]


async def test_an_answer_comes_in_order_with_its_end(rig: Rig) -> None:
    async with rig.answering("a", "€", "😀") as provider:
        parts = await read(provider)

    assert parts == [TextDelta("a"), TextDelta("€"), TextDelta("😀"), Finished("stop"), Done()]


async def test_one_provider_answers_again_and_again(rig: Rig) -> None:
    async with rig.answering("a") as provider:
        assert await read(provider) == await read(provider)


async def test_a_refusal_is_told_on_entering(rig: Rig) -> None:
    async with rig.refusing() as provider:
        with pytest.raises(ProviderFailed) as caught:
            await read(provider)

    assert (caught.value.failure.kind, caught.value.failure.status) == (FailureKind.THROTTLED, 429)


async def test_what_came_before_a_break_stays_valid(rig: Rig) -> None:
    parts: list[Part] = []
    async with rig.breaking_after("a", "b") as provider:
        with pytest.raises(ProviderFailed) as caught:
            async with provider.stream(PAYLOAD) as packets:
                async for packet in packets:
                    parts += packet

    assert parts == [TextDelta("a"), TextDelta("b")]
    assert caught.value.failure.kind == FailureKind.CUT


async def test_a_reader_may_leave_early(rig: Rig) -> None:
    async with rig.answering("a", "b") as provider:
        async with provider.stream(PAYLOAD) as packets:
            first = await anext(packets)
        assert first[0] == TextDelta("a")
        assert len(await read(provider)) == 4
