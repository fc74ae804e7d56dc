"""Both real consumers of ``turn.events`` over a world in which turns are planned."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from prometheus_client import CollectorRegistry

from libs.clock import SystemClock
from libs.kafka import Delivery
from libs.outbox import OutboxMessage
from libs.postgres import Transaction
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from services.context_assembly.core.budget import ModelLimits
from services.context_assembly.core.instructions import SystemPolicy
from services.context_assembly.core.posture import CaptureChoice
from services.context_assembly.endings import EndHandlers
from services.context_assembly.estimates import EstimateWatch
from services.context_assembly.handlers import TurnHandlers
from services.context_assembly.layers import Layer
from services.context_assembly.planning import Policies
from services.context_assembly.postures import FixedPostures
from tests.rig.planning import LIMITS, World


@dataclass(frozen=True, slots=True)
class Handlers:
    """Both consumers of ``turn.events``, which meet every record one after the other."""

    turns: TurnHandlers
    endings: EndHandlers

    async def handle(self, batch: Sequence[Delivery]) -> None:
        """Plan, then clean up and forget."""
        await self.turns.handle(batch)
        await self.endings.handle(batch)

    async def ending_of(
        self, delivery: Delivery, transaction: Transaction, reason: str
    ) -> Sequence[OutboxMessage]:
        """How the planning consumer ends the turn of a parked record."""
        return await self.turns.ending_of(delivery, transaction, reason)


def handlers(
    world: World,
    *,
    limits: ModelLimits = LIMITS,
    policy: SystemPolicy | None = None,
    registry: CollectorRegistry | None = None,
    postures: FixedPostures | None = None,
    layers: Sequence[Layer] = (),
) -> Handlers:
    """The real handlers over a world's store."""

    def limits_of(model: str | None) -> ModelLimits:
        if model is None or model == limits.model:
            return limits
        return ModelLimits(
            model, 8_192, 1_024, "cl100k_base", 4, 3, safety_factor=1.0, alternate_roles=False
        )

    policies = Policies(
        limits_of=limits_of,
        system=policy or SystemPolicy("", "1"),
        step_limit=timedelta(seconds=180),
        postures=postures or FixedPostures(CaptureChoice("failures", 0)),
        layers=layers,
    )
    metrics = Metrics(registry or CollectorRegistry())
    estimates = EstimateWatch(metrics)
    return Handlers(
        TurnHandlers(
            world.store,
            policies=policies,
            estimates=estimates,
            clock=SystemClock(),
            metrics=metrics,
            tracing=Tracing(),
        ),
        EndHandlers(
            world.store,
            postures=policies.postures,
            estimates=estimates,
            metrics=metrics,
        ),
    )
