"""What operators do beside the clients: put messages away, bring them back, instruct the model."""

import asyncio
import random
from collections.abc import Sequence
from typing import Literal
from uuid import UUID

from libs.errors import StoreUnavailable
from services.ops.archive import Archive
from services.ops.failures import CommandFailed
from tests.rig.ledger import canary_of
from tests.sim.client import SimClient
from tests.sim.postgres import SimDatabase, Store
from tests.sim.world import World

Move = Literal["archive", "unarchive", "instruct"]
MOVES: tuple[Move, ...] = ("archive", "archive", "unarchive", "instruct", "instruct")
MOST_MOVES = 6
PAUSE_S = (0.0, 6.0)
"""A run's clients talk for about half a minute."""

OLDER_THAN_S = (0.0, 15.0)
WHOLE_SHARE = 0.5
"""Share of the archivings that put away everything which is old enough."""

LENGTHS = (0, 2, 12, 40, 80)
"""Words of an instruction: none takes it back, the most are more than some models have room for."""

WORDS = (
    "briefly",
    "öre",
    "in verse",
    "夜",
    "as a list",
    "never",
    "politely",
    "🙂",
    "quote",
    "tide",
)

PLACES = (("system_policy", False), ("workspace", False), ("workspace", True))
"""Kinds of instructions, and whether they are of one conversation rather than of the tenant."""


class Operator:
    """Somebody with the operators' role and the tenants' keys; its own dice, as ``Changes`` has."""

    def __init__(
        self, world: World, store: Store, dice: random.Random, clients: Sequence[SimClient]
    ) -> None:
        self._world = world
        self._dice = dice
        self._clients = clients
        self._store = store

    async def work(self) -> None:
        """Do some things, one after the other; what fails is not tried again."""
        archive = Archive(SimDatabase(self._store, "ops"))
        for _ in range(self._dice.randint(0, MOST_MOVES)):
            await asyncio.sleep(self._dice.uniform(*PAUSE_S))
            move = self._dice.choice(MOVES)
            with self._world.during(move):
                await self._do(move, archive)

    async def _do(self, move: Move, archive: Archive) -> None:
        if move == "instruct":
            await self._instruct()
            return
        try:
            moved = await (self._put_away if move == "archive" else self._bring_back)(archive)
        except (StoreUnavailable, CommandFailed):
            return  # the database was away, or a turn is open: as its command says
        if moved:
            self._world.use("operator", move)

    async def _put_away(self, archive: Archive) -> int:
        found = await archive.candidates(self._dice.uniform(*OLDER_THAN_S))
        if not found:
            return 0
        old = self._dice.choice(found)
        is_whole = self._dice.random() < WHOLE_SHARE
        below = old.below if is_whole else self._dice.randint(1, old.below)
        return await archive.put_away(old.conversation_id, below)

    async def _bring_back(self, archive: Archive) -> int:
        known = self._conversations(self._dice.choice(self._clients))
        return await archive.bring_back(self._dice.choice(known)) if known else 0

    async def _instruct(self) -> None:
        client = self._dice.choice(self._clients)
        kind, is_of_one = self._dice.choice(PLACES)
        known = self._conversations(client)
        words = self._dice.choices(WORDS, k=self._dice.choice(LENGTHS))
        text = " ".join([canary_of(client.ledger.tenant_id), *words]) if words else ""
        if is_of_one and not known:
            return
        conversation = self._dice.choice(known) if is_of_one else None
        if await client.instruct(conversation, kind, text):
            self._world.use("operator", "instruct")

    def _conversations(self, client: SimClient) -> list[UUID]:
        return list(dict.fromkeys(post.conversation_id for post in client.ledger.posts))
