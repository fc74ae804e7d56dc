"""Ends a running turn from outside, with what its client has seen of it."""

from collections.abc import Callable
from uuid import UUID

from libs import ids
from libs.postgres import Row
from services.ingestion.core.answer import Answer
from services.ingestion.core.turn import Ending
from services.ingestion.settling import Proposal, Settler
from services.ingestion.shown import Shown


class Stopper:
    """Shuts the worker out, reads what was shown, and settles the end.

    Attributes:
        settler: Settles it; whoever stops turns settles others too.
    """

    def __init__(self, settler: Settler, shown: Shown) -> None:
        self.settler = settler
        self._shown = shown

    async def stop(self, row: Row, *, cause: str, end: Callable[[int], Ending]) -> Answer | None:
        """End a turn that an open row names; None where it had ended before.

        Args:
            cause: Names the reason; the same cause makes the same proposal.
            end: Which end it is, by how many characters were shown.
        """
        tenant_id: UUID = row["tenant_id"]
        turn_id: UUID = row["turn_id"]
        answer = await self._shown.of(tenant_id, turn_id, end)
        proposal = Proposal(
            ids.caused_id(turn_id, cause), tenant_id, row["conversation_id"], turn_id, answer
        )
        settled = await self.settler.settle([proposal], consumer=None)
        return answer if settled.ended else None
