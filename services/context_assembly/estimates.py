"""Compares a plan's token count with what the provider counted, once the turn has ended."""

from collections import OrderedDict
from uuid import UUID

from libs.telemetry.metrics import Metrics
from schemas.turns import TurnEndedV1
from services.context_assembly.core.plan import PromptPlan

MAX_REMEMBERED = 10_000
"""Plans remembered until their turns end; a turn takes seconds, so this is minutes of work."""


class EstimateWatch:
    """Remembers plans of this process; a turn planned by another one is not compared.

    Records of one conversation come to one process, so nearly all are. What is missed is one
    observation of a metric.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._planned: OrderedDict[UUID, tuple[str, int]] = OrderedDict()

    def planned(self, turn_id: UUID, plan: PromptPlan) -> None:
        """A plan was committed."""
        self._planned[turn_id] = (plan.limits.model, plan.tokens)
        if len(self._planned) > MAX_REMEMBERED:
            self._planned.popitem(last=False)

    def ended(self, turn_id: UUID, end: TurnEndedV1) -> None:
        """A turn has ended; compared only where the provider counted its input itself."""
        known = self._planned.pop(turn_id, None)
        if known is None or end.usage is None or end.usage.estimated or end.usage.input == 0:
            return
        model, tokens = known
        if tokens > 0:
            ratio = end.usage.input / tokens
            self._metrics.plan_token_estimate_ratio.labels(model).observe(ratio)
