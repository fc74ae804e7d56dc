"""Runs one attempt: asks the provider, hands its text to the stream, and says how it ended."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from libs.catalogue import Catalogue
from libs.failpoints import failpoint
from libs.telemetry.labels import LlmOutcome
from libs.telemetry.logging import get_logger
from libs.telemetry.names import model_call_span
from schemas.streams import generating
from schemas.usage import Usage
from services.llm_gateway.core.attempt import AttemptText
from services.llm_gateway.core.coalesce import Coalescer
from services.llm_gateway.core.completions import (
    NAMELESS,
    Done,
    Finished,
    Named,
    Part,
    TextDelta,
    UsageReported,
)
from services.llm_gateway.core.completions import Failed as PartFailed
from services.llm_gateway.core.failures import (
    Failure,
    FailureKind,
    GiveUp,
    after_failure,
)
from services.llm_gateway.core.outcomes import (
    Completed,
    Failed,
    Measured,
    Outcome,
    stopped,
)
from services.llm_gateway.core.usage import Price, estimated, priced
from services.llm_gateway.instruments import Instruments
from services.llm_gateway.live import Channel, LiveWriter
from services.llm_gateway.ports import Provider, ProviderFailed
from services.llm_gateway.spans import (
    call_attributes,
    tell_answer,
    tell_ending,
    tell_request,
)
from services.llm_gateway.work import STEP_DEADLINE, Claim, Ending

SETTLE_TIMEOUT_S = 1.0
"""Wait for the last entries before the end is stored; without Redis the stored text covers them."""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Seconds.

    Attributes:
        step_s: Longest life of one attempt.
        idle_s: Longest silence of the provider, before the first event and between two. Comments
            that keep the connection open do not break it.
    """

    step_s: float = 180.0
    idle_s: float = 60.0


_End: TypeAlias = Completed | Failure | None
"""How one request ended; None: it was stopped from outside or by the deadline."""


class Call:
    """One attempt while it runs."""

    def __init__(
        self, claim: Claim, *, deadline: float, deadline_reason: str, started: float
    ) -> None:
        """``deadline`` and ``started`` are times of the event loop."""
        self.claim = claim
        self.facts = claim.facts
        self.text = AttemptText(claim.facts.attempt)
        self.coalescer = Coalescer()
        self.channel: Channel | None = None
        self.deadline = deadline
        self.deadline_reason = deadline_reason
        self.started = started
        self.first_delta: float | None = None
        self.usage: Usage | None = None
        self.reasoning: int | None = None
        self.named: Named = NAMELESS
        self.requests = 0
        self.failure: Failure | None = None
        self.stop_reason: str | None = None
        self.is_lost = False
        self.saved_at = started
        self.saved_length = 0
        self._timer: asyncio.Timeout | None = None
        self.flush_timer: asyncio.TimerHandle | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether somebody asked it to end."""
        return self.is_lost or self.stop_reason is not None

    def stop(self, reason: str) -> None:
        """End soon, keep what was shown, and tell ``reason``; the first reason stays."""
        if self.stop_reason is None:
            self.stop_reason = reason
        self._ring()

    def lose(self) -> None:
        """End soon and write nothing: the attempt is not ours any more."""
        self.is_lost = True
        self._ring()

    def watch(self, timer: asyncio.Timeout | None) -> None:
        """The time limit that ends the present wait; None between waits."""
        self._timer = timer
        if timer is not None and self.is_stopping:
            self._ring()

    def _ring(self) -> None:
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time())


class Caller:
    """Runs calls against one provider."""

    def __init__(
        self,
        provider: Provider,
        live: LiveWriter,
        *,
        catalogue: Catalogue,
        limits: CallLimits,
        instruments: Instruments,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._provider = provider
        self._live = live
        self._catalogue = catalogue
        self._limits = limits
        self._metrics = instruments.metrics
        self._tracing = instruments.tracing
        self._jitter = jitter
        self._log = get_logger()

    def prepare(self, claim: Claim) -> Call:
        """The call of a claim, its deadline running from now: the planned one or its own."""
        now = asyncio.get_running_loop().time()
        step_s = self._limits.step_s
        return Call(
            claim,
            started=now,
            deadline=now + min(claim.left_s, step_s),
            deadline_reason=STEP_DEADLINE if step_s < claim.left_s else claim.deadline_reason,
        )

    async def run(self, call: Call) -> Ending | None:
        """Ask until there is an end.

        Returns:
            The end to be stored; None where the attempt was lost: then nothing may be written.
        """
        facts = call.facts
        conventions = self._tracing.conventions
        with self._tracing.span(
            model_call_span(facts.model),
            kind="client",
            parent_traceparent=facts.traceparent,
            turn_id=facts.turn_id,
            attributes=call_attributes(conventions, call.claim, self._provider)
            if self._tracing.is_kept
            else None,
        ) as span:
            tell_request(span, conventions, call.claim.payload or b"")
            call.channel = self._live.open(facts.turn_id, call.lose)
            self._live.put(call.channel, generating(facts.attempt))
            outcome = await self._outcome(call)
            self._flush(call)
            if self._live.connected:
                await call.channel.settled(SETTLE_TIMEOUT_S)
            if call.channel.is_fenced:
                self._metrics.fence_refusals_total.labels("stream").inc()
            if call.is_lost:
                return None
            failpoint("llm.after_last_delta")
            ending = self._ending(call, outcome)
            tell_ending(span, conventions, ending)
            tell_answer(span, conventions, call.named, call.reasoning)
        return ending

    def close(self, call: Call) -> None:
        """Let go of what a call holds, after its end was stored or given up."""
        self._cancel_flush(call)
        if call.channel is not None:
            self._live.close(call.channel)

    async def _outcome(self, call: Call) -> Outcome:
        payload = call.claim.payload or b""
        if hashlib.sha256(payload).hexdigest() != call.claim.fingerprint:
            self._log.error("llm.fingerprint_mismatch", step_id=str(call.facts.step_id))
            return Failed("internal")
        loop = asyncio.get_running_loop()
        while not call.is_stopping:
            call.requests += 1
            end = await self._request(call, payload)
            if isinstance(end, Completed):
                return end
            if end is None:
                break
            call.failure = end
            verdict = after_failure(
                end,
                requests=call.requests,
                shown=call.first_delta is not None,
                left_s=call.deadline - loop.time(),
                jitter=self._jitter(),
            )
            if isinstance(verdict, GiveUp):
                return stopped(verdict.reason, is_shown=call.first_delta is not None)
            self._log.warning(
                "llm.request_repeated",
                step_id=str(call.facts.step_id),
                requests=call.requests,
                failure=end.kind,
                status=end.status,
                delay_s=round(verdict.delay_s, 3),
            )
            if not await self._pause(call, verdict.delay_s):
                break
        reason = call.stop_reason or call.deadline_reason
        return stopped(reason, is_shown=call.first_delta is not None)

    async def _pause(self, call: Call, delay_s: float) -> bool:
        """Wait before the next request; False if the call was stopped meanwhile."""
        try:
            async with asyncio.timeout_at(call.deadline) as timer:
                call.watch(timer)
                await asyncio.sleep(delay_s)
        except TimeoutError:
            return False
        finally:
            call.watch(None)
        return True

    async def _request(self, call: Call, payload: bytes) -> _End:
        loop = asyncio.get_running_loop()
        end: _End = Failure(FailureKind.CUT)
        try:
            async with asyncio.timeout_at(self._limit(call, loop.time())) as timer:
                call.watch(timer)
                async with self._provider.stream(payload) as packets:
                    failpoint("llm.after_request_sent")
                    async for parts in packets:
                        if call.is_stopping:
                            end = None
                            break
                        end, is_over = self._take(call, parts, end)
                        if is_over:
                            break
                        timer.reschedule(self._limit(call, loop.time()))
        except ProviderFailed as error:
            # After a finish reason the answer is whole, however the connection ended.
            end = end if isinstance(end, Completed) else error.failure
        except TimeoutError:
            # What was waited for, not what time it is: a loop's timer may fire a little early.
            due = timer.when()
            if call.is_stopping or due is None or due >= call.deadline:
                end = end if isinstance(end, Completed) and not call.is_stopping else None
            elif not isinstance(end, Completed):
                end = Failure(FailureKind.IDLE)
        finally:
            call.watch(None)
        self._count(call, end)
        return end

    def _limit(self, call: Call, now: float) -> float:
        return min(call.deadline, now + self._limits.idle_s)

    def _take(self, call: Call, parts: Sequence[Part], end: _End) -> tuple[_End, bool]:
        """Take what one packet brought; the end so far, and whether to stop reading."""
        text: list[str] = []
        is_over = False
        for part in parts:
            match part:
                case TextDelta(piece):
                    text.append(piece)
                case Finished(reason, named):
                    end, call.named = Completed(reason), named
                case UsageReported(usage, reasoning):
                    call.usage, call.reasoning = usage, reasoning
                case PartFailed(failure):
                    # After a finish reason the answer is whole, whatever follows it.
                    end, is_over = end if isinstance(end, Completed) else failure, True
                case Done():
                    is_over = True
            if is_over:
                break
        if text:
            self._show(call, "".join(text))
        return end, is_over

    def _show(self, call: Call, text: str) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if call.first_delta is None:
            call.first_delta = call.saved_at = now
        piece = call.coalescer.add(text, now)
        if piece is not None:
            self._cancel_flush(call)
            self._send(call, piece)
        elif call.flush_timer is None and call.coalescer.due_at is not None:
            call.flush_timer = loop.call_at(call.coalescer.due_at, self._flush, call)

    def _cancel_flush(self, call: Call) -> None:
        if call.flush_timer is not None:
            call.flush_timer.cancel()
            call.flush_timer = None

    def _flush(self, call: Call) -> None:
        self._cancel_flush(call)
        piece = call.coalescer.flush(asyncio.get_running_loop().time())
        if piece is not None:
            self._send(call, piece)

    def _send(self, call: Call, piece: str) -> None:
        entry = call.text.append(piece)
        if call.channel is not None:
            self._live.put(call.channel, entry)

    def _ending(self, call: Call, outcome: Outcome) -> Ending:
        now = asyncio.get_running_loop().time()
        failure = call.failure
        measured = Measured(
            requests=call.requests,
            failure=f"{failure.kind}:{failure.code or failure.status or ''}" if failure else None,
            first_token_ms=_milliseconds(call.started, call.first_delta),
            duration_ms=_milliseconds(call.started, now) or 0,
        )
        return Ending(
            facts=call.facts,
            outcome=outcome,
            text=call.text,
            usage=self._usage(call),
            measured=measured,
            is_lost=lambda: call.is_lost,
        )

    def _usage(self, call: Call) -> Usage | None:
        if call.requests == 0:
            return None
        usage = call.usage or estimated(
            request_bytes=len(call.claim.payload or b""), answer_bytes=call.text.length
        )
        return priced(usage, price_of(self._catalogue, call.facts.model))

    def _count(self, call: Call, end: _End) -> None:
        outcome = _metric_outcome(end, stop_reason=call.stop_reason, is_lost=call.is_lost)
        self._metrics.llm_requests_total.labels(
            self._provider.name, call.facts.model, outcome
        ).inc()


def price_of(catalogue: Catalogue, model: str) -> Price:
    """What the catalogue says a model costs."""
    prices = catalogue.model(model).prices
    return Price(prices.input_usd, prices.cached_input_usd, prices.output_usd)


_FINISHES: dict[str, LlmOutcome] = {"length": "max_tokens", "content_filter": "content_filter"}

_FAILURES: dict[FailureKind, LlmOutcome] = {
    FailureKind.TIMEOUT: "timeout",
    FailureKind.IDLE: "timeout",
    FailureKind.THROTTLED: "throttled",
    FailureKind.BAD_REQUEST: "refused",
    FailureKind.UNAUTHORIZED: "refused",
    FailureKind.CONTEXT_LENGTH: "refused",
    FailureKind.SAFETY: "content_filter",
    FailureKind.CUT: "interrupted",
    FailureKind.MALFORMED: "interrupted",
}


def _metric_outcome(end: _End, *, stop_reason: str | None, is_lost: bool) -> LlmOutcome:
    if isinstance(end, Completed):
        return _FINISHES.get(end.finish_reason, "completed")
    if isinstance(end, Failure):
        return _FAILURES.get(end.kind, "unavailable")
    if is_lost:
        return "interrupted"
    return "timeout" if stop_reason is None else "cancelled"


def _milliseconds(start: float, end: float | None) -> int | None:
    return None if end is None else max(0, round((end - start) * 1000))
