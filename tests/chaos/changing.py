"""Habits that change what was asked: cancel, edit, answer again, go on, delete, choose a policy."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, get_args

from libs.ids import message_id
from schemas.requests import Policy
from tests.chaos.caller import UNHURRIED, Caller, Desk, LoadTurn, log_of
from tests.rig.asking import is_refused, wish
from tests.rig.ledger import SAYING, Act, ActKind, Ledger, PostKind

HABITS: Mapping[str, int] = {
    "cancelling": 6,
    "editing": 1,
    "regenerating": 1,
    "continuing": 1,
    "forgetting": 1,
    "restoring": 1,
    "choosing": 1,
}
"""What a client does to its turn, in parts of a hundred of all turns.

``cancelling`` at any moment, from before the start of a turn that waits to after its end;
``editing`` what it said, ``regenerating`` the answer, ``continuing`` an answer that it cancelled;
``forgetting`` deletes a message; ``restoring`` deletes a conversation of its own and takes it back;
``choosing`` sends more messages at once, under other policies.
"""

UNHURRIED_HABITS = frozenset({"continuing", "choosing"})
"""Those that need an answer which is still being written when they do something to it."""

POLICIES: tuple[Policy, ...] = tuple(one for one in get_args(Policy) if one != "serialize")

CHANGES = (
    *("cancel", "edit", "regenerate", "continue", "delete_message", "delete", "restore"),
    *POLICIES,
)
"""Everything that a run of some size must have seen done, as ``changes_in`` counts it."""

MOMENT_S = (0.0, 5.0)
"""When something is done to a turn: an unhurried answer takes about four seconds."""

SHORT_MOMENT_S = (0.0, 0.8)
"""Likewise where the answer is short: about as often before its start as after its end."""

WAITING_SHARE = 0.3
"""Share of the cancelled turns that wait behind another one."""

POLICIES_AT_ONCE = 2
AWAY_S = (0.0, 2.0)
"""How long a conversation stays deleted."""


def changes_in(ledgers: Iterable[Ledger]) -> Counter[str]:
    """What was changed, by kind and by policy: accepted, done or, under ``reject``, refused."""
    found: Counter[str] = Counter()
    for ledger in ledgers:
        for post in ledger.posts:
            is_refusal = any(is_refused(post, reply) for reply in post.replies)
            found[wish(post)] += is_refusal if wish(post) == "reject" else post.accepted is not None
        found.update(act.kind for act in ledger.acts if act.is_done)
    return Counter({kind: count for kind, count in found.items() if kind in CHANGES})


class Changes:
    """What one caller does to turns of its own."""

    def __init__(self, caller: Caller, desk: Desk) -> None:
        self._caller = caller
        self._desk = desk

    async def play(self, turn: LoadTurn, dice: random.Random) -> None:
        """Send the turn's message, change something, and see the end of everything."""
        habits = {
            "cancelling": self._cancelling,
            "editing": self._editing,
            "regenerating": self._regenerating,
            "continuing": self._continuing,
            "forgetting": self._forgetting,
            "restoring": self._restoring,
            "choosing": self._choosing,
        }
        await habits[turn.habit](turn, dice)

    async def _cancelling(self, turn: LoadTurn, dice: random.Random) -> None:
        caller, ahead = self._caller, None
        if dice.random() < WAITING_SHARE:
            ahead = self._another(turn, dice, manner=UNHURRIED)
            await caller.send(ahead, dice)
        await caller.send(turn, dice)
        is_slow = ahead is not None or UNHURRIED in turn.post.text
        moment_s = dice.uniform(*(MOMENT_S if is_slow else SHORT_MOMENT_S))
        cancel = self._act(turn, "cancel", dice)
        works = [self._follow(turn, dice), self._do(cancel, dice, after_s=moment_s)]
        if ahead is not None:
            works.append(self._follow(ahead, dice))
        await _at_once(*works)

    async def _editing(self, turn: LoadTurn, dice: random.Random) -> None:
        await self._caller.send(turn, dice)
        if dice.random() < 0.5:
            await self._follow(turn, dice)
        await self._ask(self._another(turn, dice, kind="edit"), dice)
        await self._follow(turn, dice)

    async def _regenerating(self, turn: LoadTurn, dice: random.Random) -> None:
        await self._caller.send(turn, dice)
        if dice.random() < 0.5:
            await self._follow(turn, dice)
        await self._ask(self._another(turn, dice, kind="regenerate"), dice)
        await self._follow(turn, dice)

    async def _continuing(self, turn: LoadTurn, dice: random.Random) -> None:
        """Cancel when something was shown, and go on from there."""
        caller = self._caller
        await caller.send(turn, dice)
        log = log_of(turn)
        await caller.read(turn, log, place=dice.randrange(2), at_most=dice.randint(4, 40))
        await self._do(self._act(turn, "cancel", dice), dice)
        await self._follow(turn, dice)
        await self._ask(self._another(turn, dice, kind="continue"), dice)

    async def _forgetting(self, turn: LoadTurn, dice: random.Random) -> None:
        """Delete the question or the answer; while it is being written that may be refused."""
        await self._caller.send(turn, dice)
        if dice.random() < 0.5:
            await self._follow(turn, dice)
        turn.may_be_gone = True
        act = self._act(turn, "delete_message", dice)
        deleting = self._do(act, dice, after_s=dice.uniform(*SHORT_MOMENT_S))
        await _at_once(self._follow(turn, dice), deleting)
        if turn.ended_s is None:
            await self._caller.poll(turn, dice)  # its answer is gone, the turn itself is not
        if not act.is_done:
            await self._do(Act(act.kind, act.conversation_id, act.target), dice)

    async def _restoring(self, turn: LoadTurn, dice: random.Random) -> None:
        """In a conversation of its own: others would be told that theirs is not there."""
        caller = self._caller
        turn.may_be_gone = True
        turn.post.conversation_id = await caller.conversation(dice)
        await caller.send(turn, dice)
        moment_s = dice.uniform(*SHORT_MOMENT_S)
        delete = self._do(self._act(turn, "delete", dice), dice, after_s=moment_s)
        await _at_once(self._follow(turn, dice), delete)
        restore = self._act(turn, "restore", dice)
        await self._do(restore, dice, after_s=dice.uniform(*AWAY_S))
        log_of(turn).gone = None
        await self._follow(turn, dice)
        await self._ask(self._another(turn, dice), dice)

    async def _choosing(self, turn: LoadTurn, dice: random.Random) -> None:
        await self._caller.send(turn, dice)
        works = [self._follow(turn, dice)]
        for policy in dice.sample(POLICIES, POLICIES_AT_ONCE):
            works.append(self._ask(self._another(turn, dice, policy=policy), dice))
        await _at_once(*works)

    # The parts of it

    def _another(
        self,
        turn: LoadTurn,
        dice: random.Random,
        *,
        kind: PostKind = "message",
        policy: Policy | None = None,
        manner: str = "",
    ) -> LoadTurn:
        """One more turn of the same conversation; of all but messages ``turn`` is the target."""
        post = self._caller.note(turn.post.conversation_id, dice, manner=manner)
        post.kind, post.policy = kind, policy
        turn_id = turn.post.turn_id
        if kind not in SAYING:
            post.text = ""
        if kind != "message":
            assert turn_id is not None, "a turn is changed after it was accepted"
            post.target = message_id(turn_id, "user") if kind == "edit" else turn_id
        return LoadTurn(turn.habit, post, self._desk.now_s(), may_be_gone=turn.may_be_gone)

    async def _ask(self, turn: LoadTurn, dice: random.Random) -> None:
        """Send it, and see its end where it was accepted."""
        await self._caller.send(turn, dice)
        if turn.is_accepted:
            await self._follow(turn, dice)

    async def _follow(self, turn: LoadTurn, dice: random.Random) -> None:
        await self._caller.follow(turn, dice, place=dice.randrange(2))

    def _act(self, turn: LoadTurn, kind: ActKind, dice: random.Random) -> Act:
        """Something to be done to the turn, or to what it belongs to."""
        turn_id = turn.post.turn_id
        assert turn_id is not None, "a turn is changed after it was accepted"
        conversation = target = turn.post.conversation_id
        if kind == "cancel":
            target = turn_id
        elif kind == "delete_message":
            target = message_id(turn_id, dice.choice(("user", "assistant")))
        return Act(kind, conversation, target)

    async def _do(self, act: Act, dice: random.Random, *, after_s: float = 0.0) -> None:
        await self._desk.stare(after_s * self._desk.pace)
        await self._caller.act(act, dice)


async def _at_once(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of it; the first that fails ends the others, and is what is told."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
