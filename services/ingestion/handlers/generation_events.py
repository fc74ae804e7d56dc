"""Topic ``generation.events``: finds the answer that was told by hash and ends its turn."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog

from libs.kafka import Delivery
from libs.kafka.spans import spans_of
from libs.outbox import OutboxMessage
from libs.postgres import Database, Row, Statement, Transaction
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from schemas.envelope import Event
from schemas.generations import (
    GenerationCompletedV1,
    GenerationFailedV1,
    GenerationInterruptedV1,
)
from schemas.registry import GENERATION_EVENTS
from services.ingestion.core.answer import Answer, Result, Told, compared, nothing
from services.ingestion.core.endings import of_completed, of_failed, of_interrupted
from services.ingestion.dead_letters import end_of_parked
from services.ingestion.handlers.screening import misplaced
from services.ingestion.ports import Tokens
from services.ingestion.settling import Proposal, Settled, Settler, ShortTexts
from services.ingestion.statements import SQL

ResultKey = tuple[UUID, UUID, int]
"""(tenant, step, attempt)."""

Answered = GenerationCompletedV1 | GenerationInterruptedV1

SHORT_BYTES = 32 * 1024
"""Text of one batch that is compared and counted while conversations are locked: 0.5 ms."""


class GenerationEventHandler:
    """Handles what llm_gateway tells."""

    consumer = "ingestion.generation"
    topics = (GENERATION_EVENTS,)

    def __init__(
        self,
        settler: Settler,
        database: Database,
        *,
        tokens: Tokens,
        tracing: Tracing,
        metrics: Metrics,
    ) -> None:
        self._settler = settler
        self._database = database
        self._tokens = tokens
        self._tracing = tracing
        self._metrics = metrics
        self._log = structlog.get_logger(__name__)

    async def screen(self, deliveries: Sequence[Delivery]) -> Sequence[str | None]:
        """Refuse what stands in the wrong place."""
        return [misplaced(delivery) for delivery in deliveries]

    async def handle(self, batch: Sequence[Delivery]) -> None:
        """End the turns of the batch; the first end of a turn wins, repeats change nothing."""
        with spans_of(self._tracing, batch):
            settled = await self._settle([delivery.event for delivery in batch])
        for end in settled.unproven:
            self._metrics.invariant_violations_total.labels("stream_equals_store").inc()
            self._log.error(
                "ingestion.answer_unproven",
                turn_id=str(end.turn.id),
                conversation_id=str(end.turn.conversation_id),
            )

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        """End the turn of a parked event: its answer can never be committed."""
        del reason
        return await end_of_parked(self._settler, self._metrics, delivery, transaction)

    async def _settle(self, events: Sequence[Event[Any]]) -> Settled:
        answered = [event for event in events if isinstance(event.data, Answered)]
        rows: Sequence[Row] = ()
        texts: ShortTexts | None = None
        if sum(event.data.length for event in answered) > SHORT_BYTES:
            # Before the transaction: comparing and counting long texts takes milliseconds.
            sql, parameters = _results_statement(answered)
            tenants = {event.tenant_id for event in answered}
            rows = await self._database.fetch(sql, parameters, tenants=tenants)
        elif answered:
            texts = ShortTexts(
                _results_statement(answered), lambda found: self._proposals(events, found)
            )
        proposals = [_proposal(e) for e in events] if texts else self._proposals(events, rows)
        return await self._settler.settle(proposals, consumer=self.consumer, texts=texts)

    def _proposals(self, events: Sequence[Event[Any]], rows: Sequence[Row]) -> list[Proposal]:
        results = {
            (row["tenant_id"], row["step_id"], row["attempt"]): Result(
                row["turn_id"], row["text"], row["model"]
            )
            for row in rows
        }
        return [_proposal(event, self._answer(event, results)) for event in events]

    def _answer(self, event: Event[Any], results: Mapping[ResultKey, Result]) -> Answer:
        data: Answered | GenerationFailedV1 = event.data
        if isinstance(data, GenerationFailedV1):
            return nothing(of_failed(data.reason), attempt=data.attempt)
        if isinstance(data, GenerationCompletedV1):
            ending = of_completed(data.finish_reason, length=data.length)
        else:
            ending = of_interrupted(data.reason, length=data.length)
        result = results.get((event.tenant_id, data.step_id, data.attempt))
        answer = compared(ending, _told(event.turn_id, data), result)
        answer = replace(answer, first_token_at=_first_token_at(event.occurred_at, data))
        if answer.is_unproven or result is None:
            return answer
        return answer.counted(self._tokens.count(result.text, result.model))


def _proposal(event: Event[Any], answer: Answer | None = None) -> Proposal:
    return Proposal(event.id, event.tenant_id, event.conversation_id, event.turn_id, answer)


def _results_statement(events: Sequence[Event[Answered]]) -> Statement:
    asked = sorted({(event.tenant_id, event.data.step_id, event.data.attempt) for event in events})
    return SQL["results"], {
        "tenants": [tenant for tenant, _, _ in asked],
        "steps": [step for _, step, _ in asked],
        "attempts": [attempt for _, _, attempt in asked],
    }


def _first_token_at(ended_at: datetime, data: Answered) -> datetime | None:
    """By the clock of the worker that made the call."""
    if data.first_token_ms is None:
        return None
    return ended_at - timedelta(milliseconds=max(0, data.duration_ms - data.first_token_ms))


def _told(turn_id: UUID, data: Answered) -> Told:
    usage = data.usage
    if usage is not None and usage.cost_usd is None and data.cost_usd is not None:
        usage = usage.model_copy(update={"cost_usd": data.cost_usd})
    return Told(
        turn_id=turn_id,
        step_id=data.step_id,
        attempt=data.attempt,
        length=data.length,
        sha256=data.sha256,
        upto=data.upto,
        usage=usage,
    )
