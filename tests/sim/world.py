"""What all parts of one run share: randomness, the faults that are left, and the trace."""

import asyncio
import contextvars
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.sim.faults import Fault
from tests.sim.process import Process

MAX_STEPS = 60_000
"""Steps of one run; one that needs more goes round in circles."""


class RunAway(Exception):
    """A run did not come to rest within ``MAX_STEPS``."""


class World:
    """Counts steps, strikes with faults, and writes down everything that happens.

    Attributes:
        hits: How often each fault struck each port.
        uses: How often each port was used.
        is_healed: No further fault strikes.
        strikes: When each fault struck, in virtual seconds.
    """

    def __init__(self, seed: int, faults: Sequence[Fault]) -> None:
        self.random = random.Random(f"world {seed}")
        self.hits: Counter[str] = Counter()
        self.uses: Counter[str] = Counter()
        self.is_healed = False
        self.steps = 0
        self.before_step: Callable[[Process], None] = lambda _process: None
        self.strike: Callable[[Fault, Process], None] = lambda _fault, _process: None
        self.lines: list[str] | None = None
        self.processes: list[Process] = []
        self.strikes: list[tuple[float, Fault]] = []
        self._left = {(fault.port, fault.nth): fault for fault in faults}
        self._trace = hashlib.sha256()

    @property
    def trace_hash(self) -> str:
        """Of everything that has happened, in its order."""
        return self._trace.hexdigest()[:32]

    def random_bytes(self, count: int) -> bytes:
        """Bytes of the seed."""
        return self.random.randbytes(count)

    def later(self, delay_s: float, act: Callable[..., object], *arguments: Any) -> None:
        """Do something that no process does: it happens even while all of them stand still."""
        nobody = contextvars.Context()
        asyncio.get_running_loop().call_later(delay_s, act, *arguments, context=nobody)

    def note(self, who: str, what: str) -> None:
        """Write one line of the trace."""
        line = f"{asyncio.get_running_loop().time():.6f} {who} {what}"
        self._trace.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def fault_of(self, port: str, process: Process, detail: str) -> Fault | None:
        """The fault that hits this use of a port; see ``Scheduler.fault_of``."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise RunAway
        self.note(process.name, f"{port} {detail}")
        self.before_step(process)
        if process.kind == "client":
            return None
        whole = self._take("process")
        if whole is None and process.calls:
            whole = self._take("call")
            if whole is None and port == "postgres":
                whole = self._take("ending" if process.endings else "lease")
        if whole is not None:
            self.note(process.name, f"STRUCK {whole}")
            self.strike(whole, process)
        fault = self._take(port)
        if fault is not None:
            self.note(process.name, f"STRUCK {fault}")
        return fault

    def use(self, port: str, kind: str) -> None:
        """Count something that clients do on purpose."""
        self.uses[port] += 1
        self.hits[f"{port}/{kind}"] += 1

    def bell_fault(self, process: Process) -> Fault | None:
        """The fault that hits a bell on its way to a process."""
        fault = self._take("redis.bell")
        if fault is not None:
            self.note(process.name, f"STRUCK {fault}")
        return fault

    def _take(self, port: str) -> Fault | None:
        self.uses[port] += 1
        if self.is_healed:
            return None
        fault = self._left.pop((port, self.uses[port]), None)
        if fault is not None:
            self.hits[f"{port}/{fault.kind}"] += 1
            self.strikes.append((asyncio.get_running_loop().time(), fault))
        return fault
