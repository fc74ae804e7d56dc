"""What clients do beside talking: cancel, edit, answer again, continue, delete, choose a policy."""

import asyncio
import random
from collections.abc import Callable
from uuid import UUID

from libs.ids import message_id
from tests.rig.ledger import Act, ActKind, Post, PostKind
from tests.sim.client import SimClient
from tests.sim.world import World

POLICIES = ("queue", "reject", "replace", "branch")
POLICY_SHARE = 0.4
CANCEL_SHARE = 0.4
CANCEL_WITHIN_S = 3.0
"""About as long as a turn of a run takes from its message to its end."""

MOST_CHANGES = 3
"""So many things at most are changed while the next messages are said, or after the last."""

CHANGES: tuple[PostKind | ActKind, ...] = (
    *("edit", "edit"),
    *("regenerate", "regenerate"),
    *("continue", "continue"),
    "delete_message",
)
MODELS = ("narrow", "alternating")
"""Those of ``models.toml`` with little room; who names none gets the one with much."""

MODEL_SHARE = 0.5
UNFINISHED = ("partial", "cancelled")
DELETE_SHARE = 0.3
RESTORE_SHARE = 0.6
PURGED_WITHIN_S = 15.0
"""A conversation that is not restored is purged by then, while faults may still strike."""


class Changes:
    """The changes of one run; its own dice, so that the talk beside it stays as it was."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self._world = world
        self._dice = dice

    def policy(self) -> str | None:
        """The policy that a message names, in some cases."""
        if self._dice.random() > POLICY_SHARE:
            return None
        self._world.use("client", "policy")
        return self._dice.choice(POLICIES)

    def model(self) -> str | None:
        """The model that a message names, in some cases."""
        if self._dice.random() > MODEL_SHARE:
            return None
        self._world.use("client", "model")
        return self._dice.choice(MODELS)

    async def follow(self, client: SimClient, post: Post, leaves_after: int | None) -> None:
        """Read the stream, and cancel the turn meanwhile in some cases."""
        if post.turn_id is None:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(client.follow(post, leaves_after=leaves_after))
            if self._dice.random() < CANCEL_SHARE:
                group.create_task(self._cancel(client, post))

    async def _cancel(self, client: SimClient, post: Post) -> None:
        assert post.turn_id is not None
        await asyncio.sleep(self._dice.uniform(0, CANCEL_WITHIN_S))
        await self._act(client, "cancel", post.conversation_id, post.turn_id)

    async def change(self, client: SimClient, conversation: UUID, say: Callable[[], str]) -> None:
        """Change some things that were said or answered before, one after the other."""
        for _ in range(self._dice.randint(0, MOST_CHANGES)):
            await asyncio.sleep(self._dice.uniform(0, 1))
            await self._change(client, conversation, say)

    async def _change(self, client: SimClient, conversation: UUID, say: Callable[[], str]) -> None:
        posts = [one for one in client.ledger.posts if one.conversation_id == conversation]
        asked = [one for one in posts if one.turn_id is not None]
        if not asked:
            return
        kind = self._dice.choice(CHANGES)
        if kind == "continue":
            asked = [one for one in asked if _status(one) in UNFINISHED] or asked
        post = self._dice.choice(asked)
        turn = post.turn_id
        assert turn is not None
        if kind == "delete_message":
            role = self._dice.choice(("user", "assistant"))
            message = message_id(turn, role)
            await self._act(client, "delete_message", conversation, message)
            return
        assert kind in ("edit", "regenerate", "continue")
        self._world.use("client", kind)
        new = client.note(conversation, say() if kind == "edit" else "")
        new.kind = kind
        new.target = message_id(turn, "user") if kind == "edit" else turn
        new.policy = self.policy()
        new.model = self.model()
        await client.send(new)
        await self.follow(client, new, None)

    async def leave(self, client: SimClient, conversation: UUID, say: Callable[[], str]) -> None:
        """Change some more, then delete the conversation in some cases, and often restore it."""
        await self.change(client, conversation, say)
        if self._dice.random() > DELETE_SHARE:
            return
        last = client.note(conversation, say())
        await client.send(last)
        await asyncio.sleep(self._dice.uniform(0, CANCEL_WITHIN_S))
        with self._world.during("delete"):
            await self._act(client, "delete", conversation, conversation)
            await asyncio.sleep(self._dice.uniform(0, CANCEL_WITHIN_S))
            if self._dice.random() < RESTORE_SHARE:
                with self._world.during("restore"):
                    if await self._act(client, "restore", conversation, conversation):
                        await self._go_on(client, conversation, say)
                    await client.follow(last)
                return
            await client.follow(last)
            await asyncio.sleep(self._dice.uniform(0, PURGED_WITHIN_S))

    async def _go_on(self, client: SimClient, conversation: UUID, say: Callable[[], str]) -> None:
        """Say one thing more in a conversation that is there again.

        Its deletion may come once more where it was asked for twice: then this is refused, as a
        message may be that names a policy.
        """
        post = client.note(conversation, say())
        post.policy = "queue"
        await client.send(post)
        if post.turn_id is not None:
            await client.follow(post)

    async def _act(
        self, client: SimClient, kind: ActKind, conversation: UUID, target: UUID
    ) -> bool:
        """Do something; whether it was done."""
        self._world.use("client", kind)
        act = Act(kind, conversation, target)
        await client.act(act)
        return act.is_done


def _status(post: Post) -> str | None:
    done = None if post.stream is None else post.stream.done
    return None if done is None else str(done["status"])
