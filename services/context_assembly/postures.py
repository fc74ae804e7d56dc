"""A copy of every tenant's capture posture, so that no turn has to ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from libs.errors import StoreUnavailable
from libs.telemetry.logging import get_logger
from services.context_assembly.core.posture import CaptureChoice, Posture, decide
from services.context_assembly.ports import ConversationKey
from services.context_assembly.store import SQL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from libs.clock import Clock
    from libs.postgres import Database
    from services.context_assembly.ports import CapturePostures

MAX_CHOICES: Final = 100_000
"""Tenants with a choice of their own, and flagged conversations, at 200 bytes each."""

RELOAD_EVERY_S: Final = 5.0
"""A new choice counts after this; 'none' counts at once, since every insert asks the table."""


class FixedPostures:
    """The same choice for every tenant, and no flags."""

    def __init__(
        self,
        default: CaptureChoice,
        choices: Mapping[UUID, CaptureChoice] | None = None,
        flagged: frozenset[ConversationKey] = frozenset(),
    ) -> None:
        self._default = default
        self._choices = choices or {}
        self._flagged = flagged

    def choice_of(self, tenant_id: UUID) -> CaptureChoice:
        """What a tenant chose, or the operator's default."""
        return self._choices.get(tenant_id, self._default)

    def is_flagged(self, conversation: ConversationKey) -> bool:
        """Whether the conversation's payloads are kept although nothing failed."""
        return conversation in self._flagged


class PostgresPostures:
    """Reads all choices at intervals, off the path of any turn."""

    def __init__(self, database: Database, *, clock: Clock, default: CaptureChoice) -> None:
        self._database = database
        self._clock = clock
        self._default = default
        self._now = FixedPostures(default)
        self._log = get_logger()

    def choice_of(self, tenant_id: UUID) -> CaptureChoice:
        """What a tenant chose, or the operator's default."""
        return self._now.choice_of(tenant_id)

    def is_flagged(self, conversation: ConversationKey) -> bool:
        """Whether the conversation's payloads are kept although nothing failed."""
        return self._now.is_flagged(conversation)

    async def run(self) -> None:
        """Reload until cancelled; an outage of Postgres keeps the last copy."""
        while True:
            try:
                await self.reload()
            except StoreUnavailable as error:
                self._log.warning("context.postures_kept", reason=str(error))
            await self._clock.sleep(RELOAD_EVERY_S)

    async def reload(self) -> None:
        """Read all choices and flags.

        Raises:
            StoreUnavailable: Postgres did not answer; the copy stays as it was.
        """
        asked = {"max_rows": MAX_CHOICES}
        choices = await self._database.fetch(SQL["capture_postures"], asked)
        flags = await self._database.fetch(SQL["capture_flags"], asked)
        self._now = FixedPostures(
            self._default,
            {
                row["tenant_id"]: CaptureChoice(
                    cast("Posture", row["posture"]), row["sampled_per_mille"]
                )
                for row in choices
            },
            frozenset(ConversationKey(row["tenant_id"], row["conversation_id"]) for row in flags),
        )


def capture_cause(
    postures: CapturePostures,
    conversation: ConversationKey,
    turn_id: UUID,
    *,
    status: str,
    reason: str | None,
) -> str | None:
    """Why the payloads of an ended turn are kept for a while; None keeps nothing."""
    return decide(
        turn_id,
        postures.choice_of(conversation.tenant_id),
        is_flagged=postures.is_flagged(conversation),
        status=status,
        reason=reason,
    )
