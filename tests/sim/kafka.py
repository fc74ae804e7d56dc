"""An imagined broker: partitions, groups, generations, offsets, and everything that goes wrong.

The batch loops of the house read through it, and its relays publish through it. As in Kafka, order
holds inside a partition, a member that left late cannot store offsets, and a record that was not
acknowledged may be there all the same.
"""

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libs.errors import ChatError, QueueUnavailable
from libs.kafka.loop import BatchLoop
from libs.kafka.publisher import Record
from libs.kafka.records import Partition
from tests.sim.faults import Fault
from tests.sim.process import Process, running
from tests.sim.world import World

PARTITIONS = 3
SESSION_S = 8.0
"""A member that is silent for so long is put out of its group."""

POLL_S = 1.0
MAX_POLL_RECORDS = 64
SEND_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Stored:
    """One record of a partition; implements ``RawRecord``."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


@dataclass(eq=False)
class Group:
    """One consumer group.

    Attributes:
        generation: Counts its assignments; offsets of an older one are refused.
        is_forming: Waits for its members to come back before partitions are given out again.
    """

    topics: tuple[str, ...]
    committed: dict[Partition, int] = field(default_factory=dict)
    members: list["Member"] = field(default_factory=list)
    joined: list["Member"] = field(default_factory=list)
    generation: int = 0
    is_forming: bool = False

    def begin_forming(self) -> None:
        """Ask all members to come back."""
        self.is_forming = True
        self.joined = []

    def complete(self) -> None:
        """Give the partitions out once everybody is back."""
        if not self.is_forming or len(self.joined) < len(self.members):
            return
        self.is_forming = False
        self.generation += 1
        partitions = [(topic, n) for topic in self.topics for n in range(PARTITIONS)]
        for place, member in enumerate(self.members):
            member.generation = self.generation
            mine = partitions[place :: len(self.members)]
            member.positions = {one: self.committed.get(one, 0) for one in mine}


class Broker:
    """All topics and groups of one run.

    Attributes:
        told: Every record that was ever stored, by topic; restarts do not empty it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._logs: dict[Partition, list[Stored]] = {}
        self._groups: dict[str, Group] = {}
        self._away_until = 0.0
        self._changed = asyncio.Event()
        self.told: dict[str, list[bytes]] = {}

    @property
    def is_away(self) -> bool:
        """Whether nobody answers."""
        return asyncio.get_running_loop().time() < self._away_until

    def come_back(self) -> None:
        """Answer again at once."""
        self._away_until = 0.0

    def log(self, partition: Partition) -> list[Stored]:
        """The records of a partition."""
        return self._logs.setdefault(partition, [])

    def group(self, name: str, topics: Sequence[str]) -> Group:
        """The group of that name."""
        return self._groups.setdefault(name, Group(tuple(topics)))

    def store(self, record: Record) -> None:
        """Append a record to its partition and wake who waits for one."""
        number = zlib.crc32(record.key) % PARTITIONS
        log = self.log((record.topic, number))
        log.append(Stored(record.topic, number, len(log), record.key, record.value, record.headers))
        self.told.setdefault(record.topic, []).append(record.value)
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_records(self, timeout_s: float) -> None:
        """Wait until something was stored, or the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def put_out(self, group: Group, member: "Member") -> None:
        """Take a silent member out of its group; it does not know."""
        if member in group.members:
            group.members.remove(member)
            member.generation = -1
            group.begin_forming()

    def restart(self, fault: Fault) -> None:
        """Go away for some seconds; come back with older offsets, or with nothing at all."""
        self._away_until = asyncio.get_running_loop().time() + 0.5 + fault.value * 12
        for log in self._logs.values():
            if fault.kind == "restart_empty":
                log.clear()
        for group in self._groups.values():
            for partition, offset in tuple(group.committed.items()):
                older = max(0, offset - self._world.random.randint(0, 6))
                group.committed[partition] = 0 if fault.kind == "restart_empty" else older
            # Whoever was in the middle of a batch belongs to a generation that nobody knows.
            group.generation += 1
            group.begin_forming()


class Member:
    """One consumer of a process: polls, feeds its batch loop, keeps the group's rules."""

    def __init__(self, broker: Broker, loop: BatchLoop, world: World) -> None:
        self._broker = broker
        self._loop = loop
        self._world = world
        self._process = running()
        self._group = broker.group(loop.handler.consumer, loop.handler.topics)
        self._name = loop.handler.consumer
        self._held: dict[Partition, float] = {}
        self._seen_generation = -1
        self.generation = -1
        self.positions: dict[Partition, int] = {}
        loop.source = self
        self._process.at_death.append(lambda: self._leave_later(SESSION_S))

    def _leave_later(self, delay_s: float) -> None:
        self._world.later(delay_s, self._broker.put_out, self._group, self)

    def paused(self, for_s: float) -> None:
        """The process stands still; its group notices after the session's time."""
        if for_s > SESSION_S:
            self._leave_later(SESSION_S)

    def seek(self, offsets: Mapping[Partition, int]) -> None:
        """See ``RecordSource.seek``."""
        for partition, offset in offsets.items():
            if partition in self.positions:
                self.positions[partition] = offset

    async def commit(self, offsets: Mapping[Partition, int]) -> bool:
        """See ``RecordSource.commit``."""
        fault = await self._process.step("kafka.commit", self._name)
        if self._broker.is_away or (fault is not None and fault.kind == "refused"):
            return False
        if self in self._group.members and self.generation == self._group.generation:
            for partition, offset in offsets.items():
                if partition in self.positions:
                    self._group.committed[partition] = offset
        await self._process.answer()
        return fault is None

    async def run(self) -> None:
        """Poll until the process ends."""
        while True:
            self._loop.note_turn()
            fault = await self._process.step("kafka.poll", self._name)
            if fault is not None:
                self._suffer(fault)
            if self._broker.is_away:
                await asyncio.sleep(0.5)
                continue
            if not await self._is_assigned():
                continue
            records = self._take()
            if records:
                await self._loop(records)
            else:
                await self._loop.commit()
                await self._broker.wait_for_records(POLL_S)

    async def _is_assigned(self) -> bool:
        group = self._group
        if self not in group.members or group.is_forming:
            await self._loop.end_epoch()
            if self not in group.members:
                group.members.append(self)
                group.begin_forming()
            if self not in group.joined:
                group.joined.append(self)
            group.complete()
            if group.is_forming:
                await asyncio.sleep(0.2)
                return False
        return True

    def _take(self) -> list[Stored]:
        now = asyncio.get_running_loop().time()
        taken: list[Stored] = []
        partitions = sorted(self.positions)
        self._world.random.shuffle(partitions)
        room = self._world.random.randint(1, MAX_POLL_RECORDS)
        for partition in partitions:
            if self._held.get(partition, 0.0) > now:
                continue
            log = self._broker.log(partition)
            position = self.positions[partition]
            if position > len(log):  # the topic was made anew
                position = 0
            found = log[position : position + room - len(taken)]
            self.positions[partition] = position + len(found)
            taken += found
        return taken

    def _suffer(self, fault: Fault) -> None:
        match fault.kind:
            case "repeat":
                for partition in self.positions:
                    back = int(1 + fault.value * 6)
                    self.positions[partition] = max(0, self.positions[partition] - back)
            case "delay":
                for partition in self.positions:
                    until = asyncio.get_running_loop().time() + fault.value * 10
                    self._held[partition] = until
            case "rebalance":
                self._group.begin_forming()
            case "evict":
                self._broker.put_out(self._group, self)
            case _:
                self._broker.restart(fault)


class SimPublisher:
    """The producer of one process; implements ``Publisher``."""

    def __init__(self, broker: Broker, process: Process) -> None:
        self._broker = broker
        self._process = process

    async def publish(self, records: Sequence[Record]) -> list[ChatError | None]:
        """See ``Publisher.publish``."""
        fault = await self._process.step("kafka.publish", f"{len(records)}")
        kind = fault.kind if fault is not None else ""
        unknown: list[ChatError | None] = [QueueUnavailable("played") for _ in records]
        if self._broker.is_away or kind == "refused":
            await asyncio.sleep(SEND_TIMEOUT_S)
            return unknown
        stored = records[: len(records) // 2] if kind == "partly" else records
        for record in stored:
            self._broker.store(record)
            if kind == "twice":
                self._broker.store(record)
        await self._process.answer()
        return unknown if kind in ("lost_reply", "partly") else [None for _ in records]
