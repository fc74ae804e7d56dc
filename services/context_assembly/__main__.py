"""Runs context assembly: reads the settings, opens the real adapters, works until SIGTERM."""

import sys

from libs import tokens
from libs.catalogue import Catalogue
from libs.process import Subscription, open_process, serve
from libs.service import Lifecycle
from libs.startup import run
from schemas.turns import TurnEndedV1, TurnStartedV1
from services.context_assembly.app import Adapters, build_app
from services.context_assembly.settings import ContextSettings

SERVICE = "context_assembly"

ENDS_GATHER_MS = 500
"""Cleaning up after a turn is in no hurry, and every fetch costs the broker a millisecond."""


async def work(settings: ContextSettings) -> None:
    """Open everything, work until SIGTERM or SIGINT, close everything.

    Raises:
        CatalogueInvalid: The catalogue of models cannot be used.
        StoreUnavailable: Postgres did not answer.
    """
    catalogue = Catalogue.load(settings.models_file, default=settings.llm_model)
    tokens.count("", catalogue.default.tokenizer)  # loads it now, not inside the first turn
    async with open_process(SERVICE, settings) as process:
        app = build_app(
            settings,
            Adapters(
                database=process.database,
                relay=process.relay,
                catalogue=catalogue,
                clock=process.clock,
                metrics=process.metrics,
                tracing=process.tracing,
            ),
        )
        await serve(
            process,
            [
                Subscription(app.turns, TurnStartedV1),
                Subscription(app.endings, TurnEndedV1, gather_ms=ENDS_GATHER_MS),
            ],
            lifecycle=Lifecycle(background=app.background),
        )


def _settings() -> ContextSettings:
    return ContextSettings()  # type: ignore[call-arg]  # from the environment


def main() -> int:
    """Run; the exit code is 0 after an orderly end, 2 for wrong settings, else 1."""
    return run(SERVICE, _settings, work)


if __name__ == "__main__":
    sys.exit(main())
