"""The twin of a provider in memory: scripted answers, no network."""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from services.llm_gateway.core.completions import Done, Finished, Part, TextDelta
from services.llm_gateway.core.failures import Failure
from services.llm_gateway.ports import ProviderFailed


@dataclass(frozen=True, slots=True)
class Script:
    """One answer: parts packet by packet, and the failure that ends it, if any.

    ``refused`` fails on entering; ``cut`` fails after the last packet.
    """

    packets: Sequence[Sequence[Part]] = ()
    refused: Failure | None = None
    cut: Failure | None = None


def answer(*deltas: str, finish_reason: str = "stop") -> Script:
    """An answer that ends well, a packet per delta."""
    end: tuple[Part, ...] = (Finished(finish_reason), Done())
    return Script(packets=(*((TextDelta(delta),) for delta in deltas), end))


class MemoryProvider:
    """Implements ``Provider``; answers in the order scripted, the last one again and again."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = deque(scripts or (answer("ok"),))
        self.payloads: list[bytes] = []
        self.open = 0

    @property
    def server(self) -> tuple[str, int] | None:
        """None: nothing is sent anywhere."""
        return None

    @property
    def name(self) -> str:
        """Label of spans and metrics."""
        return "memory"

    def stream(self, payload: bytes) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Part]]]:
        """Play the next script; see ``Provider.stream``."""
        self.payloads.append(payload)
        script = self._scripts.popleft() if len(self._scripts) > 1 else self._scripts[0]
        return self._play(script)

    @asynccontextmanager
    async def _play(self, script: Script) -> AsyncIterator[AsyncIterator[Sequence[Part]]]:
        if script.refused is not None:
            raise ProviderFailed(script.refused)
        self.open += 1
        try:
            yield _packets(script)
        finally:
            self.open -= 1


async def _packets(script: Script) -> AsyncIterator[Sequence[Part]]:
    for packet in script.packets:
        yield packet
    if script.cut is not None:
        raise ProviderFailed(script.cut)
