"""Reads what operators see, through the operators' functions of every schema."""

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from libs.operating.documents import Document, iso, leases_of, services_of, told
from libs.operating.story import Facts, event_names, story
from libs.outbox.messages import BUCKETS
from libs.postgres import Database, Row, load_queries

MAX_ROWS = 500
"""Rows of one list; whoever needs more asks the database itself."""

NEWEST = 5_000
"""Accepted requests of the last day that ended turns are counted among: 30 ms of look-ups."""

_SQL = load_queries("libs.operating")


class Reads:
    """What operators see. Every method may raise ``StoreUnavailable``.

    Args:
        database: Of the role ``turnwire_ops`` or ``turnwire_frontend_gateway``.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def now(self) -> datetime:
        """The database's time, by which everything here is told."""
        rows = await self._rows("now")
        found: datetime = rows[0]["now"]
        return found

    async def overview(self) -> Document:
        """The figures of the whole deployment, each with its age."""
        instances, outbox, letters, leases, counts, at = await asyncio.gather(
            self._rows("instances"),
            self._rows("outbox_status"),
            self._rows("dlq_status"),
            self._rows("leases"),
            self._rows("turn_counts", newest=NEWEST),
            self.now(),
        )
        services = services_of(instances)
        return {
            "object": "ops_overview",
            "at": iso(at),
            "services": [
                {name: value for name, value in one.items() if name != "processes"}
                for one in services
            ],
            "outbox": [told(row) for row in outbox],
            "dead_letters": [told(row) for row in letters],
            "leases": leases_of(leases),
            "turns": [told(row) for row in counts],
            "counted_among": NEWEST,
        }

    async def services(self) -> list[Document]:
        """Every process that says that it runs, by service."""
        return services_of(await self._rows("instances"))

    async def outbox(self, max_rows: int = MAX_ROWS) -> list[Document]:
        """Events that wait for the broker, the oldest first."""
        return await self._told("outbox_list", max_rows=max_rows)

    async def outbox_dead(self, max_rows: int = MAX_ROWS) -> list[Document]:
        """Events that the broker will never take, the newest first."""
        return await self._told("outbox_dead", max_rows=max_rows)

    async def outbox_status(self) -> list[Document]:
        """How many events wait in each service, and for how long."""
        return await self._told("outbox_status")

    async def dead_letters(self, max_rows: int = MAX_ROWS) -> list[Document]:
        """Records that could not be handled, the newest first; never their bytes."""
        return await self._told("dlq_list", max_rows=max_rows)

    async def dead_letter(self, letter: UUID) -> Document | None:
        """One of them."""
        rows = await self._told("dlq_get", id=letter)
        return rows[0] if rows else None

    async def leases(self) -> list[Document]:
        """Workers of the model gateway, the one that was heard of last first."""
        return await self._told("leases")

    async def work(self, max_rows: int = MAX_ROWS) -> list[Document]:
        """Model calls that wait, run or wait to be forgotten, the oldest first."""
        return await self._told("work", max_rows=max_rows)

    async def turns(
        self, status: str | None = None, reason: str | None = None, max_rows: int = MAX_ROWS
    ) -> list[Document]:
        """Open turns, the oldest first; ended ones of the last day, the newest first.

        Args:
            status: ``open`` for all that have not ended, ``queued`` for those that wait.
        """
        return await self._told(
            "turn_list", status=status, reason=reason, newest=NEWEST, max_rows=max_rows
        )

    async def acts(self, max_rows: int = MAX_ROWS) -> list[Document]:
        """What operators did, the newest first."""
        return await self._told("acts", max_rows=max_rows)

    async def search(self, text: str, max_rows: int = MAX_ROWS) -> Document:
        """What an id or an idempotency key means: turns, a request, a dead letter."""
        wanted = uuid_of(text)
        turns = await self._told("find_turns", id=wanted, key=text, max_rows=max_rows)
        request, letter = None, None
        if wanted is not None:
            request = next(iter(await self._told("request", request=wanted)), None)
            letter = await self.dead_letter(wanted)
        return {
            "object": "ops_search",
            "turns": turns,
            "request": request,
            "dead_letter": letter,
        }

    async def story(self, turn_id: UUID) -> Document | None:
        """Everything that is known about one turn, over all services; None if there is none."""
        rows = await self._rows("turn", turn=turn_id)
        if not rows:
            return None
        turn = rows[0]
        request, transitions, steps, work, acts, now = await asyncio.gather(
            self._rows("request", request=turn["request_id"]),
            self._rows("transitions", turn=turn_id),
            self._rows("steps", turn=turn_id),
            self._rows("turn_work", turn=turn_id),
            self._rows("acts_on", target=turn_id),
            self.now(),
        )
        step_ids = [step["step_id"] for step in steps]
        attempts = await self._rows("attempts", tenant=turn["tenant_id"], step_ids=step_ids)
        highest = max((row["attempt"] for row in (*attempts, *work)), default=0)
        names = event_names(turn, steps, highest)
        conversation = turn["conversation_id"]
        bucket = zlib.crc32(str(conversation).encode()) % BUCKETS
        deliveries, letters, waiting = await asyncio.gather(
            self._rows("deliveries", event_ids=list(names)),
            self._rows("dlq_of", conversation=conversation, max_rows=MAX_ROWS),
            self._rows("outbox_of", conversation=conversation, bucket=bucket, max_rows=MAX_ROWS),
        )
        facts = Facts(
            turn=turn,
            request=request[0] if request else None,
            transitions=transitions,
            steps=steps,
            work=work,
            attempts=attempts,
            deliveries=deliveries,
            dead_letters=letters,
            waiting=waiting,
            acts=acts,
        )
        return story(facts, now=now)

    async def _rows(self, query: str, **values: Any) -> Sequence[Row]:
        parameters: Mapping[str, Any] = values
        return await self._database.fetch(_SQL[query], parameters)

    async def _told(self, query: str, **values: Any) -> list[Document]:
        return [told(row) for row in await self._rows(query, **values)]


def uuid_of(text: str) -> UUID | None:
    """The id that a text is; None for any other text."""
    try:
        found = UUID(text)
    except ValueError:
        return None
    return found if str(found) == text.lower() else None
