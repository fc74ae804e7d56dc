"""All watched conversations of a process: one query a second for all, told to each client."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

from libs.errors import StoreUnavailable
from services.frontend_gateway.core.activity import GONE, ConversationActivity
from services.frontend_gateway.hub import Closing, SeatClosed
from services.frontend_gateway.ports import Activities, Proof

MAX_ASKED = 200  # conversations in one query: 6,400 turns at most
LOOK_TIMEOUT_S = 5.0  # a slower answer belongs to a database in trouble; the next look asks again


class Watch:
    """One client's place: the newest activity that it has not taken yet."""

    def __init__(self, tenant: UUID, conversation: UUID, key_id: UUID, proof: Proof) -> None:
        self.tenant = tenant
        self.conversation = conversation
        self.key_id = key_id
        self.proof = proof
        self._newest: ConversationActivity | None = None
        self._closing: Closing | None = None
        self._woken = asyncio.Event()

    def tell(self, activity: ConversationActivity) -> None:
        """Leave the newest activity; an older one that was not taken is replaced."""
        self._newest = activity
        self._woken.set()

    def close(self, why: Closing) -> None:
        """End the stream; the first reason stays."""
        self._closing = self._closing or why
        self._woken.set()

    async def next(self, timeout_s: float) -> ConversationActivity | None:
        """The newest activity, or None after ``timeout_s`` seconds without any.

        Raises:
            SeatClosed: The stream has to stop.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        self._woken.clear()
        if self._closing is not None:
            raise SeatClosed(self._closing)
        newest, self._newest = self._newest, None
        return newest


class Watchers:
    """Made once per process; ``run`` has to be running.

    Args:
        poll_s: Seconds between two looks.
    """

    def __init__(
        self,
        rows: Activities,
        is_allowed: Callable[[Proof], Awaitable[bool]],
        *,
        poll_s: float,
    ) -> None:
        self._rows = rows
        self._is_allowed = is_allowed
        self._poll_s = poll_s
        self._watches: set[Watch] = set()
        self._per_key: Counter[UUID] = Counter()

    @property
    def stream_count(self) -> int:
        """Open streams."""
        return len(self._watches)

    def streams_of(self, key_id: UUID) -> int:
        """Open streams of one API key."""
        return self._per_key[key_id]

    @contextlib.asynccontextmanager
    async def watch(
        self, tenant: UUID, conversation: UUID, *, by: tuple[UUID, Proof]
    ) -> AsyncIterator[Watch]:
        """A place among those that are told about a conversation.

        Args:
            by: Id of the key and the proof that the client came with.
        """
        watch = Watch(tenant, conversation, *by)
        self._watches.add(watch)
        self._per_key[watch.key_id] += 1
        try:
            yield watch
        finally:
            self._watches.discard(watch)
            self._per_key[watch.key_id] -= 1
            if self._per_key[watch.key_id] <= 0:
                del self._per_key[watch.key_id]

    async def look(self, tenant: UUID, conversation: UUID) -> ConversationActivity:
        """What goes on in one conversation now. May raise ``StoreUnavailable``."""
        found = await self._rows.activity([(tenant, conversation)])
        return found.get(conversation, GONE)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._poll_s)
            with contextlib.suppress(StoreUnavailable, TimeoutError):  # the next look asks again
                async with asyncio.timeout(LOOK_TIMEOUT_S):
                    await self._recheck()
                    await self._look_at_all()

    def drain(self, over_s: float) -> None:
        """End all streams at random moments within ``over_s`` seconds; clients come back."""
        loop = asyncio.get_running_loop()
        for watch in self._watches:
            loop.call_later(random.uniform(0, over_s), watch.close, Closing.RESTART)

    def close(self) -> None:
        """End what is left at once."""
        for watch in self._watches:
            watch.close(Closing.RESTART)

    async def _look_at_all(self) -> None:
        asked = sorted({(watch.tenant, watch.conversation) for watch in self._watches})
        for start in range(0, len(asked), MAX_ASKED):
            part = asked[start : start + MAX_ASKED]
            found = await self._rows.activity(part)
            wanted = {conversation for _, conversation in part}
            for watch in tuple(self._watches):
                if watch.conversation in wanted:
                    watch.tell(found.get(watch.conversation, GONE))

    async def _recheck(self) -> None:
        """Close the streams of keys that were revoked; the answers come from memory mostly."""
        for proof in {watch.proof for watch in self._watches}:
            if await self._is_allowed(proof):
                continue
            for watch in tuple(self._watches):
                if watch.proof == proof:
                    watch.close(Closing.REVOKED)
