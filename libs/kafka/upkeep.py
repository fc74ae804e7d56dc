"""Keeps the broker usable: waits for it, makes lost topics again, tells how far we are behind."""

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from libs.clock import Clock
from libs.kafka.frame import Consumer
from libs.kafka.security import KafkaSecurity
from libs.kafka.topics import TopicsNotApplied, TopicSpec, apply_topics, missing_topics
from libs.telemetry.metrics import Metrics

ASK_EVERY_S = 2.0
"""How soon lost topics are noticed; asking costs one small request."""

RETRY_S = 1.0
"""Pause before a missing broker is asked again."""

ANSWER_TIMEOUT_S = 10.0
"""Longest wait for one answer of the admin client, its connecting included."""


class KafkaUpkeep:
    """One admin client of a service."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str,
        topics: Sequence[TopicSpec],
        clock: Clock,
        security: KafkaSecurity | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._topics = topics
        self._clock = clock
        self._security = security or KafkaSecurity()
        self._admin: AIOKafkaAdminClient | None = None
        self._log = structlog.get_logger(__name__)
        self.is_answering = False

    async def wait_until_ready(self) -> None:
        """Return once the broker answers and has all topics; a missing broker is waited for."""
        while not await self.look():
            await self._clock.sleep(RETRY_S)

    async def look(self) -> bool:
        """Ask once, and make missing topics; whether the broker is usable now."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                admin = await self._connected()
                missing = set(await missing_topics(admin, [spec.name for spec in self._topics]))
                if missing:
                    lost = [spec for spec in self._topics if spec.name in missing]
                    await apply_topics(admin, lost)
                    self._log.warning("kafka.topics_made", topics=sorted(missing))
        except (KafkaError, TimeoutError, OSError) as error:
            self._log.warning("kafka.away", bootstrap=self._bootstrap, cause=type(error).__name__)
            await self.close()
            self.is_answering = False
            return False
        except TopicsNotApplied as error:
            self._log.warning("kafka.topics_not_made", reason=str(error))
            self.is_answering = False
            return False
        self.is_answering = True
        return True

    async def run(self) -> None:
        """Look again and again until cancelled."""
        try:
            while True:
                await self._clock.sleep(ASK_EVERY_S)
                await self.look()
        finally:
            await self.close()

    async def close(self) -> None:
        """Disconnect, within a bound."""
        admin, self._admin = self._admin, None
        if admin is None:
            return
        try:
            async with asyncio.timeout(RETRY_S):
                await admin.close()
        except (KafkaError, TimeoutError, OSError) as error:
            self._log.info("kafka.admin_close_failed", cause=type(error).__name__)

    async def _connected(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            admin = AIOKafkaAdminClient(
                bootstrap_servers=self._bootstrap,
                client_id=f"{self._client_id}-admin",
                request_timeout_ms=int(ANSWER_TIMEOUT_S * 1000),
                **self._security.client_arguments(),
            )
            self._admin = admin
            await admin.start()
        return self._admin


class LagWatch:
    """Exports how far the consumers of this process are behind.

    Attributes:
        latest: Records that wait, by topic, as they were last counted.
    """

    def __init__(self, consumers: Sequence[Consumer], *, clock: Clock, metrics: Metrics) -> None:
        self._consumers = consumers
        self._clock = clock
        self._metrics = metrics
        self._log = structlog.get_logger(__name__)
        self.latest: dict[str, int] = {}

    async def run(self) -> None:
        """Ask every five seconds until cancelled."""
        while True:
            await self._clock.sleep(5.0)
            counted: dict[str, int] = {}
            for consumer in self._consumers:
                try:
                    lag = await consumer.lag_records()
                except (KafkaError, TimeoutError) as error:
                    self._log.info("kafka.lag_unknown", cause=type(error).__name__)
                    continue
                for topic, records in lag.items():
                    counted[topic] = records
                    self._metrics.consumer_lag_records.labels(topic).set(records)
            self.latest = counted
