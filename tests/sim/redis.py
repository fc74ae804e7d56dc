"""The twins of Redis for each process, with the network's faults between them and the server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from libs.errors import LiveStreamUnavailable
from libs.redis.memory import MemoryDoorbell, MemoryLiveStream, MemoryRedis
from libs.redis.ports import STREAM_EXPIRE_S, Appended, OnBell, OnLost
from schemas.streams import Entry, EntryId
from tests.sim.faults import Fault
from tests.sim.process import Process
from tests.sim.world import World


class SimLive(MemoryLiveStream):
    """The live stream as one process reaches it."""

    def __init__(self, server: MemoryRedis, process: Process, world: World) -> None:
        super().__init__(server)
        self._process = process
        self._world = world

    async def append(
        self, turn_id: UUID, entries: Sequence[Entry], *, expire_s: int = STREAM_EXPIRE_S
    ) -> Appended:
        """See ``LiveStream.append``."""
        return (await self.append_many([(turn_id, entries)], expire_s=expire_s))[turn_id]

    async def append_many(
        self, batch: Sequence[tuple[UUID, Sequence[Entry]]], *, expire_s: int = STREAM_EXPIRE_S
    ) -> dict[UUID, Appended]:
        """See ``LiveStream.append_many``."""
        told = " ".join(f"{turn}:{','.join(str(e.id) for e in some)}" for turn, some in batch)
        fault = await self._process.step("redis.append", told)
        self._suffer(fault)
        merged: dict[UUID, list[Entry]] = {}
        for turn_id, entries in batch:
            merged.setdefault(turn_id, []).extend(entries)
        appended = {
            turn_id: await super(SimLive, self).append(turn_id, entries, expire_s=expire_s)
            for turn_id, entries in merged.items()
        }
        await self._process.answer()
        if fault is not None and fault.kind == "lost_reply":
            msg = "the simulation lost Redis' answer"
            raise LiveStreamUnavailable(msg)
        return appended

    async def read(self, turn_id: UUID, after: EntryId, limit: int) -> list[Entry]:
        """See ``LiveStream.read``."""
        self._suffer(await self._process.step("redis.read", f"{turn_id} {after}"))
        found = await super().read(turn_id, after, limit)
        await self._process.answer()
        return found

    async def last_id(self, turn_id: UUID) -> EntryId | None:
        """See ``LiveStream.last_id``."""
        self._suffer(await self._process.step("redis.read", f"{turn_id} last"))
        return await super().last_id(turn_id)

    async def ring(self, channel: str, body: bytes) -> bool:
        """See ``LiveStream.ring``."""
        fault = await self._process.step("redis.append", channel)
        return fault is None and await super().ring(channel, body)

    def _suffer(self, fault: Fault | None) -> None:
        if fault is None:
            return
        match fault.kind:
            case "refused":
                msg = "the simulation refuses Redis' connection"
                raise LiveStreamUnavailable(msg)
            case "flush":
                self._server.flush()
            case "away" | "killed":
                if fault.kind == "killed":
                    self._server.lost()
                else:
                    self._server.go_away()
                back_s = 0.2 + fault.value * 15
                self._world.later(back_s, self._server.come_back)


class SimDoorbell(MemoryDoorbell):
    """The doorbell as one process hears it: in order, a little later, or not at all."""

    def __init__(self, server: MemoryRedis, process: Process, world: World) -> None:
        super().__init__(server)
        self._process = process
        self._world = world
        self._heard_at = 0.0
        self._deaf_until = 0.0

    @contextlib.asynccontextmanager
    async def listen(
        self, channel: str, on_bell: OnBell, on_lost: OnLost | None = None
    ) -> AsyncIterator[bool]:
        """See ``Doorbell.listen``."""
        await self._process.step("redis.read", f"listen {channel}")

        def hear(told: str, body: bytes) -> None:
            if not self._process.is_alive:
                return
            self._world.note(self._process.name, f"bell {told}")
            fault = self._world.bell_fault(self._process)
            now = asyncio.get_running_loop().time()
            if fault is not None and on_lost is not None:
                self._deaf_until = now + 0.1 + fault.value * 3
                self._process.soon(self._deaf_until - now, on_lost)
            if now < self._deaf_until:
                return
            self._heard_at = max(self._heard_at + 1e-6, now + self._world.random.uniform(0, 0.003))
            self._process.soon(self._heard_at - now, on_bell, told, body)

        def lost() -> None:
            if on_lost is not None:
                self._process.soon(0.05, on_lost)

        async with super().listen(channel, hear, lost) as is_heard:
            yield is_heard
