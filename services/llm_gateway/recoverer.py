"""Brings work of dead workers to an end: again if nothing was shown, kept if something was."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from libs.catalogue import Catalogue
from libs.errors import LiveStreamUnavailable, StoreUnavailable
from libs.redis.ports import LiveStream
from libs.telemetry.logging import get_logger
from schemas.streams import Entry, EntryId, fence
from schemas.usage import Usage
from services.llm_gateway.calls import price_of
from services.llm_gateway.core.attempt import AttemptText
from services.llm_gateway.core.outcomes import (
    Failed,
    Interrupted,
    Measured,
    Outcome,
    StepFacts,
    stopped,
)
from services.llm_gateway.core.recovery import (
    Checkpoint,
    GiveUpStep,
    KeepShown,
    Recovery,
    StartAgain,
    judge,
)
from services.llm_gateway.core.usage import estimated, priced
from services.llm_gateway.instruments import Instruments
from services.llm_gateway.pool import Pool
from services.llm_gateway.store import Store
from services.llm_gateway.work import Abandoned, Ending, RecoveryFacts

READ_ENTRIES = 1_000
"""Entries of a stream read at once."""

MAX_READS = 25
"""Reads of one stream: more than it may hold."""

LEASE_EXPIRED = "lease_expired"


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Seconds.

    Attributes:
        sweep_s: Pause between two sweeps.
        without_stream_s: How long Redis is waited for; after it the checkpoint alone decides.
        silent_s: Silence of an open turn after which its last event is told again.
        lease_s: Of a worker; what is silent for less cannot have lost its lease.
    """

    sweep_s: float = 2.0
    without_stream_s: float = 10.0
    silent_s: float = 10.0
    lease_s: float = 15.0


class Recoverer:
    """Sweeps of one process; several may sweep at once, the fences keep them apart."""

    def __init__(
        self,
        store: Store,
        live: LiveStream,
        pool: Pool,
        *,
        catalogue: Catalogue,
        limits: RecoveryLimits,
        instruments: Instruments,
    ) -> None:
        self._store = store
        self._live = live
        self._pool = pool
        self._catalogue = catalogue
        self._limits = limits
        self._clock = instruments.clock
        self._metrics = instruments.metrics
        self._log = get_logger()

    async def run(self) -> None:
        """Sweep until cancelled; an outage of Postgres is waited out."""
        while True:
            await self._clock.sleep(self._limits.sweep_s)
            try:
                await self.sweep()
            except StoreUnavailable as error:
                self._log.warning("llm.sweep_postponed", reason=str(error))

    async def sweep(self) -> None:
        """One look at everything that might be stuck."""
        found = await self._store.abandoned()
        own = self._pool.abandoned
        if own:
            still_ours = await self._store.abandoned_own(own)
            known = {one.facts.step_id for one in found}
            found += [one for one in still_ours if one.facts.step_id not in known]
            self._pool.forget_abandoned(
                set(own) - {(one.facts.step_id, one.facts.attempt) for one in still_ours}
            )
        for one in found:
            await self.recover(one)
        await self._end_late()
        told = await self._store.tell_again(silent_s=self._limits.silent_s)
        if told:
            self._metrics.turn_recoveries_total.labels("kafka_lost").inc(told)
            self._log.warning("llm.told_again", events=told)

    async def recover(self, abandoned: Abandoned) -> None:
        """Bring one abandoned attempt to its end, or back to waiting. Safe to repeat."""
        facts = abandoned.facts
        entries = await self._fenced_entries(abandoned)
        if entries is None:
            return  # Redis is away: the next sweep looks again
        stored = await self._store.recovery_facts(facts)
        verdict = judge(
            facts.attempt,
            entries=entries,
            checkpoint=_checkpoint(stored),
            attempts_made=facts.attempt - abandoned.base_attempt,
            late_reason=abandoned.deadline_reason if abandoned.left_s <= 0 else None,
        )
        if isinstance(verdict, StartAgain) and abandoned.cancel_reason is None:
            again = facts.step_id in await self._store.requeue([facts], reason=LEASE_EXPIRED)
            if again:
                self._pool.work_waits()
        else:
            again = False
            await self._pool.finish(self._ending(abandoned, verdict, stored))
        self._pool.forget_abandoned([(facts.step_id, facts.attempt)])
        self._metrics.turn_recoveries_total.labels(
            "deadline" if abandoned.left_s <= 0 else "lease_expired"
        ).inc()
        self._log.warning(
            "llm.recovered",
            turn_id=str(facts.turn_id),
            step_id=str(facts.step_id),
            attempt=facts.attempt,
            verdict=type(verdict).__name__,
            again=again,
        )

    async def _fenced_entries(self, abandoned: Abandoned) -> Sequence[Entry] | None:
        """Shut the dead worker out of the stream, then read what it holds.

        Returns:
            None while Redis may still come back; empty where the stream is gone for good.
        """
        facts = abandoned.facts
        try:
            appended = await self._live.append(facts.turn_id, [fence(facts.attempt + 1)])
            if appended.created:
                return ()
            return await self._read(facts.turn_id)
        except LiveStreamUnavailable:
            waited_s = abandoned.silent_s - self._limits.lease_s
            return () if waited_s >= self._limits.without_stream_s else None

    async def _read(self, turn_id: UUID) -> list[Entry]:
        entries: list[Entry] = []
        after = EntryId(0, 0)
        for _ in range(MAX_READS):
            page = await self._live.read(turn_id, after, READ_ENTRIES)
            entries += page
            if len(page) < READ_ENTRIES:
                break
            after = page[-1].id
        return entries

    def _ending(self, abandoned: Abandoned, verdict: Recovery, stored: RecoveryFacts) -> Ending:
        facts = abandoned.facts
        text = AttemptText(facts.attempt)
        if isinstance(verdict, KeepShown):
            text = AttemptText(facts.attempt, text=verdict.text, upto=verdict.upto)
        return Ending(
            facts=facts,
            outcome=_outcome(abandoned, verdict),
            text=text,
            usage=self._usage(facts, stored, text.length),
            measured=Measured(),
        )

    def _usage(self, facts: StepFacts, stored: RecoveryFacts, length: int) -> Usage | None:
        """An estimate: whoever knew what the provider counted is dead."""
        if stored.payload_bytes == 0:
            return None
        usage = estimated(request_bytes=stored.payload_bytes, answer_bytes=length)
        return priced(usage, price_of(self._catalogue, facts.model))

    async def _end_late(self) -> None:
        """End waiting work whose time is up, or that nobody wants any more."""
        late = await self._store.late_ready()
        if late:
            await self._store.finish_ready([ready_ending(facts, reason) for facts, reason in late])
            self._metrics.turn_recoveries_total.labels("deadline").inc(len(late))


def ready_ending(facts: StepFacts, reason: str) -> Ending:
    """The end of work that never started."""
    return Ending(
        facts=facts,
        outcome=Failed(reason),
        text=AttemptText(facts.attempt),
        usage=None,
        measured=Measured(),
    )


def _outcome(abandoned: Abandoned, verdict: Recovery) -> Outcome:
    match verdict:
        case KeepShown(text):
            if abandoned.cancel_reason is not None:
                return stopped(abandoned.cancel_reason, is_shown=bool(text))
            late = abandoned.left_s <= 0
            return Interrupted(abandoned.deadline_reason if late else LEASE_EXPIRED)
        case GiveUpStep(reason):
            return Failed(abandoned.cancel_reason or reason)
        case StartAgain():
            return Failed(abandoned.cancel_reason or LEASE_EXPIRED)


def _checkpoint(stored: RecoveryFacts) -> Checkpoint | None:
    if stored.upto is None or stored.text is None:
        return None
    return Checkpoint(EntryId.parse(stored.upto), stored.text)
