"""The scripted model: what it says follows from the seed and from what it was shown."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson

from schemas.usage import Usage
from services.llm_gateway.core.completions import Done, Finished, Part, TextDelta, UsageReported
from services.llm_gateway.core.failures import Failure, FailureKind
from services.llm_gateway.ports import ProviderFailed
from tests.sim.faults import Fault
from tests.sim.process import running
from tests.sim.world import World

FOREVER_S = 10_000.0
ENDING_S = 0.1
"""For so long after its last byte a call counts as under way: its end is being stored."""

WORDS = ("north", "öre", "salt", "夜", "line\nbreak", "🙂", "tide", "\u200d", "quay", "ember")


class SimProvider:
    """Implements ``Provider``; one for all processes, as there is one outside.

    Attributes:
        prompts: Everything it was ever shown.
        open: Requests that are being answered.
    """

    name = "simulated"
    server = None  # nothing is sent anywhere

    def __init__(self, world: World) -> None:
        self._world = world
        self.prompts: list[bytes] = []
        self.open = 0

    @asynccontextmanager
    async def stream(self, payload: bytes) -> AsyncIterator[AsyncIterator[Sequence[Part]]]:
        """See ``Provider.stream``."""
        process = running()
        fault = await process.step("provider")
        self.prompts.append(payload)
        await asyncio.sleep(self._world.random.uniform(0.01, 0.4))
        _refuse(fault)
        self.open += 1
        process.calls += 1
        try:
            yield self._answer(self._said(orjson.loads(payload)), fault)
        finally:
            self.open -= 1
            process.endings += 1
            self._world.later(ENDING_S, process.end_call)

    def _said(self, shown: dict[str, Any]) -> list[str]:
        asked = shown["messages"][-1]["content"]
        count = self._world.random.choice((0, 1, 2, 5, 9, 25))
        words = [self._world.random.choice(WORDS) for _ in range(count)]
        return [f"[{asked.split(' ', 1)[0]}] ", *words] if count else []

    async def _answer(
        self, said: Sequence[str], fault: Fault | None
    ) -> AsyncIterator[Sequence[Part]]:
        stop_at = int(fault.value * (len(said) + 1)) if fault is not None else len(said) + 1
        for place, word in enumerate(said):
            if place == stop_at:
                await _stop(fault)
            await asyncio.sleep(self._world.random.uniform(0.005, 0.35))
            yield [TextDelta(word)]
        if stop_at == len(said):
            await _stop(fault)
        yield [Finished("stop"), UsageReported(Usage(input=7, output=len(said))), Done()]


def _refuse(fault: Fault | None) -> None:
    match fault.kind if fault is not None else "":
        case "server_error":
            raise ProviderFailed(Failure(FailureKind.SERVER_ERROR, 503))
        case "throttled":
            raise ProviderFailed(Failure(FailureKind.THROTTLED, 429, retry_after_s=1.5))
        case "refused":
            raise ProviderFailed(Failure(FailureKind.REFUSED))


async def _stop(fault: Fault | None) -> None:
    assert fault is not None
    if fault.kind == "hang":
        await asyncio.sleep(FOREVER_S)
    raise ProviderFailed(Failure(FailureKind.CUT))
