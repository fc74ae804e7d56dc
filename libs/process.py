"""A worker process from the outside in: settings, real adapters, the service, the exit code.

Every service with consumers is assembled here the same way; a service's ``__main__`` adds only what
is its own. Nothing else constructs real adapters.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from libs.clock import Clock, SystemClock
from libs.errors import QueueUnavailable
from libs.heartbeat import Heartbeat
from libs.kafka.frame import Consumer, ConsumerSettings, make_broker
from libs.kafka.loop import BatchHandler, BatchLoop
from libs.kafka.parking import Parking
from libs.kafka.publisher import KafkaPublisher
from libs.kafka.redriving import Redriving
from libs.kafka.spans import traced
from libs.kafka.topics import topic_specs
from libs.kafka.upkeep import KafkaUpkeep, LagWatch
from libs.outbox import Relay
from libs.postgres import Database
from libs.redis.ports import LiveStream
from libs.service import Lifecycle, Service
from libs.settings import ServiceSettings
from libs.startup import kafka_security, release
from libs.telemetry.metrics import Metrics
from libs.telemetry.ops_server import OK, Check, CheckResult, LoopLagWatchdog, OpsServer
from libs.telemetry.tracing import Tracing, configure_tracing
from schemas.envelope import Data
from schemas.registry import decode
from schemas.topic_files import load_topics


@dataclass(frozen=True, slots=True)
class Process:
    """The real adapters that every worker has, open for as long as it runs."""

    name: str
    settings: ServiceSettings
    clock: Clock
    registry: CollectorRegistry
    metrics: Metrics
    tracing: Tracing
    database: Database
    relay: Relay


@dataclass(frozen=True, slots=True)
class Subscription:
    """One consumer of a service.

    Attributes:
        shows: The event that AsyncAPI shows for it.
        gather_ms: Where nobody waits for its effect: how long the broker may hold records back, so
            that more of them share a batch.
    """

    handler: BatchHandler
    shows: type[Data]
    gather_ms: int = 0


@asynccontextmanager
async def open_process(name: str, settings: ServiceSettings) -> AsyncIterator[Process]:
    """Open the adapters of worker ``name`` (its folder), and close them in the end.

    Raises:
        StoreUnavailable: Postgres did not answer at the start.
    """
    clock = SystemClock()
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.announce(name, release())
    tracing = configure_tracing(name)
    database = await Database.open(
        settings.database_url.get_secret_value(), schema=name, size=settings.database_pool_size
    )
    publisher = KafkaPublisher(
        settings.kafka_bootstrap_servers, client_id=name, security=kafka_security(settings)
    )
    try:
        yield Process(
            name=name,
            settings=settings,
            clock=clock,
            registry=registry,
            metrics=metrics,
            tracing=tracing,
            database=database,
            relay=Relay(database, traced(publisher, tracing), clock=clock, metrics=metrics),
        )
    finally:
        await publisher.stop()
        await database.close()
        await tracing.close()


async def serve(
    process: Process,
    subscriptions: Sequence[Subscription],
    *,
    lifecycle: Lifecycle,
    checks: Mapping[str, Check] | None = None,
) -> None:
    """Consume until SIGTERM or SIGINT.

    Args:
        checks: The service's own readiness checks, beside Postgres and Kafka.
    """
    settings = process.settings
    security = kafka_security(settings)
    upkeep = KafkaUpkeep(
        settings.kafka_bootstrap_servers,
        client_id=process.name,
        topics=topic_specs(load_topics(), profile=settings.topics_profile, party=process.name),
        clock=process.clock,
        security=security,
    )
    broker = make_broker(
        settings.kafka_bootstrap_servers, client_id=process.name, security=security
    )
    consumers = [
        Consumer(
            broker,
            _loop(one.handler, process),
            settings=_membership(settings),
            event=one.shows,
            gather_ms=one.gather_ms,
        )
        for one in subscriptions
    ]
    watchdog = LoopLagWatchdog(process.metrics.event_loop_lag_seconds)
    readiness = {**_readiness(process, upkeep, consumers), **(checks or {})}
    ops_server = OpsServer(
        process.registry,
        host=settings.ops_host,
        port=settings.ops_port,
        liveness={"event_loop": watchdog.check, "consumers": _consumers_check(consumers)},
        readiness=readiness,
    )
    service = Service(
        broker=broker,
        consumers=consumers,
        relay=process.relay,
        upkeep=upkeep,
        ops_server=ops_server,
        lifecycle=_with_operators(
            process,
            consumers,
            readiness,
            replace(lifecycle, background={"watchdog": watchdog.run, **lifecycle.background}),
        ),
    )
    await service.run(clock=process.clock)
    if service.failed:
        msg = "a consumer could not go on; the process ends so that a new one takes over"
        raise QueueUnavailable(msg)


def _with_operators(
    process: Process,
    consumers: Sequence[Consumer],
    readiness: Mapping[str, Check],
    lifecycle: Lifecycle,
) -> Lifecycle:
    """What every worker does beside its own work so that operators see it and can act on it."""
    lag = LagWatch(consumers, clock=process.clock, metrics=process.metrics)
    heartbeat = Heartbeat(
        process.database,
        instance_id=process.clock.new_id(),
        version=release(),
        checks=readiness,
        lag=lambda: lag.latest,
        clock=process.clock,
    )
    loops = [consumer.loop for consumer in consumers]
    redriving = Redriving(process.database, loops, clock=process.clock)
    return replace(
        lifecycle,
        background={
            "kafka_lag": lag.run,
            "heartbeat": heartbeat.run,
            "redriving": redriving.run,
            **lifecycle.background,
        },
        close=(heartbeat.leave, *lifecycle.close),
    )


def _membership(settings: ServiceSettings) -> ConsumerSettings:
    return ConsumerSettings(
        session_timeout_ms=settings.limits.session_timeout_ms,
        heartbeat_interval_ms=settings.limits.heartbeat_interval_ms,
    )


def _loop(handler: BatchHandler, process: Process) -> BatchLoop:
    parking = Parking(
        process.database, process.relay, consumer=handler.consumer, metrics=process.metrics
    )
    return BatchLoop(
        handler,
        decode=decode,
        parking=parking,
        clock=process.clock,
        metrics=process.metrics,
    )


def _readiness(
    process: Process, upkeep: KafkaUpkeep, consumers: Sequence[Consumer]
) -> Mapping[str, Check]:
    async def postgres() -> CheckResult:
        await process.database.fetch("select 1")
        return OK

    async def kafka() -> CheckResult:
        if not upkeep.is_answering:
            return CheckResult(ok=False, detail="no broker answers")
        if not all(consumer.is_assigned for consumer in consumers):
            return CheckResult(ok=False, detail="a consumer is still joining its group")
        return OK

    return {"postgres": postgres, "kafka": kafka}


def _consumers_check(consumers: Sequence[Consumer]) -> Check:
    async def alive() -> CheckResult:
        for consumer in consumers:
            if consumer.ailment is not None:
                name = consumer.loop.handler.consumer
                return CheckResult(ok=False, detail=f"{name}: {consumer.ailment}")
        return OK

    return alive


def redis_check(live: LiveStream) -> Check:
    """Readiness of a service that writes live streams: without Redis it is degraded, not down."""

    async def redis() -> CheckResult:
        if live.connected:
            return OK
        return CheckResult(ok=True, degraded=True, detail="live streams wait for Redis")

    return redis
