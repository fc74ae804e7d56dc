"""The worker: holds running calls, claims what waits, and notices what it should not be running."""

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from libs.errors import StoreUnavailable
from libs.kafka.outcomes import attempt
from libs.telemetry.logging import get_logger
from services.llm_gateway.calls import Call, Caller
from services.llm_gateway.core.outcomes import StepFacts
from services.llm_gateway.finisher import Finisher
from services.llm_gateway.instruments import Instruments
from services.llm_gateway.store import Store
from services.llm_gateway.work import Claim, Ending

CHECKPOINT_TICK_S = 0.2
"""How often running calls are looked at; what is due goes into one statement."""

GATHER_S = 0.005
"""Between a wake-up and its claim: under load several calls end meanwhile and share it."""

DRAIN_POLL_S = 0.1
"""How often the drain looks whether the last call has ended."""

DRAIN_SETTLE_S = 5.0
"""Time for calls that were stopped at the end of the drain to store what was shown."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How much runs at once, and when it is looked at. Times are seconds.

    Attributes:
        poll_s: Pause between two looks for waiting work; what a batch brings is claimed at once.
        look_s: Pause between two comparisons of own rows with own calls; half of a cancel's second.
        checkpoint_s: Age at which new text is stored.
        checkpoint_bytes: Amount of new text that is stored without waiting for its age.
        drain_s: How long running calls may go on once the process was asked to end.
    """

    max_running: int = 64
    poll_s: float = 1.0
    look_s: float = 0.5
    checkpoint_s: float = 1.0
    checkpoint_bytes: int = 2048
    drain_s: float = 150.0


class Pool:
    """Calls of one process, each a task of its own."""

    def __init__(
        self,
        store: Store,
        caller: Caller,
        finisher: Finisher,
        *,
        holds_lease: Callable[[], bool],
        limits: PoolLimits,
        instruments: Instruments,
    ) -> None:
        self._store = store
        self._caller = caller
        self._finisher = finisher
        self._holds_lease = holds_lease
        self._limits = limits
        self._clock = instruments.clock
        self._metrics = instruments.metrics
        self._calls: dict[UUID, Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._reserved = 0
        self._is_draining = False
        self._abandoned: dict[UUID, int] = {}
        self._orphans: frozenset[tuple[UUID, int]] = frozenset()
        self._work_waits = asyncio.Event()
        self._leaves_work = False
        self._log = get_logger()

    @property
    def running(self) -> int:
        """Calls under way."""
        return len(self._calls)

    @property
    def abandoned(self) -> list[tuple[UUID, int]]:
        """Steps and attempts whose call here ended without an end in the store."""
        return list(self._abandoned.items())

    @property
    def stopping_alone(self) -> list[tuple[StepFacts, int]]:
        """Running calls that end some seconds after their last watcher left, and how many."""
        return [
            (call.facts, call.claim.cancel_after_s)
            for call in self._calls.values()
            if call.claim.cancel_after_s is not None and not call.is_stopping
        ]

    def reserve(self, wanted: int) -> int:
        """Room for up to ``wanted`` claims, kept until ``start`` or ``release``; 0 while draining.

        A worker without its lease claims nothing: others would take it over at once.
        """
        if self._is_draining or not self._holds_lease():
            return 0
        room = max(0, self._limits.max_running - len(self._calls) - self._reserved)
        granted = min(wanted, room)
        self._reserved += granted
        return granted

    def release(self, reserved: int) -> None:
        """Give reserved room back."""
        self._reserved -= reserved

    def work_waits(self) -> None:
        """Waiting work is known: look as soon as there is room."""
        self._leaves_work = True
        self._work_waits.set()

    def start(self, claims: Sequence[Claim]) -> None:
        """Run claims. One without a payload belongs to an ended turn and is closed."""
        ended = [claim.facts for claim in claims if claim.payload is None]
        if ended:
            self._spawn(self._close_ended(ended))
        for claim in claims:
            if claim.payload is not None and claim.facts.step_id not in self._calls:
                call = self._caller.prepare(claim)
                self._calls[claim.facts.step_id] = call
                self._spawn(self._run(call))

    def stop(self, reasons: Mapping[UUID, str]) -> None:
        """End running calls of these steps, each with its reason; others are not ours."""
        for step_id, reason in reasons.items():
            if (call := self._calls.get(step_id)) is not None:
                call.stop(reason)

    def lose(self, step_ids: Collection[UUID]) -> None:
        """Drop running calls whose rows are gone; nothing of them is written."""
        for step_id in step_ids:
            if (call := self._calls.get(step_id)) is not None:
                call.lose()

    def lose_all(self) -> None:
        """Drop everything: the lease ran out, so others take it over."""
        if self._calls:
            self._metrics.fence_refusals_total.labels("lease").inc(len(self._calls))
            self._log.error("llm.lease_lost", calls=len(self._calls))
        self.lose(list(self._calls))

    def forget_abandoned(self, steps: Collection[tuple[UUID, int]]) -> None:
        """These were recovered, or are not ours any more."""
        for step_id, attempt_no in steps:
            if self._abandoned.get(step_id) == attempt_no:
                del self._abandoned[step_id]

    async def finish(self, ending: Ending) -> bool:
        """Store and tell an end that no call of this process came to; see ``Finisher.finish``."""
        return await self._finisher.finish(ending)

    async def run_claims(self) -> None:
        """Claim waiting work until cancelled: at once when woken, else at intervals."""
        while True:
            wait_s = self._limits.poll_s * random.uniform(0.75, 1.25)
            try:
                async with asyncio.timeout(wait_s):
                    await self._work_waits.wait()
                await self._clock.sleep(GATHER_S)
            except TimeoutError:
                pass  # the look at intervals
            self._work_waits.clear()
            await self.claim_once()

    async def claim_once(self) -> int:
        """Claim what there is room for; how many were started."""
        room = self.reserve(self._limits.max_running)
        if not room:
            return 0
        claims: tuple[Claim, ...] = ()

        async def claim() -> None:
            nonlocal claims
            claims = await self._store.claim(room)

        try:
            error = await attempt(claim())
        finally:
            self.release(room)
        if error is not None:
            # Postgres is away, or another worker won the same lane: the next look tries again.
            self._log.warning("llm.claim_postponed", error=type(error).__name__)
            return 0
        self._leaves_work = len(claims) == room
        self.start(claims)
        return len(claims)

    async def run_looks(self) -> None:
        """Compare rows with calls until cancelled."""
        while True:
            await self._clock.sleep(self._limits.look_s)
            try:
                await self.look()
            except StoreUnavailable as error:
                self._log.warning("llm.look_postponed", reason=str(error))

    async def look(self) -> None:
        """Stop what is cancelled or gone, adopt what was claimed without our hearing of it.

        A row without a call is adopted when two looks in a row saw it: its claim was committed, but
        the answer was lost, so no request was made. A row whose call ended here is not adopted.
        """
        before = {step_id: call.facts.attempt for step_id, call in self._calls.items()}
        rows = await self._store.own_running()
        held = {row.step_id: row for row in rows}
        self.stop({row.step_id: row.cancel_reason for row in rows if row.cancel_reason})
        gone = [
            step_id
            for step_id, attempt_no in before.items()
            if step_id not in held or held[step_id].attempt != attempt_no
        ]
        self.lose(gone)
        known = self._abandoned
        orphans = frozenset(
            (row.step_id, row.attempt)
            for row in rows
            if row.step_id not in self._calls and known.get(row.step_id) != row.attempt
        )
        adopted = orphans & self._orphans
        self._orphans = orphans - adopted
        current = {(row.step_id, row.attempt) for row in rows}
        self.forget_abandoned([one for one in self.abandoned if one not in current])
        if adopted and self._holds_lease() and not self._is_draining:
            claims = await self._store.adopt([step_id for step_id, _ in adopted])
            self._log.warning("llm.orphans_adopted", steps=len(claims))
            self.start(claims)

    async def run_checkpoints(self) -> None:
        """Store the text of running calls until cancelled."""
        while True:
            await self._clock.sleep(CHECKPOINT_TICK_S)
            try:
                await self.checkpoint()
            except StoreUnavailable as error:
                self._log.warning("llm.checkpoint_postponed", reason=str(error))

    async def checkpoint(self) -> int:
        """Store what is due, in one statement; how many texts."""
        now = asyncio.get_running_loop().time()
        due = [call for call in self._calls.values() if self._is_due(call, now)]
        if due:
            lengths = [call.text.length for call in due]
            await self._store.checkpoint(
                [(call.facts, str(call.text.upto), call.text.text) for call in due]
            )
            for call, length in zip(due, lengths, strict=True):
                call.saved_at, call.saved_length = now, length
        return len(due)

    def _is_due(self, call: Call, now: float) -> bool:
        fresh_bytes = call.text.length - call.saved_length
        if call.is_lost or fresh_bytes == 0:
            return False
        is_old = now - call.saved_at >= self._limits.checkpoint_s
        return is_old or fresh_bytes >= self._limits.checkpoint_bytes

    async def drain(self) -> None:
        """Claim nothing more and let calls end; what takes too long is handed back.

        A call that has shown nothing is given back for a new attempt at once; one that has is ended
        with what was shown.
        """
        self._is_draining = True
        await self._wait_until_idle(self._limits.drain_s)
        silent = [call for call in self._calls.values() if call.first_delta is None]
        for call in silent:
            call.lose()
        for call in self._calls.values():
            if not call.is_lost:
                call.stop("lease_expired")
        await self._wait_until_idle(DRAIN_SETTLE_S)
        if silent:
            error = await attempt(self._give_back(silent))
            if error is not None:
                self._log.warning("llm.hand_back_failed", error=type(error).__name__)

    async def _give_back(self, calls: Sequence[Call]) -> None:
        given = await self._store.requeue([call.facts for call in calls], reason="handed_back")
        self._log.info("llm.handed_back", steps=len(given))

    async def _wait_until_idle(self, timeout_s: float) -> None:
        until = self._clock.monotonic() + timeout_s
        while self._tasks and self._clock.monotonic() < until:
            await self._clock.sleep(DRAIN_POLL_S)

    async def close(self) -> None:
        """Cancel what is left; for the end of the process."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Call) -> None:
        stored = False
        try:
            error = await attempt(self._end(call))
            stored = error is None and not call.is_lost
            if error is not None:
                self._log.error(
                    "llm.call_broke", step_id=str(call.facts.step_id), error=type(error).__name__
                )
        finally:
            self._caller.close(call)
            self._calls.pop(call.facts.step_id, None)
            if not stored:
                self._abandoned[call.facts.step_id] = call.facts.attempt
            if self._leaves_work:
                self._work_waits.set()

    async def _end(self, call: Call) -> None:
        ending = await self._caller.run(call)
        if ending is not None:
            await self._finisher.finish(ending)

    async def _close_ended(self, facts: Sequence[StepFacts]) -> None:
        error = await attempt(self._store.close_ended(facts))
        if error is not None:
            self._log.warning("llm.close_postponed", error=type(error).__name__)
