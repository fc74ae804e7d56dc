"""Finds out what the client has seen of a turn whose worker will never tell."""

from collections.abc import Callable
from uuid import UUID

from libs.errors import LiveStreamUnavailable
from libs.postgres import Database
from libs.redis.ports import LiveStream
from libs.text import storable
from schemas.streams import BEFORE_ALL, REAPER_FENCE_ATTEMPT, EntryId, delta_text, fence
from services.ingestion.core.answer import Answer, nothing, shown
from services.ingestion.core.turn import Ending
from services.ingestion.ports import Tokens
from services.ingestion.statements import SQL

READ_ENTRIES = 500
"""Entries of a stream read at once."""

MAX_READS = 200
"""Reads of one stream: 100,000 entries, five times what a stream keeps."""


class Shown:
    """Reads live streams, and checkpoints where a stream is gone."""

    def __init__(self, database: Database, live: LiveStream, tokens: Tokens) -> None:
        self._database = database
        self._live = live
        self._tokens = tokens

    async def of(self, tenant_id: UUID, turn_id: UUID, end: Callable[[int], Ending]) -> Answer:
        """An end of a running turn, with what was shown of it.

        Args:
            end: Which end it is, by how many characters were shown.

        The fence is written first: after it nobody can show more. Where Redis is away, that nobody
        can see more is as good.
        """
        seen = await self._streamed(turn_id)
        if seen is None:
            rows = await self._database.fetch(
                SQL["partials"], {"tenants": [tenant_id], "turns": [turn_id]}, tenants=[tenant_id]
            )
            seen = (rows[-1]["text"], rows[-1]["upto"]) if rows else None
        if seen is None or not seen[0]:
            return nothing(end(0))
        text, upto = storable(seen[0]).text, seen[1]
        answer = shown(end(len(text)), text, upto=upto, attempt=EntryId.parse(upto).attempt)
        return answer.counted(self._tokens.count(text, None))

    async def _streamed(self, turn_id: UUID) -> tuple[str, str] | None:
        """Text of the last attempt that showed any, and the last id it covers; None if unknown."""
        try:
            appended = await self._live.append(turn_id, [fence(REAPER_FENCE_ATTEMPT)])
            if appended.created:
                return None  # Redis has lost what it had, so its silence proves nothing
            texts: dict[int, list[str]] = {}
            last: dict[int, EntryId] = {}
            after = BEFORE_ALL
            for _ in range(MAX_READS):
                entries = await self._live.read(turn_id, after, READ_ENTRIES)
                for entry in entries:
                    if text := delta_text(entry):
                        texts.setdefault(entry.id.attempt, []).append(text)
                        last[entry.id.attempt] = entry.id
                if len(entries) < READ_ENTRIES:
                    break
                after = entries[-1].id
        except (LiveStreamUnavailable, KeyError, TypeError, ValueError):
            return None  # away, or entries that are not ours: the checkpoint decides
        if not texts:
            return None
        attempt = max(texts)
        return "".join(texts[attempt]), str(last[attempt])
