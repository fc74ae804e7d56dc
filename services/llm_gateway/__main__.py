"""Runs the model gateway: reads the settings, opens the real adapters, works until SIGTERM."""

import sys

from libs.catalogue import Catalogue
from libs.process import Subscription, open_process, redis_check, serve
from libs.redis.live_stream import RedisLiveStream
from libs.service import Lifecycle
from libs.startup import run
from libs.telemetry.ops_server import OK, Check, CheckResult
from schemas.steps import StepPlannedV1
from schemas.turns import TurnEndedV1
from services.llm_gateway.app import Adapters, App, build_app
from services.llm_gateway.instruments import Instruments
from services.llm_gateway.providers.openai_compatible import OpenAiCompatible
from services.llm_gateway.settings import LlmSettings

SERVICE = "llm_gateway"

TURNS_GATHER_MS = 200
"""Most events of turns are not for us, and forgetting is in no hurry; a cancel has a second."""


async def work(settings: LlmSettings) -> None:
    """Open everything, work until SIGTERM or SIGINT, close everything.

    Raises:
        CatalogueInvalid: The catalogue of models cannot be used.
        StoreUnavailable: Postgres did not answer.
    """
    catalogue = Catalogue.load(settings.models_file)
    async with (
        open_process(SERVICE, settings) as process,
        RedisLiveStream.open(
            settings.redis_url.get_secret_value(),
            errors=process.metrics.live_stream_errors_total,
        ) as live,
        OpenAiCompatible.open(
            base_url=settings.llm_base_url,
            api_key=settings.llm_api_key,
            now=process.clock.now,
            include_usage=settings.llm_stream_usage,
            connections=settings.max_running,
        ) as provider,
    ):
        adapters = Adapters(
            database=process.database,
            relay=process.relay,
            live=live,
            provider=provider,
            catalogue=catalogue,
            instruments=Instruments(process.clock, process.metrics, process.tracing),
        )
        app = build_app(settings, adapters, worker_id=process.clock.new_id())
        await app.begin()
        await serve(
            process,
            [
                Subscription(app.steps, StepPlannedV1),
                Subscription(app.turns, TurnEndedV1, gather_ms=TURNS_GATHER_MS),
            ],
            lifecycle=Lifecycle(background=app.background, drain=(app.drain,)),
            checks={"lease": _lease_check(app), "redis": redis_check(live)},
        )
        await app.lease.give_up()


def _lease_check(app: App) -> Check:
    async def lease() -> CheckResult:
        return OK if app.lease.is_held else CheckResult(ok=False, detail="the lease is not held")

    return lease


def _settings() -> LlmSettings:
    return LlmSettings()  # type: ignore[call-arg]  # from the environment


def main() -> int:
    """Run; the exit code is 0 after an orderly end, 2 for wrong settings, else 1."""
    return run(SERVICE, _settings, work)


if __name__ == "__main__":
    sys.exit(main())
