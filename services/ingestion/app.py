"""Wires ingestion from the parts it is given."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from libs.clock import Clock
from libs.postgres import Database
from libs.redis.ports import LiveStream
from libs.telemetry.metrics import Metrics
from libs.telemetry.tracing import Tracing
from services.ingestion.accepting import Acceptor, Terms
from services.ingestion.announcer import Announcer
from services.ingestion.cancelling import Canceller
from services.ingestion.core.spots import Rules
from services.ingestion.door_keys import DoorKeys
from services.ingestion.handlers.context_events import ContextEventHandler
from services.ingestion.handlers.generation_events import GenerationEventHandler
from services.ingestion.handlers.requests import RequestHandler
from services.ingestion.ports import HandOver, Models
from services.ingestion.reaper import Reaper, ReaperLimits
from services.ingestion.retelling import Retelling
from services.ingestion.retention import Keep, Retention
from services.ingestion.settings import IngestionSettings
from services.ingestion.settling import Settler
from services.ingestion.shown import Shown
from services.ingestion.stopping import Stopper
from services.ingestion.store import TimeLimits

Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Adapters:
    """The outside world."""

    database: Database
    relay: HandOver
    live: LiveStream
    tokens: Models
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
    canceller: Canceller
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
        tracing=adapters.tracing,
        turn_deadline_s=settings.turn_deadline_s,
    )
    shown = Shown(adapters.database, adapters.live, adapters.tokens)
    stopper = Stopper(settler, shown)
    canceller = Canceller(
        adapters.database, stopper, clock=adapters.clock, grace_s=settings.cancel_grace_s
    )
    reaper = Reaper(
        adapters.database,
        stopper,
        canceller,
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
    retention = Retention(
        adapters.database, clock=adapters.clock, keep=keep, purge_every_s=settings.purge_every_s
    )
    return App(
        requests=_requests(settings, adapters, announcer, canceller),
        context=ContextEventHandler(settler, tracing=adapters.tracing, metrics=adapters.metrics),
        generation=GenerationEventHandler(
            settler,
            adapters.database,
            tokens=adapters.tokens,
            tracing=adapters.tracing,
            metrics=adapters.metrics,
        ),
        canceller=canceller,
        reaper=reaper,
        retelling=retelling,
        background={
            "canceller": canceller.run,
            "reaper": reaper.run,
            "retelling": retelling.run,
            "retention": retention.run,
            "purges": retention.run_purges,
        },
    )


def _requests(
    settings: IngestionSettings, adapters: Adapters, announcer: Announcer, canceller: Canceller
) -> RequestHandler:
    terms = Terms(
        rules=Rules(settings.queue_depth, adapters.tokens.can_continue),
        limits=TimeLimits(
            deadline_s=settings.turn_deadline_s,
            queue_wait_s=settings.queue_wait_s,
            restore_s=settings.restore_within_s,
        ),
        on_marks=canceller.wake,
    )
    acceptor = Acceptor(
        adapters.database,
        adapters.relay,
        announcer,
        tokens=adapters.tokens,
        metrics=adapters.metrics,
        terms=terms,
    )
    return RequestHandler(
        acceptor,
        DoorKeys(adapters.database, adapters.clock),
        master_key=settings.door_master_key.get_secret_value().encode(),
        tracing=adapters.tracing,
    )
