"""How a service process lives: readiness first, then consumers, then an orderly end.

Start: health and metrics are served at once; Kafka is waited for; background work and consumers
start. End (SIGTERM): consumers finish their batch and store offsets, the service's own work is
drained, the relay sends what is left, and only then connections close.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from faststream import FastStream
from faststream.kafka import KafkaBroker

from libs.clock import Clock
from libs.kafka.frame import Consumer
from libs.kafka.outcomes import attempt
from libs.kafka.upkeep import KafkaUpkeep
from libs.outbox import Relay
from libs.retry import Backoff
from libs.telemetry.ops_server import OpsServer

RESTART_BACKOFF = Backoff(base_s=0.2, cap_s=5.0)
"""Pause before a background part that failed runs again."""

RELAY_DRAIN_S = 5.0
"""What the relay may take at the end; whatever stays is in the table and another one sends it."""

WATCH_S = 1.0
"""How often the process looks whether its consumers are still members of their groups."""

Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """What a service brings along.

    Attributes:
        background: Name -> work that runs until cancelled; one that raises is started again.
        drain: Called at the end, after the consumers stopped and before background work ends.
        close: Called last: pools, sessions.
    """

    background: Mapping[str, Work] = field(default_factory=dict)
    drain: Sequence[Work] = ()
    close: Sequence[Work] = ()


class Service:
    """One service process with Kafka consumers."""

    def __init__(
        self,
        *,
        broker: KafkaBroker,
        consumers: Sequence[Consumer],
        relay: Relay,
        upkeep: KafkaUpkeep,
        ops_server: OpsServer,
        lifecycle: Lifecycle,
    ) -> None:
        self._broker = broker
        self._consumers = consumers
        self._relay = relay
        self._upkeep = upkeep
        self._ops_server = ops_server
        self._lifecycle = lifecycle
        self._log = structlog.get_logger(__name__)
        self._tasks: list[asyncio.Task[None]] = []
        self.failed = False

    async def run(self, *, clock: Clock) -> None:
        """Serve until SIGTERM or SIGINT."""
        await self._ops_server.start()
        try:
            if not await self._wait_for_kafka():
                return
            app = FastStream(
                self._broker,
                logger=None,
                after_startup=[self._started],
                on_shutdown=[self._stop_consumers],
            )
            self._start_background(
                {
                    "relay": self._relay.run,
                    "kafka_upkeep": self._upkeep.run,
                    **self._lifecycle.background,
                },
                clock,
            )
            watch = asyncio.create_task(self._exit_when_a_consumer_died(app, clock))
            try:
                await app.run(sleep_time=0.05)
            finally:
                watch.cancel()
                await self._end()
        finally:
            await self._upkeep.close()
            await self._ops_server.stop()
            for close in self._lifecycle.close:
                await close()

    async def _wait_for_kafka(self) -> bool:
        """Whether Kafka came up before somebody asked this process to end."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        ready = asyncio.create_task(self._upkeep.wait_until_ready())
        end = asyncio.create_task(ended.wait())
        await asyncio.wait([ready, end], return_when=asyncio.FIRST_COMPLETED)
        for task in (ready, end):
            if not task.done():
                task.cancel()
        await asyncio.gather(ready, end, return_exceptions=True)
        if not ready.cancelled() and (error := ready.exception()) is not None:
            raise error
        return not ended.is_set()

    def _start_background(self, background: Mapping[str, Work], clock: Clock) -> None:
        for name, work in background.items():
            task = asyncio.create_task(supervise(name, work, clock=clock), name=name)
            self._tasks.append(task)

    async def _started(self) -> None:
        self._log.info(
            "service.started", consumers=[c.loop.handler.consumer for c in self._consumers]
        )

    async def _stop_consumers(self) -> None:
        for consumer in self._consumers:
            await consumer.stop_reading()

    async def _end(self) -> None:
        for drain in self._lifecycle.drain:
            await drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._relay.drain(timeout_s=RELAY_DRAIN_S)
        self._log.info("service.ended")

    async def _exit_when_a_consumer_died(self, app: FastStream, clock: Clock) -> None:
        """A consumer that only a restart helps gets one; its offsets lose nothing."""
        while True:
            await clock.sleep(WATCH_S)
            for consumer in self._consumers:
                if consumer.ailment is not None:
                    self._log.error(
                        "service.consumer_died",
                        consumer=consumer.loop.handler.consumer,
                        reason=consumer.ailment,
                    )
                    self.failed = True
                    app.exit()
                    return


async def supervise(name: str, work: Work, *, clock: Clock) -> None:
    """Run ``work`` again and again, with a growing pause after each failure, until cancelled."""
    log = structlog.get_logger(__name__)
    failures = 0
    while True:
        started_s = clock.monotonic()
        error = await attempt(_awaited(work))
        if clock.monotonic() - started_s > RESTART_BACKOFF.cap_s * 2:
            failures = 0
        failures += 1
        log.error(
            "service.part_restarted",
            part=name,
            failures=failures,
            error="returned" if error is None else type(error).__name__,
        )
        with contextlib.suppress(TimeoutError):
            await clock.sleep(RESTART_BACKOFF.delay_s(failures, jitter=0.5))


async def _awaited(work: Work) -> None:
    await work()
