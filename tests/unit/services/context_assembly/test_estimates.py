"""The provider's count against the plan's."""

from dataclasses import dataclass
from typing import cast
from uuid import UUID, uuid4

from prometheus_client import CollectorRegistry

from libs.telemetry.metrics import Metrics
from schemas.turns import TurnEndedV1
from schemas.usage import Usage
from services.context_assembly.core.plan import PromptPlan
from services.context_assembly.estimates import MAX_REMEMBERED, EstimateWatch


@dataclass(frozen=True)
class Limits:
    model: str = "scripted"


@dataclass(frozen=True)
class Plan:
    """What the watch reads of a plan."""

    tokens: int
    limits: Limits = Limits()


class Watch:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.watch = EstimateWatch(Metrics(self.registry))

    def plan(self, turn: UUID, tokens: int) -> None:
        self.watch.planned(turn, cast("PromptPlan", Plan(tokens)))

    def end(self, turn: UUID, usage: Usage | None) -> None:
        self.watch.ended(turn, TurnEndedV1(status="completed", length=1, usage=usage))

    def seen(self) -> tuple[float, float]:
        name, labels = "turnwire_plan_token_estimate_ratio", {"model": "scripted"}
        count = self.registry.get_sample_value(f"{name}_count", labels) or 0
        return count, self.registry.get_sample_value(f"{name}_sum", labels) or 0


def test_a_counted_turn_is_compared_once() -> None:
    watch, turn = Watch(), uuid4()
    watch.plan(turn, 200)

    watch.end(turn, Usage(input=250, output=9))
    watch.end(turn, Usage(input=250, output=9))

    assert watch.seen() == (1, 1.25)


def test_an_estimate_or_an_unknown_turn_compares_nothing() -> None:
    watch, turn = Watch(), uuid4()
    watch.plan(turn, 200)

    watch.end(turn, Usage(input=250, output=9, estimated=True))
    watch.end(uuid4(), Usage(input=250, output=9))
    watch.end(turn, None)

    assert watch.seen() == (0, 0)


def test_plans_of_turns_that_never_end_are_forgotten() -> None:
    watch, first = Watch(), uuid4()
    watch.plan(first, 200)
    for _ in range(MAX_REMEMBERED):
        watch.plan(uuid4(), 200)

    watch.end(first, Usage(input=250, output=9))

    assert watch.seen() == (0, 0)
