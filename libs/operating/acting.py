"""What operators do: each act is one function of its service, with its audit row.

A dry run is the same act, undone before it is committed: it says exactly what the act would say,
and nothing stays of it, not even its audit row.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from libs.errors import StoreUnavailable
from libs.operating.documents import Document
from libs.postgres import Database, Row, load_queries
from libs.postgres.refusals import RefusedByFunction, refusals
from libs.telemetry.tracing import Tracing
from libs.telemetry.turns import EndedTurn, write_turn

_SQL = load_queries("libs.operating")

RE_DRIVEN_BY = ("ingestion", "context_assembly", "llm_gateway")

REDRIVEN = (
    "Its service handles the record again within a few seconds; if it fails again, it stays here."
)
REAPED = (
    "The turn's deadline has come: ingestion ends it at its next look, within a second or two, and "
    "keeps what was shown of the answer."
)


def ended(status: str, reason: str) -> str:
    """What an end does."""
    return f"The turn is {status} ({reason}) at once, without an answer; that is final."


class Refusal(Exception):
    """An act cannot be done now; the text says why."""


class _Undone(Exception):
    """Rolls a dry run back."""


class Acts:
    """What operators may do. Every method may raise ``StoreUnavailable``.

    Args:
        database: Of the role ``turnwire_ops`` or ``turnwire_frontend_gateway``.
        actor: Who acts, for the audit row.
        tracing: Where the span of a turn goes that an operator ended.
    """

    def __init__(self, database: Database, *, actor: str, tracing: Tracing | None = None) -> None:
        self._database = database
        self._actor = actor
        self._tracing = tracing or Tracing()

    async def redrive(self, service: str, letter: UUID, *, dry_run: bool) -> Document | None:
        """Let a service handle a dead letter again; None if there is none.

        Raises:
            Refusal: Its bytes are not kept.
        """
        if service not in RE_DRIVEN_BY:
            return None
        told = await self._act(f"redrive_{service}", {"id": letter}, dry_run=dry_run)
        if told is None:
            return None
        return _document("redrive", letter, REDRIVEN, dry_run=dry_run)

    async def end_turn(self, turn: UUID, reason: str, *, dry_run: bool) -> Document | None:
        """End an open turn without an answer; None if it is unknown or has ended.

        Raises:
            Refusal: There is no such reason.
        """
        told = await self._act("end_turn", {"id": turn, "reason": reason}, dry_run=dry_run)
        if told is None:
            return None
        if self._tracing.is_kept and not dry_run:
            await self._trace(turn)
        return _document("end", turn, ended(told, reason), dry_run=dry_run)

    async def reap_turn(self, turn: UUID, *, dry_run: bool) -> Document | None:
        """Let the reaper end a running turn now; None if it is unknown or has ended.

        Raises:
            Refusal: It has not started.
        """
        told = await self._act("reap_turn", {"id": turn}, dry_run=dry_run)
        if told is None:
            return None
        return _document("reap", turn, REAPED, dry_run=dry_run)

    async def _trace(self, turn: UUID) -> None:
        """Write the span of a turn whose end no process of its service has seen."""
        rows: Sequence[Row] = ()
        with contextlib.suppress(StoreUnavailable):  # the act is done, whatever becomes of its span
            rows = await self._database.fetch(_SQL["turn"], {"turn": turn})
        for row in rows:
            turn_ended = EndedTurn(
                row["turn_id"],
                row["tenant_id"],
                row["conversation_id"],
                row["status"],
                row["reason"],
                row["created_at"],
                row["ended_at"],
                row["traceparent"],
            )
            write_turn(self._tracing, turn_ended)

    async def _act(self, query: str, values: Mapping[str, Any], *, dry_run: bool) -> str | None:
        found: list[str | None] = []
        try:
            with refusals():
                async with self._database.transaction() as transaction:
                    rows = await transaction.fetch(_SQL[query], {"actor": self._actor, **values})
                    found.append(rows[0]["told"])
                    _undo_if(dry_run=dry_run)
        except _Undone:
            pass
        except RefusedByFunction as error:
            raise Refusal(str(error)) from None
        return found[0]


def _undo_if(*, dry_run: bool) -> None:
    if dry_run:
        raise _Undone


def _document(act: str, target: UUID, effect: str, *, dry_run: bool) -> Document:
    return {
        "object": "ops_act",
        "act": act,
        "target_id": str(target),
        "dry_run": dry_run,
        "effect": effect,
    }
