"""Wires context assembly from the parts it is given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from libs.catalogue import UNLISTED
from libs.errors import MisconfiguredSettings
from libs.tokens import count
from services.context_assembly.core.budget import ModelLimits
from services.context_assembly.core.instructions import SystemPolicy
from services.context_assembly.core.posture import CaptureChoice
from services.context_assembly.core.sections import DEFAULT_RULES, SectionRule
from services.context_assembly.endings import CONSUMER as ENDINGS
from services.context_assembly.endings import EndHandlers
from services.context_assembly.estimates import EstimateWatch
from services.context_assembly.handlers import CONSUMER, TurnHandlers
from services.context_assembly.planning import Policies
from services.context_assembly.postures import PostgresPostures
from services.context_assembly.store import PostgresStore
from services.context_assembly.sweeps import DAY_S, Reteller, Retention, SweepLimits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from libs.catalogue import Catalogue, ModelCard, SectionCard
    from libs.clock import Clock
    from libs.outbox import Relay
    from libs.postgres import Database
    from libs.telemetry.metrics import Metrics
    from libs.telemetry.tracing import Tracing
    from schemas.prompt_plan import Section
    from services.context_assembly.layers import Layer
    from services.context_assembly.ports import CapturePostures
    from services.context_assembly.settings import ContextSettings


LAYERS: Final[tuple[Layer, ...]] = ()
"""What fills summary, memory, retrieved and tools: nobody yet, which costs a turn nothing."""


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
    """Wire the parts of one process.

    Raises:
        MisconfiguredSettings: The policy text has no room in the section of some model.
    """
    check_policy(settings, adapters.catalogue)
    limits = SweepLimits(
        silent_s=settings.retell_after_s, captures_keep_s=settings.captures_keep_days * DAY_S
    )
    default = CaptureChoice(settings.capture_posture, settings.capture_per_mille)
    postures = PostgresPostures(adapters.database, clock=adapters.clock, default=default)
    reteller = Reteller(
        adapters.database,
        adapters.relay,
        clock=adapters.clock,
        limits=limits,
        postures=postures,
    )
    retention = Retention(
        adapters.database,
        clock=adapters.clock,
        limits=limits,
        postures=postures,
    )
    estimates = EstimateWatch(adapters.metrics)
    turns = TurnHandlers(
        PostgresStore(adapters.database, adapters.relay, consumer=CONSUMER),
        policies=policies(settings, adapters.catalogue, postures),
        estimates=estimates,
        clock=adapters.clock,
        metrics=adapters.metrics,
        tracing=adapters.tracing,
    )
    endings = EndHandlers(
        PostgresStore(adapters.database, adapters.relay, consumer=ENDINGS),
        postures=postures,
        estimates=estimates,
        metrics=adapters.metrics,
    )
    background = {
        "retelling": reteller.run,
        "retention": retention.run,
        "postures": postures.run,
    }
    return App(turns, endings, background)


def policies(
    settings: ContextSettings, catalogue: Catalogue, postures: CapturePostures
) -> Policies:
    """The operator's choices, from settings and catalogue."""

    def limits_of(model: str | None) -> ModelLimits:
        card = catalogue.default if model is None else catalogue.model(model)
        return limits_from(card, catalogue.sections(card.name))

    return Policies(
        limits_of=limits_of,
        system=SystemPolicy(settings.system_policy_text, settings.system_policy_version),
        step_limit=timedelta(seconds=settings.step_deadline_s),
        postures=postures,
        layers=LAYERS,
    )


def check_policy(settings: ContextSettings, catalogue: Catalogue) -> None:
    """Refuse a policy text that some model's prompt could not hold within its section.

    Raises:
        MisconfiguredSettings: Names the model, the tokens and the ceiling.
    """
    for name in sorted({*catalogue.names, catalogue.default.name, UNLISTED}):
        ceiling = catalogue.sections(name)["system"].ceiling
        card = catalogue.model(name)
        tokens = count(settings.system_policy_text, card.tokenizer) + card.per_message_overhead
        if ceiling is not None and settings.system_policy_text and tokens > ceiling:
            raise MisconfiguredSettings(
                f"TURNWIRE_CONTEXT_ASSEMBLY__SYSTEM_POLICY_TEXT takes {tokens} tokens; the "
                f"section system of model {name} allows {ceiling}: shorten it, or raise the ceiling"
            )


def limits_from(
    card: ModelCard, sections: Mapping[Section, SectionCard] | None = None
) -> ModelLimits:
    """What planning needs of a model's card and of the sections' shares for it.

    Without shares each section may use what is left, history last.
    """
    return ModelLimits(
        model=card.name,
        window=card.window,
        max_output=card.max_output,
        tokenizer=card.tokenizer,
        per_message_overhead=card.per_message_overhead,
        reply_overhead=card.reply_overhead,
        safety_factor=card.safety_factor,
        alternate_roles=card.alternate_roles,
        sections=DEFAULT_RULES if sections is None else _rules(sections),
    )


def _rules(sections: Mapping[Section, SectionCard]) -> tuple[SectionRule, ...]:
    return tuple(
        SectionRule(name, share.floor, share.ceiling, share.priority)
        for name, share in sections.items()
    )
