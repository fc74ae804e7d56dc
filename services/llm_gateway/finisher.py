"""Stores the ends of attempts: those that come together share a transaction."""

import asyncio
from collections.abc import Sequence

from libs.errors import StoreUnavailable
from libs.kafka.outcomes import attempt
from libs.retry import Backoff
from libs.telemetry.logging import get_logger
from services.llm_gateway.core.outcomes import outcome_name, reason_of
from services.llm_gateway.instruments import Instruments
from services.llm_gateway.store import Store
from services.llm_gateway.work import Ending

MAX_BATCH = 64
"""Ends in one transaction: as many as a process runs calls by default."""

MAX_QUEUED = 10_000
"""Ends that wait; each belongs to a running call, so the bound is far above any real load."""

RETRY = Backoff(base_s=0.05, cap_s=1.0)


class Finisher:
    """One writer of ends; while a transaction is under way the next ends gather behind it."""

    def __init__(self, store: Store, *, instruments: Instruments) -> None:
        self._store = store
        self._clock = instruments.clock
        self._metrics = instruments.metrics
        self._queue: asyncio.Queue[tuple[Ending, asyncio.Future[bool]]] = asyncio.Queue(MAX_QUEUED)
        self._log = get_logger()

    async def finish(self, ending: Ending) -> bool:
        """Store and tell one end.

        Returns:
            False where it was fenced out: another attempt, or the turn's end, came first.

        Raises:
            Exception: What the store raised, if it was this end's fault.
        """
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self._queue.put((ending, answer))
        return await answer

    async def run(self) -> None:
        """Write until cancelled; an outage of Postgres is waited out."""
        while True:
            batch = [await self._queue.get()]
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._write(batch)

    async def _write(self, batch: Sequence[tuple[Ending, asyncio.Future[bool]]]) -> None:
        failures = 0
        while True:
            ours = self._without_lost(batch)
            if not ours:
                return
            error = await attempt(self._write_once(ours))
            if error is None:
                return
            if not isinstance(error, StoreUnavailable):
                break
            # The commit's outcome is unknown. If it was one, the repeat finds no running row.
            failures += 1
            self._log.warning("llm.finish_repeated", endings=len(ours), reason=str(error))
            await self._clock.sleep(RETRY.delay_s(failures, jitter=0.5))
        if len(ours) == 1:
            self._log.error(
                "llm.finish_failed",
                step_id=str(ours[0][0].facts.step_id),
                error=type(error).__qualname__,
            )
            ours[0][1].set_exception(error)
            return
        for one in ours:  # one of them is to blame; the others must not suffer for it
            await self._write([one])

    def _without_lost(
        self, batch: Sequence[tuple[Ending, asyncio.Future[bool]]]
    ) -> list[tuple[Ending, asyncio.Future[bool]]]:
        ours = []
        for ending, answer in batch:
            if answer.done():  # its call was cancelled
                continue
            if ending.is_lost():
                self._metrics.fence_refusals_total.labels("lease").inc()
                answer.set_result(False)
                continue
            ours.append((ending, answer))
        return ours

    async def _write_once(self, batch: Sequence[tuple[Ending, asyncio.Future[bool]]]) -> None:
        passed = await self._store.finish([ending for ending, _ in batch])
        for ending, answer in batch:
            is_ours = ending.facts.step_id in passed
            if is_ours:
                self._told(ending)
            else:
                self._metrics.fence_refusals_total.labels("result").inc()
                self._log.warning("llm.finish_fenced", **_ids(ending))
            if not answer.done():
                answer.set_result(is_ours)

    def _told(self, ending: Ending) -> None:
        usage = ending.usage
        if usage is not None:
            self._metrics.llm_tokens_total.labels("input").inc(usage.input)
            self._metrics.llm_tokens_total.labels("output").inc(usage.output)
            self._metrics.llm_tokens_total.labels("cached").inc(usage.cached)
            if usage.cost_usd is not None:
                self._metrics.llm_cost_usd_total.inc(usage.cost_usd)
        self._log.info(
            "llm.attempt_ended",
            **_ids(ending),
            outcome=outcome_name(ending.outcome),
            reason=reason_of(ending.outcome),
            length=ending.text.length,
            upto=str(ending.text.upto),
            requests=ending.measured.requests,
            failure=ending.measured.failure,
            first_token_ms=ending.measured.first_token_ms,
            duration_ms=ending.measured.duration_ms,
        )


def _ids(ending: Ending) -> dict[str, str | int]:
    facts = ending.facts
    return {
        "turn_id": str(facts.turn_id),
        "step_id": str(facts.step_id),
        "attempt": facts.attempt,
        "model": facts.model,
    }
