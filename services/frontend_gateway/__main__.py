"""Runs the gateway: reads the settings, opens the real adapters, serves until SIGTERM."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping

from prometheus_client import CollectorRegistry

from libs.catalogue import Catalogue
from libs.clock import SystemClock
from libs.errors import QueueUnavailable
from libs.heartbeat import Heartbeat
from libs.kafka.publisher import KafkaPublisher
from libs.kafka.spans import traced
from libs.postgres import Database
from libs.redis.doorbell import RedisDoorbell
from libs.redis.live_stream import RedisLiveStream
from libs.startup import kafka_security, release, run
from libs.telemetry.logging import get_logger
from libs.telemetry.metrics import Metrics
from libs.telemetry.ops_server import OK, Check, CheckResult, LoopLagWatchdog, OpsServer
from libs.telemetry.tracing import configure_tracing
from services.frontend_gateway.app import Adapters, Gateway, build_app, readiness
from services.frontend_gateway.http.openapi import VERSION
from services.frontend_gateway.http.server import Server, server_of
from services.frontend_gateway.operators import opened_operators
from services.frontend_gateway.settings import GatewaySettings
from services.frontend_gateway.store import PostgresStore

SERVICE = "frontend_gateway"
EXIT_NOT_READY = 3
CONNECT_AGAIN_S = 1.0  # between attempts to reach Kafka ahead of the first request

Checks = Mapping[str, Check]
"""How each dependency is, by name."""


@contextlib.asynccontextmanager
async def opened(
    settings: GatewaySettings, metrics: Metrics
) -> AsyncIterator[tuple[Adapters, Checks, Database]]:
    """The real adapters; without Kafka or Redis the gateway starts all the same."""
    tracing = configure_tracing(SERVICE)
    publisher = KafkaPublisher(
        settings.kafka_bootstrap_servers,
        client_id=SERVICE,
        security=kafka_security(settings),
        timeout_s=settings.acceptance_wait_s,
    )
    redis_url = settings.redis_url.get_secret_value()
    database_url = settings.database_url.get_secret_value()
    database = await Database.open(database_url, schema=SERVICE, size=settings.database_pool_size)
    connecting = asyncio.create_task(_connect(publisher), name="connect-kafka")
    try:
        async with (
            RedisLiveStream.open(redis_url, errors=metrics.live_stream_errors_total) as live,
            RedisDoorbell.open(redis_url) as bell,
            opened_operators(database_url, schema=SERVICE, tracing=tracing) as operators,
        ):
            yield (
                Adapters(
                    store=PostgresStore(database),
                    publisher=traced(publisher, tracing),
                    live=live,
                    bell=bell,
                    clock=SystemClock(),
                    metrics=metrics,
                    tracing=tracing,
                    operators=operators,
                ),
                {
                    "postgres": _asking(database),
                    "kafka": _flag(lambda: publisher.is_connected),
                    "live_stream": _flag(lambda: live.connected),
                    "doorbell": _flag(lambda: bell.connected),
                },
                database,
            )
    finally:
        connecting.cancel()
        await publisher.stop()
        await database.close()
        await tracing.close()


def _asking(database: Database) -> Check:
    async def ask() -> CheckResult:
        await database.fetch("select 1 as one")
        return OK

    return ask


def _flag(is_connected: Callable[[], bool]) -> Check:
    async def ask() -> CheckResult:
        return OK if is_connected() else CheckResult(ok=False, detail="not connected")

    return ask


async def _connect(publisher: KafkaPublisher) -> None:
    """Reach Kafka before the first message does, so that it does not pay for the connection."""
    while not publisher.is_connected:
        try:
            await publisher.start()
        except QueueUnavailable:
            await asyncio.sleep(CONNECT_AGAIN_S)


async def serve(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT, then let streams go one by one.

    Raises:
        CatalogueInvalid: The catalogue of models cannot be used.
        StoreUnavailable: Postgres cannot be reached.
    """
    Catalogue.load(settings.models_file, default=settings.llm_model)  # before anything is awaited
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.announce(SERVICE, VERSION)
    async with opened(settings, metrics) as (adapters, checks, database):
        gateway = build_app(settings, adapters)
        asked = readiness(gateway, checks)
        watchdog = LoopLagWatchdog(metrics.event_loop_lag_seconds)
        ops = OpsServer(
            registry,
            host=settings.ops_host,
            port=settings.ops_port,
            liveness={"event_loop": watchdog.check},
            readiness=asked,
        )
        server = server_of(
            gateway, host=settings.host, port=settings.port, drain_s=settings.drain_s
        )
        heartbeat = Heartbeat(
            database,
            instance_id=adapters.clock.new_id(),
            version=release(),
            checks=asked,
            lag=dict,
            clock=adapters.clock,
        )
        await ops.start()
        beating = asyncio.create_task(heartbeat.run(), name="heartbeat")
        watching = asyncio.create_task(watchdog.run(), name="watchdog")
        serving = asyncio.create_task(server.serve(), name="http")
        ending = asyncio.create_task(_end_at_signal(gateway, server), name="signals")
        try:
            await serving
        finally:
            ending.cancel()
            watching.cancel()
            beating.cancel()
            await asyncio.wait({beating}, timeout=1)
            await heartbeat.leave()
            await ops.stop()


async def _end_at_signal(gateway: Gateway, server: Server) -> None:
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    await asked.wait()
    get_logger().info("gateway.draining", streams=gateway.hub.stream_count)
    server.should_exit = True  # takes no new connection; waits for the open streams
    await gateway.drain()


def _settings() -> GatewaySettings:
    return GatewaySettings()  # type: ignore[call-arg]  # from the environment


def main() -> int:
    """Exit status: 0 after an orderly end, 2 for wrong settings, 3 if something is not there."""
    return run(SERVICE, _settings, serve, exit_failed=EXIT_NOT_READY)


if __name__ == "__main__":
    sys.exit(main())
