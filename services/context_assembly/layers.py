"""The port through which other services' knowledge enters a prompt, one layer each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schemas.prompt_plan import Section
    from services.context_assembly.core.candidates import Candidate
    from services.context_assembly.planning import Start
    from services.context_assembly.ports import HistoryReader, TurnKey


class Layer(Protocol):
    """Fills one data section: summary, memory, retrieved or tools.

    Its candidates are screened, framed, trimmed and checked by the planner; a layer only finds
    them, says what they rest on, and counts their tokens in the model's tokenizer.
    """

    section: Section

    async def candidates(
        self, starts: Sequence[Start], reader: HistoryReader
    ) -> Mapping[TurnKey, Sequence[Candidate]]:
        """What may be shown in the steps of these turns; a turn may be left out.

        Runs inside the planning transaction, while conversations are locked: one short read for
        all turns, never a call to another process. The same rows give the same candidates.
        """
