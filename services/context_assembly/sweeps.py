"""Background work: tells steps again that nobody took, and drops rows whose time is up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from libs import inbox
from libs.errors import StoreUnavailable
from libs.kafka.parking import purge_statement
from libs.outbox import outbox_message
from libs.telemetry.logging import get_logger
from schemas.registry import CONTEXT_EVENTS, decode
from services.context_assembly.ports import ConversationKey, EndedTurn, StepKey, TurnKey
from services.context_assembly.postures import capture_cause
from services.context_assembly.store import SQL, commit_and_tell, end_statements, turn_states

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from libs.clock import Clock
    from libs.outbox import Relay
    from libs.postgres import Database
    from services.context_assembly.ports import CapturePostures

MAX_STEPS: Final = 500
"""Steps looked at in one sweep; the next one takes the next oldest."""

MAX_ROWS: Final = 5_000
"""Rows one statement of the retention job deletes; it repeats while a round was full."""

MAX_ROUNDS: Final = 200
"""Rounds of one retention job: a million rows, then it waits for its next hour."""

DAY_S: Final = 86_400.0

INBOX_KEEP_S: Final = 14 * DAY_S
"""Retention of the topic (7 days) and as much again for replays."""

DEAD_LETTERS_KEEP_S: Final = 14 * DAY_S

CAPTURE_READS_KEEP_S: Final = 365 * DAY_S
"""Who read a prompt may be asked long after; a row takes 150 bytes."""

TOKEN_COUNTS_KEEP_S: Final = 30 * DAY_S
"""Counting again costs little; texts of deleted conversations must not leave hashes for ever."""

ORPHANED_PAYLOAD_S: Final = 3_600.0
"""A turn lasts minutes; a payload this old belongs to a turn whose end was not heard of."""


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """Times of the background work.

    Attributes:
        every_s: Pause between two looks for silent steps.
        silent_s: How long a step may go untaken before it is told again.
        retention_every_s: Pause between two retention jobs.
        captures_keep_s: How long captured payloads are kept.
    """

    every_s: float = 2.0
    silent_s: float = 10.0
    retention_every_s: float = 3_600.0
    captures_keep_s: float = 7 * DAY_S


class Reteller:
    """Tells steps again that llm_gateway does not have: the topic may have lost its data."""

    def __init__(
        self,
        database: Database,
        relay: Relay,
        *,
        clock: Clock,
        limits: SweepLimits,
        postures: CapturePostures,
    ) -> None:
        self._database = database
        self._relay = relay
        self._clock = clock
        self._limits = limits
        self._postures = postures
        self._log = get_logger()

    async def run(self) -> None:
        """Sweep until cancelled; an outage of Postgres is waited out."""
        while True:
            await self._clock.sleep(self._limits.every_s)
            try:
                await self.sweep()
            except StoreUnavailable as error:
                self._log.warning("context.sweep_postponed", reason=str(error))

    async def sweep(self) -> int:
        """Look at the oldest silent steps once; how many were told again.

        A step of an ended turn is closed, one that was taken or still waits for the broker is
        looked at again later, and the rest is told again under its first event id.
        """
        asked = {"silent_s": self._limits.silent_s, "max_rows": MAX_STEPS}
        async with self._database.transaction() as transaction:
            rows = await transaction.fetch(SQL["silent_steps"], asked)
            if not rows:
                return 0
            await transaction.name_tenants({row["tenant_id"] for row in rows})
            ended = [TurnKey(r["tenant_id"], r["turn_id"]) for r in rows if not r["is_open"]]
            looked_at = [StepKey(r["tenant_id"], r["step_id"]) for r in rows if r["is_open"]]
            untold = [
                StepKey(r["tenant_id"], r["step_id"])
                for r in rows
                if r["is_open"] and not r["is_taken"] and not r["is_waiting"]
            ]
            messages = []
            if untold:
                told = await transaction.fetch(SQL["told_events"], _columns(untold))
                conversations = [str(row["conversation_id"]) for row in told]
                # As in the batch loop: a conversation's records get their numbers under its lock.
                await transaction.execute(
                    SQL["lock_conversations"], {"conversations": conversations}
                )
                messages = [
                    outbox_message(decode(bytes(row["event"])), CONTEXT_EVENTS) for row in told
                ]
            statements = [
                (SQL["mark_told"], _columns(looked_at)),
                *end_statements(await _ended_turns(transaction, ended, self._postures)),
            ]
            await commit_and_tell(transaction, self._relay, statements, messages)
        if messages or ended:
            self._log.warning("context.steps_swept", told_again=len(messages), closed=len(ended))
        return len(messages)


class Retention:
    """Drops what was kept long enough."""

    def __init__(
        self, database: Database, *, clock: Clock, limits: SweepLimits, postures: CapturePostures
    ) -> None:
        self._database = database
        self._clock = clock
        self._limits = limits
        self._postures = postures
        self._log = get_logger()

    async def run(self) -> None:
        """Work once at the start and then at intervals, until cancelled."""
        while True:
            try:
                gone = await self.drop_old()
                self._log.info("context.retention_done", **gone)
            except StoreUnavailable as error:
                self._log.warning("context.retention_postponed", reason=str(error))
            await self._clock.sleep(self._limits.retention_every_s)

    async def drop_old(self) -> dict[str, int]:
        """Drop everything whose time is up; rows dropped by kind."""
        captures = {"keep_s": self._limits.captures_keep_s, "max_rows": MAX_ROWS}
        reads = {"keep_s": CAPTURE_READS_KEEP_S, "max_rows": MAX_ROWS}
        counts = {"keep_s": TOKEN_COUNTS_KEEP_S, "max_rows": MAX_ROWS}
        return {
            "orphaned_rows": await self._drop_orphans(),
            "captured_rows": await self._repeat(SQL["expire_captures"], captures),
            "vetoed_rows": await self._repeat(
                SQL["expire_vetoed_captures"], {"max_rows": MAX_ROWS}
            ),
            "capture_reads": await self._repeat(SQL["expire_capture_reads"], reads),
            "token_rows": await self._repeat(SQL["expire_token_counts"], counts),
            "inbox_rows": await self._repeat(
                *inbox.purge_statement(INBOX_KEEP_S, max_rows=MAX_ROWS)
            ),
            "dead_letter_rows": await self._repeat(
                *purge_statement(DEAD_LETTERS_KEEP_S, max_rows=MAX_ROWS)
            ),
        }

    async def _repeat(self, sql: str, parameters: Any) -> int:
        """Run a statement that tells how many rows it dropped until it drops fewer than it may."""
        total = 0
        for _ in range(MAX_ROUNDS):
            row = (await self._database.fetch(sql, parameters))[0]
            gone = int(next(iter(row.values())))
            total += gone
            if gone < MAX_ROWS:
                break
        return total

    async def _drop_orphans(self) -> int:
        """Delete old payloads of ended turns; their ``turn.ended`` may have been lost."""
        asked = {"older_than_s": ORPHANED_PAYLOAD_S, "max_rows": MAX_ROWS}
        async with self._database.transaction() as transaction:
            rows = await transaction.fetch(SQL["old_payloads"], asked)
            if not rows:
                return 0
            keys = list({TurnKey(row["tenant_id"], row["turn_id"]) for row in rows})
            await transaction.name_tenants({key.tenant_id for key in keys})
            ended = await _ended_turns(transaction, keys, self._postures)
            await transaction.commit_with(list(end_statements(ended)))
        return len(rows)


async def _ended_turns(
    transaction: Any, keys: Sequence[TurnKey], postures: CapturePostures
) -> list[EndedTurn]:
    """What the capture posture says about turns whose end was learnt from their rows."""
    if not keys:
        return []
    rows = await transaction.fetch(SQL["turns"], {"turns": [key.turn_id for key in keys]})
    states = turn_states(rows)
    ended = []
    for key in dict.fromkeys(keys):
        state = states.get(key)
        cause = None  # a turn without a row was erased; nothing of it is kept
        if state is not None:
            cause = capture_cause(
                postures,
                ConversationKey(key.tenant_id, state.conversation_id),
                key.turn_id,
                status=state.status,
                reason=state.reason,
            )
        ended.append(EndedTurn(key, cause))
    return ended


def _columns(keys: Iterable[StepKey]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = defaultdict(list)
    for key in keys:
        columns["tenants"].append(key.tenant_id)
        columns["steps"].append(key.step_id)
    return {"tenants": columns["tenants"], "steps": columns["steps"]}
