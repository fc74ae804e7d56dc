"""Runs ingestion: reads the settings, opens the real adapters, works until SIGTERM."""

import sys

from libs import tokens
from libs.catalogue import Catalogue
from libs.process import Subscription, open_process, redis_check, serve
from libs.redis.live_stream import RedisLiveStream
from libs.service import Lifecycle
from libs.startup import run
from schemas.generations import GenerationCompletedV1
from schemas.requests import TurnRequestedV1
from schemas.steps import StepPlannedV1
from services.ingestion.app import Adapters, build_app
from services.ingestion.settings import IngestionSettings
from services.ingestion.tokens import CatalogueTokens

SERVICE = "ingestion"

STEPS_GATHER_MS = 250
"""That a step was planned only moves its turn to `generating`. Read at once, it would take cores
from the very step it tells of; nobody waits for it: the live stream says so by itself."""


async def work(settings: IngestionSettings) -> None:
    """Open everything, work until SIGTERM or SIGINT, close everything.

    Raises:
        CatalogueInvalid: The catalogue of models cannot be used.
        StoreUnavailable: Postgres did not answer.
    """
    catalogue = Catalogue.load(settings.models_file, default=settings.llm_model)
    tokens.count("", catalogue.default.tokenizer)  # loads it now, not inside the first turn
    async with (
        open_process(SERVICE, settings) as process,
        RedisLiveStream.open(
            settings.redis_url.get_secret_value(),
            errors=process.metrics.live_stream_errors_total,
        ) as live,
    ):
        app = build_app(
            settings,
            Adapters(
                database=process.database,
                relay=process.relay,
                live=live,
                tokens=CatalogueTokens(catalogue),
                clock=process.clock,
                metrics=process.metrics,
                tracing=process.tracing,
            ),
        )
        await serve(
            process,
            [
                Subscription(app.requests, TurnRequestedV1),
                Subscription(app.context, StepPlannedV1, gather_ms=STEPS_GATHER_MS),
                Subscription(app.generation, GenerationCompletedV1),
            ],
            lifecycle=Lifecycle(background=app.background),
            checks={"redis": redis_check(live)},
        )


def _settings() -> IngestionSettings:
    return IngestionSettings()  # type: ignore[call-arg]  # from the environment


def main() -> int:
    """Run; the exit code is 0 after an orderly end, 2 for wrong settings, else 1."""
    return run(SERVICE, _settings, work)


if __name__ == "__main__":
    sys.exit(main())
