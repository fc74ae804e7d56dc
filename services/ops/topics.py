"""Brings the topics of a broker to what this release needs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from libs.errors import QueueUnavailable
from libs.kafka.security import KafkaSecurity
from libs.kafka.topics import AppliedTopics, TopicSpec, apply_topics, missing_topics, topic_specs
from libs.settings import ServiceSettings
from schemas.topic_files import Profile, load_topics

CONNECT_BOUND_S = 15.0
REQUEST_TIMEOUT_MS = 10_000


def security_of(settings: ServiceSettings) -> KafkaSecurity:
    """How the command line proves who it is to the brokers."""
    return KafkaSecurity(
        protocol=settings.kafka_security_protocol,
        mechanism=settings.kafka_sasl_mechanism,
        username=settings.kafka_username,
        password=settings.kafka_password,
    )


def kafka_away(bootstrap: str, error: Exception) -> QueueUnavailable:
    """What to say where no broker answers."""
    return QueueUnavailable(
        f"Kafka at {bootstrap} does not answer ({type(error).__name__}). Start a local one with "
        "`turnwire up`, or see that KAFKA_BOOTSTRAP_SERVERS is right and it runs."
    )


@asynccontextmanager
async def admin_client(
    bootstrap: str, security: KafkaSecurity | None = None
) -> AsyncIterator[AIOKafkaAdminClient]:
    """A started admin client.

    Raises:
        QueueUnavailable: No broker answered in time.
    """
    admin = AIOKafkaAdminClient(
        bootstrap_servers=bootstrap,
        client_id="turnwire-ops",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        **(security or KafkaSecurity()).client_arguments(),
    )
    try:
        async with asyncio.timeout(CONNECT_BOUND_S):
            await admin.start()
    except (KafkaError, TimeoutError, OSError) as error:
        await admin.close()
        raise kafka_away(bootstrap, error) from error
    try:
        yield admin
    finally:
        await admin.close()


def wanted_topics(profile: Profile) -> tuple[TopicSpec, ...]:
    """Every topic of this release."""
    return topic_specs(load_topics(), profile=profile)


async def apply_all(
    bootstrap: str, *, profile: Profile, security: KafkaSecurity | None = None
) -> AppliedTopics:
    """Create missing topics and set what differs.

    Raises:
        QueueUnavailable: No broker answered in time.
        TopicsNotApplied: The broker refused.
    """
    async with admin_client(bootstrap, security) as admin:
        return await apply_topics(admin, wanted_topics(profile))


async def missing(
    bootstrap: str, *, profile: Profile, security: KafkaSecurity | None = None
) -> tuple[str, ...]:
    """Names of the topics that ``apply_all`` would create."""
    async with admin_client(bootstrap, security) as admin:
        return await missing_topics(admin, [spec.name for spec in wanted_topics(profile)])
