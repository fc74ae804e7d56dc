"""Wires ingestion from the parts it is given."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from libs.clock import Clock
from libs.postgres import Database
from libs.redis.ports import LiveStream
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from services.ingestion.accepting import Acceptor
from services.ingestion.announcer import Announcer
from services.ingestion.door_keys import DoorKeys
from services.ingestion.handlers.context_events import ContextEventHandler
from services.ingestion.handlers.generation_events import GenerationEventHandler
from services.ingestion.handlers.requests import RequestHandler
from services.ingestion.ports import HandOver, Tokens
from services.ingestion.reaper import Reaper, ReaperLimits
from services.ingestion.retelling import Retelling
from services.ingestion.retention import Keep, Retention
from services.ingestion.settings import IngestionSettings
from services.ingestion.settling import Settler
from services.ingestion.shown import Shown

Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Adapters:
    """The outside world."""

    database: Database
    relay: HandOver
    live: LiveStream
    tokens: Tokens
    clock: Clock
    metrics: Metrics
    tracing: Tracing


@dataclass(frozen=True, slots=True)
class App:
    """The service's own parts; what runs them is the frame's business.

    Attributes:
        background: Name -> work that runs until cancelled.
    """

    requests: RequestHandler
    context: ContextEventHandler
    generation: GenerationEventHandler
    reaper: Reaper
    retelling: Retelling
    background: Mapping[str, Work]


def build_app(settings: IngestionSettings, adapters: Adapters) -> App:
    """Wire the parts of one process."""
    announcer = Announcer(adapters.live)
    settler = Settler(
        adapters.database,
        adapters.relay,
        announcer,
        metrics=adapters.metrics,
        turn_deadline_s=settings.turn_deadline_s,
    )
    reaper = Reaper(
        adapters.database,
        settler,
        Shown(adapters.database, adapters.live, adapters.tokens),
        clock=adapters.clock,
        metrics=adapters.metrics,
        limits=ReaperLimits(grace_s=settings.reap_after_s, every_s=settings.limits.sweep_s),
    )
    retelling = Retelling(
        adapters.database,
        adapters.relay,
        clock=adapters.clock,
        metrics=adapters.metrics,
        silence_s=settings.retell_after_s,
    )
    keep = Keep(settings.outcomes_keep_s, settings.inbox_keep_s, settings.dead_letters_keep_s)
    retention = Retention(adapters.database, clock=adapters.clock, keep=keep)
    return App(
        requests=_requests(settings, adapters, announcer),
        context=ContextEventHandler(settler, tracing=adapters.tracing, metrics=adapters.metrics),
        generation=GenerationEventHandler(
            settler,
            adapters.database,
            tokens=adapters.tokens,
            tracing=adapters.tracing,
            metrics=adapters.metrics,
        ),
        reaper=reaper,
        retelling=retelling,
        background={
            "reaper": reaper.run,
            "retelling": retelling.run,
            "retention": retention.run,
        },
    )


def _requests(
    settings: IngestionSettings, adapters: Adapters, announcer: Announcer
) -> RequestHandler:
    acceptor = Acceptor(
        adapters.database,
        adapters.relay,
        announcer,
        tokens=adapters.tokens,
        metrics=adapters.metrics,
        turn_deadline_s=settings.turn_deadline_s,
    )
    return RequestHandler(
        acceptor,
        DoorKeys(adapters.database, adapters.clock),
        master_key=settings.door_master_key.get_secret_value().encode(),
        tracing=adapters.tracing,
    )
