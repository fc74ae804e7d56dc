"""What all parts of one run share: randomness, the faults that are left, and the trace."""

import asyncio
import contextvars
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
        cancels: Turns that clients have just cancelled.
        strikes: When each fault struck, in virtual seconds.
        struck: How often faults struck a port while an operation was under way.
    """

    def __init__(self, seed: int, faults: Sequence[Fault]) -> None:
        self.seed = seed
        self.random = random.Random(f"world {seed}")
        self.hits: Counter[str] = Counter()
        self.uses: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()
        self.is_healed = False
        self.cancels = 0
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
        if process.kind == "operator":  # a command that nobody starts again: it has no life to end
            return self._told("operating", process)
        whole = self._take("process")
        if whole is None and process.calls:
            whole = self._take("call")
            if whole is None and self.cancels:
                whole = self._take("cancelling")
            if whole is None and port == "postgres":
                whole = self._take("ending" if process.endings else "lease")
        if whole is not None:
            self.note(process.name, f"STRUCK {whole}")
            self.strike(whole, process)
        return self._told(port, process)

    def _told(self, port: str, process: Process) -> Fault | None:
        fault = self._take(port)
        if fault is not None:
            self.note(process.name, f"STRUCK {fault}")
        return fault

    @contextmanager
    def during(self, operation: str) -> Iterator[None]:
        """Count the faults that strike while clients or operators wait for an operation."""
        self._under_way[operation] += 1
        try:
            yield
        finally:
            self._under_way[operation] -= 1

    def cancel_for(self, seconds: float) -> None:
        """A client cancels a turn: for a while faults strike where that matters."""
        self.cancels += 1
        self.later(seconds, self._forget_cancel)

    def _forget_cancel(self) -> None:
        self.cancels -= 1

    def use(self, port: str, kind: str) -> None:
        """Count something that clients do on purpose."""
        self.uses[port] += 1
        self.hits[f"{port}/{kind}"] += 1

    def bell_fault(self, process: Process) -> Fault | None:
        """The fault that hits a bell on its way to a process."""
        return self._told("redis.bell", process)

    def _take(self, port: str) -> Fault | None:
        self.uses[port] += 1
        if self.is_healed:
            return None
        fault = self._left.pop((port, self.uses[port]), None)
        if fault is not None:
            self.hits[f"{port}/{fault.kind}"] += 1
            self.struck.update(f"{name}/{port}" for name, n in self._under_way.items() if n)
            self.strikes.append((asyncio.get_running_loop().time(), fault))
        return fault
