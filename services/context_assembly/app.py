"""Wires context assembly from the parts it is given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from services.context_assembly.core.budget import ModelLimits
from services.context_assembly.core.plan import SystemPolicy
from services.context_assembly.endings import CONSUMER as ENDINGS
from services.context_assembly.endings import EndHandlers
from services.context_assembly.estimates import EstimateWatch
from services.context_assembly.handlers import CONSUMER, TurnHandlers
from services.context_assembly.planning import Policies
from services.context_assembly.store import PostgresStore
from services.context_assembly.sweeps import DAY_S, Reteller, Retention, SweepLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from libs.catalogue import Catalogue, ModelCard
    from libs.clock import Clock
    from libs.outbox import Relay
    from libs.postgres import Database
    from libs.telemetry.metrics import Metrics
    from libs.telemetry.tracing import Tracing
    from services.context_assembly.settings import ContextSettings


@dataclass(frozen=True, slots=True)
class Adapters:
    """The outside world."""

    database: Database
    relay: Relay
    catalogue: Catalogue
    clock: Clock
    metrics: Metrics
    tracing: Tracing


@dataclass(frozen=True, slots=True)
class App:
    """The service's own parts; what runs them is the frame's business.

    Attributes:
        background: Name -> work that runs until cancelled.
    """

    turns: TurnHandlers
    endings: EndHandlers
    background: Mapping[str, Callable[[], Awaitable[None]]]


def build_app(settings: ContextSettings, adapters: Adapters) -> App:
    """Wire the parts of one process."""
    limits = SweepLimits(
        silent_s=settings.retell_after_s, captures_keep_s=settings.captures_keep_days * DAY_S
    )
    reteller = Reteller(
        adapters.database,
        adapters.relay,
        clock=adapters.clock,
        limits=limits,
        sampled_per_mille=settings.capture_per_mille,
    )
    retention = Retention(
        adapters.database,
        clock=adapters.clock,
        limits=limits,
        sampled_per_mille=settings.capture_per_mille,
    )
    estimates = EstimateWatch(adapters.metrics)
    turns = TurnHandlers(
        PostgresStore(adapters.database, adapters.relay, consumer=CONSUMER),
        policies=policies(settings, adapters.catalogue),
        estimates=estimates,
        clock=adapters.clock,
        metrics=adapters.metrics,
        tracing=adapters.tracing,
    )
    endings = EndHandlers(
        PostgresStore(adapters.database, adapters.relay, consumer=ENDINGS),
        estimates=estimates,
        metrics=adapters.metrics,
        sampled_per_mille=settings.capture_per_mille,
    )
    return App(turns, endings, {"retelling": reteller.run, "retention": retention.run})


def policies(settings: ContextSettings, catalogue: Catalogue) -> Policies:
    """The operator's choices, from settings and catalogue."""

    def limits_of(model: str | None) -> ModelLimits:
        return limits_from(catalogue.default if model is None else catalogue.model(model))

    return Policies(
        limits_of=limits_of,
        system=SystemPolicy(settings.system_policy_text, settings.system_policy_version),
        step_limit=timedelta(seconds=settings.step_deadline_s),
    )


def limits_from(card: ModelCard) -> ModelLimits:
    """What planning needs of a model's card."""
    return ModelLimits(
        model=card.name,
        window=card.window,
        max_output=card.max_output,
        tokenizer=card.tokenizer,
        per_message_overhead=card.per_message_overhead,
        reply_overhead=card.reply_overhead,
        safety_factor=card.safety_factor,
        alternate_roles=card.alternate_roles,
    )
