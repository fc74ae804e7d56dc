"""A client that is cut anywhere, and resumes on any gateway, ends with the stored text, once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID, uuid5

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.redis.memory import MemoryDoorbell, MemoryLiveStream, MemoryRedis
from schemas.streams import Entry, EntryId, content_delta, fence, generating
from services.frontend_gateway.core.following import Position
from services.frontend_gateway.core.turns import Checkpoint, TurnView, ending, opening
from services.frontend_gateway.hub import Hub, Pace
from services.frontend_gateway.live_feed import Feed, locate
from services.frontend_gateway.memory import MemoryStore
from services.frontend_gateway.ports import Proof
from tests.rig.sse import Copy, Parser

TENANT = UUID("8e03978e-40d5-43e8-bc93-6894a57f9324")
TURN = TurnView(uuid5(TENANT, "t"), TENANT, uuid5(TENANT, "c"), uuid5(TENANT, "p"), "generating", 1)
PROOF: Proof = ("key", b"k")
TEXTS = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=12)


@dataclass
class World:
    """One turn, told step by step, and a gateway process that may be replaced at any moment."""

    texts: list[str]
    redis: MemoryRedis
    store: MemoryStore
    live: MemoryLiveStream
    told: int = 0

    @property
    def entries(self) -> list[Entry]:
        deltas = [content_delta(EntryId(2, 2 + i), text) for i, text in enumerate(self.texts)]
        return [opening(TURN), generating(1), fence(2), generating(2), *deltas]

    async def tell(self, *, is_lost: bool) -> None:
        """The next entry; a lost one reaches the checkpoint alone."""
        entry = self.entries[self.told]
        self.told += 1
        if not is_lost:
            await self.live.append(TURN.id, [entry])
        shown = self.told - 4
        if shown > 0:
            text = "".join(self.texts[:shown])
            self.store.checkpoint_rows[TURN.id] = Checkpoint(text, EntryId(2, 1 + shown))

    async def end(self, *, is_lost: bool) -> None:
        text = "".join(self.texts)
        row = TurnView(
            **{
                **{name: getattr(TURN, name) for name in TURN.__slots__},
                "status": "completed",
                "length": len(text.encode()),
                "upto": EntryId(2, 1 + len(self.texts)),
            }
        )
        self.store.turn_rows[TURN.id] = row
        self.store.texts[TURN.id] = text
        if not is_lost:
            await self.live.append(TURN.id, ending(row))

    @contextlib.asynccontextmanager
    async def gateway(self) -> AsyncIterator[Hub]:
        async def is_allowed(_proof: Proof) -> bool:
            return True

        hub = Hub(
            live=self.live,
            bell=MemoryDoorbell(self.redis),
            watched=self.store,
            is_allowed=is_allowed,
            watcher="w",
            pace=Pace(tick_s=0.001, idle_s=0.002, recheck_s=60, ping_s=5),
        )
        ticking = asyncio.create_task(hub.run())
        try:
            yield hub
        finally:
            ticking.cancel()
            await hub.close()


async def connect(world: World, hub: Hub, copy: Copy, *, stop_after: int | None) -> None:
    """Read until ``done``, or until so many events came."""
    row = world.store.turn_rows[TURN.id]
    position: Position | None = None
    if copy.last_id is not None:
        if row.has_ended and copy.last_id == str(ending(row)[-1].id):
            return
        wanted = EntryId.parse(copy.last_id)
        position = await locate(row, wanted, live=world.live, reads=world.store)
    parser, count, whole = Parser(), 0, "".join(world.texts)
    async with hub.seat(row, TENANT, PROOF, lambda _why: None) as seat:
        feed = Feed(row, position, seat=seat, hub=hub, reads=world.store)
        async with contextlib.aclosing(feed.chunks()) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                for event in parser.feed(chunk):
                    copy.take(event)
                    assert whole.startswith(copy.text), "a silent gap"
                    count += 1
                    if count == stop_after:
                        return


def fresh(texts: list[str]) -> World:
    redis = MemoryRedis()
    world = World(texts, redis, MemoryStore(), MemoryLiveStream(redis))
    world.store.turn_rows[TURN.id] = TURN
    return world


async def told_live(texts: list[str], cuts: list[int], lost: set[int], flush_at: int) -> Copy:
    """The turn is told while a client reads it over several connections and gateways."""
    world, copy = fresh(texts), Copy()

    async def tell() -> None:
        async with asyncio.timeout(20):
            while not copy.heard:  # the first connection is there before anything happens
                await asyncio.sleep(0)
        for step in range(len(world.entries)):
            if step == flush_at:
                world.redis.flush()
            await world.tell(is_lost=step in lost)
            await asyncio.sleep(0)
        await world.end(is_lost=len(world.entries) in lost)

    telling = asyncio.create_task(tell())
    async with asyncio.timeout(20):
        for stop_after in [*cuts, None]:
            if copy.done is not None:
                break
            async with world.gateway() as hub:
                await connect(world, hub, copy, stop_after=stop_after)
        await telling
    return copy


@settings(max_examples=60, deadline=None)
@given(
    TEXTS,
    st.lists(st.integers(1, 6), max_size=6),
    st.sets(st.integers(0, 16), max_size=4),
    st.integers(0, 40),
)
def test_whatever_is_lost_the_client_ends_with_the_stored_text(
    texts: list[str], cuts: list[int], lost: set[int], flush_at: int
) -> None:
    copy = asyncio.run(told_live(texts, cuts, lost, flush_at))

    assert copy.text == "".join(texts)
    assert copy.done is not None
    assert copy.done["length"] == len(copy.text.encode())
    assert copy.names.count("message_started") <= 1


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.lists(st.integers(1, 6), max_size=6))
def test_without_a_loss_the_events_are_those_of_one_connection(
    texts: list[str], cuts: list[int]
) -> None:
    copy = asyncio.run(told_live(texts, cuts, set(), 999))
    world = fresh(texts)
    asyncio.run(world.end(is_lost=True))
    whole = [*world.entries, *ending(world.store.turn_rows[TURN.id])]

    expected = [(str(entry.id), entry.event) for entry in whole if not entry.is_fence]
    assert [(event.id, event.event) for event in copy.heard] == expected
    assert copy.text == "".join(texts)
