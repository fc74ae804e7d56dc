"""Faults of the model's provider, and how it answers while it is well."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.chaos.caller import AT_LENGTH, LOTS, UNHURRIED
from tests.chaos.fault import Fault
from tests.chaos.faults_network import resource
from tests.rig.provider import Rule, ScriptedProvider
from tests.rig.provider_answers import Events

if TYPE_CHECKING:
    from tests.chaos.house import ChaosHouse

NORMAL = Rule(echo=True, echo_chars=12, delay_ms=15)
"""A message of 60 words comes back in some 25 deltas."""

LONG = Rule(match=AT_LENGTH, deltas=("tide and ember, salt and öre; " * 34,) * 200, delay_ms=20)
"""200 deltas of 1 KiB in 4 s: more than the buffers between a gateway and a reader who waits."""

UNHURRIED_ONE = Rule(match=UNHURRIED, tokens=60, first_delay_ms=200, delay_ms=65)
"""60 small deltas in 4 s, so that something can be done to a turn before it ends."""

FAULTY_S = 8.0
REFUSING_S = 4.0
"""Longer than an attempt's three requests with their pauses, so that some turns fail of it."""

EDGE = "llm_gateway-provider"
SOME_LOTS = (1, 3)
"""A fault strikes so many of the ``LOTS`` tenths of the messages."""

MANY_BYTES = ("夜の港", "öre ", "🙂", "Straße ", "каюта ", "mañana ")
"""Deltas of which every one holds a character of several bytes."""


def be_well(provider: ScriptedProvider) -> None:
    """Answer as on a good day."""
    provider.default(NORMAL)
    provider.script(LONG, UNHURRIED_ONE)


@dataclass(slots=True)
class Scripted:
    """Messages of some lots are answered by another rule until it is withdrawn.

    Attributes:
        rule_of: Draws the rule; what it matches is added here.
        cuts: Whether answers that still run at the end are cut, because they would never end.
    """

    kind: str
    rule_of: Callable[[random.Random], Rule]
    duration_s: float = FAULTY_S
    cuts: bool = False
    rules: tuple[Rule, ...] = ()
    asked_before: int = 0

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Add the rules. An earlier fault of the same lot wins while it lasts."""
        lots = sorted(dice.sample(range(LOTS), dice.randint(*SOME_LOTS)))
        rule = self.rule_of(dice)
        self.rules = tuple(replace(rule, match=f"lot-{lot} ") for lot in lots)
        house.provider.script(*self.rules)
        return "provider, lots " + ", ".join(map(str, lots))

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Take the rules back and end what hangs; tells how many answers that were running."""
        running = [house.provider.withdraw(rule, cut=self.cuts) for rule in self.rules]
        answered = sum(house.provider.times_used(rule) for rule in self.rules)
        house.provider.release()
        return {"answers": answered, "still_running": sum(running)}


@dataclass(slots=True)
class ProviderRefuses:
    """Nobody is at the provider's address."""

    kind: str = "provider_refusing"
    duration_s: float = REFUSING_S

    async def inject(self, house: ChaosHouse, dice: random.Random) -> str:
        """Close the door, for all."""
        del dice
        await house.hold(resource(EDGE))
        house.edges[EDGE].refuse()
        return "provider"

    async def heal(self, house: ChaosHouse) -> dict[str, int]:
        """Open it."""
        await house.edges[EDGE].restore()
        house.let_go(resource(EDGE))
        return {}


def throttling(dice: random.Random) -> Rule:
    """Status 429, mostly with a time to wait."""
    headers = dice.choice(({"Retry-After": "1"}, {"retry-after-ms": "300"}, {}))
    return Rule(status=429, headers=headers, error={"message": "slow", "type": "rate_limit_error"})


def failing(dice: random.Random) -> Rule:
    """Status 500 or 503, or an error object where deltas should come."""
    error = {"message": "scripted", "type": "server_error", "code": "500"}
    if dice.random() < 0.5:
        return Rule(status=dice.choice((500, 503)), error=error)
    return Rule(deltas=MANY_BYTES, delay_ms=10, error=error, error_after=dice.randint(0, 5))


def hanging(dice: random.Random) -> Rule:
    """Silence instead of a head, or after some deltas."""
    if dice.random() < 0.3:
        return Rule(tokens=8, hang_before_head=True)
    return Rule(deltas=MANY_BYTES * 2, delay_ms=10, hang_after=dice.randint(0, 11))


def cutting(dice: random.Random) -> Rule:
    """A reset after some deltas, or an end of the body that is too early."""
    after = dice.randint(0, 11)
    if dice.random() < 0.3:
        return Rule(deltas=MANY_BYTES * 2, delay_ms=20, end_after=after)
    return Rule(deltas=MANY_BYTES * 2, delay_ms=20, cut_after=after)


def cutting_inside_a_character(dice: random.Random) -> Rule:
    """A reset between two bytes of one character."""
    deltas = [dice.choice(MANY_BYTES) for _ in range(12)]
    rule = Rule(deltas=deltas, delay_ms=20)
    return replace(rule, reset_at_byte=inside_a_character(rule, dice.randrange(len(deltas))))


def inside_a_character(rule: Rule, delta: int) -> int:
    """How many bytes of the answer's events come before the middle of a character of a delta."""
    events, deltas = Events(rule.line_end), list(rule.deltas or ())
    before = len(events.choice({"role": "assistant", "content": ""}))
    before += sum(len(events.choice({"content": text})) for text in deltas[:delta])
    raw = events.choice({"content": deltas[delta]})
    return before + next(at for at, byte in enumerate(raw) if byte >= 0x80) + 1


def never_ending(dice: random.Random) -> Rule:
    """Deltas for ever."""
    return Rule(deltas=MANY_BYTES, delay_ms=dice.uniform(20, 60), never_ends=True)


def slow(dice: random.Random) -> Rule:
    """A long wait before the head, and between deltas."""
    return Rule(
        deltas=MANY_BYTES * 2,
        first_delay_ms=dice.uniform(500, 2_000),
        delay_ms=dice.uniform(100, 400),
    )


FAULTS: Mapping[str, Callable[[random.Random], Fault]] = {
    "provider_refusing": lambda _: ProviderRefuses(),
    "provider_429": lambda _: Scripted("provider_429", throttling),
    "provider_failing": lambda _: Scripted("provider_failing", failing),
    "provider_hanging": lambda _: Scripted("provider_hanging", hanging),
    "provider_cut": lambda _: Scripted("provider_cut", cutting),
    "provider_cut_in_character": lambda _: Scripted(
        "provider_cut_in_character", cutting_inside_a_character
    ),
    "provider_never_ending": lambda _: Scripted("provider_never_ending", never_ending, cuts=True),
    "provider_slow": lambda _: Scripted("provider_slow", slow),
}
"""How a fault of each kind is made."""
