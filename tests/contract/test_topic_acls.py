"""On a broker that checks rights, a service may do what the topic files say, and nothing else.

The table of rights is written by hand here; the broker is a real one with SASL and its standard
authorizer, and the permissions on it are the ones generated from ``schemas/topics``.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
)
from aiokafka.protocol.fetch import FetchRequest
from pydantic import SecretStr

from deploy.local.kafka import KafkaServer
from deploy.local.kafka_settings import KafkaAccess
from deploy.local.ports import pick_port
from libs.errors import QueueUnavailable
from libs.kafka.acls import AclsNotApplied, acl_bindings, apply_acls
from libs.kafka.topics import TopicsNotApplied, apply_topics, missing_topics, topic_specs
from schemas.topic_files import load_topics, topics_of
from services.ops.settings import OpsSettings
from services.ops.topic_reader import TopicReader

pytestmark = [pytest.mark.kafka, pytest.mark.asyncio(loop_scope="module")]

ADMIN = "admin"
PARTIES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway", "ops", "door")
STRANGER = "stranger"
ANSWER_TIMEOUT_S = 20.0
MISSING_POLLS = 200  # of 50 ms; a deletion takes a tenth of a second

WRITERS: Mapping[str, set[str]] = {
    "turn.requests": {"frontend_gateway", "door"},
    "turn.events": {"ingestion"},
    "context.events": {"context_assembly"},
    "generation.events": {"llm_gateway"},
    "turn.requests.dlq": {"ingestion"},
    "turn.events.dlq": {"context_assembly", "llm_gateway"},
    "context.events.dlq": {"ingestion", "llm_gateway"},
    "generation.events.dlq": {"ingestion"},
}
READERS: Mapping[str, set[str]] = {
    "turn.requests": {"ingestion"},
    "turn.events": {"context_assembly", "llm_gateway", "ops"},
    "context.events": {"ingestion", "llm_gateway"},
    "generation.events": {"ingestion"},
    "turn.requests.dlq": {"ops"},
    "turn.events.dlq": {"ops"},
    "context.events.dlq": {"ops"},
    "generation.events.dlq": {"ops"},
}
TOPICS = tuple(WRITERS)
DENIED = (
    TopicAuthorizationFailedError,
    GroupAuthorizationFailedError,
    ClusterAuthorizationFailedError,
)


class Broker:
    """A broker with an account for every party, and what each account can really do."""

    def __init__(self, server: KafkaServer) -> None:
        self._server = server

    def account(self, party: str) -> dict[str, Any]:
        """How a client of that party connects."""
        user = ADMIN if party == ADMIN else f"turnwire_{party}"
        return self._server.client_settings(user)

    def settings(self, party: str) -> OpsSettings:
        """The command line's, with the account of a party."""
        account = self.account(party)
        return OpsSettings(
            kafka_bootstrap_servers=account["bootstrap_servers"],
            kafka_security_protocol=account["security_protocol"],
            kafka_sasl_mechanism=account["sasl_mechanism"],
            kafka_username=account["sasl_plain_username"],
            kafka_password=SecretStr(account["sasl_plain_password"]),
        )

    async def may_write(self, party: str, topic: str) -> bool:
        """Whether a record of the party is acknowledged."""
        producer = AIOKafkaProducer(**self.account(party), request_timeout_ms=10_000)
        await producer.start()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await producer.send_and_wait(topic, b"{}", partition=0)
        except DENIED:
            return False
        finally:
            await producer.stop()
        return True

    async def may_read(self, party: str, topic: str) -> bool:
        """Whether the broker answers the party's fetch of the topic's first record.

        The request is sent by itself: a consumer that may not even describe a topic asks for
        its partitions for ever.
        """
        client = AIOKafkaClient(**self.account(party))
        await client.bootstrap()
        try:
            request = FetchRequest(1_000, 1, 1_000_000, 0, [(topic, [(0, 0, 1_000_000)])])
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await client.send(client.get_random_node(), request)
        finally:
            await client.close()
        [(_, [(_, error_code, highwater, *_)])] = answer.topics
        assert error_code in (0, TopicAuthorizationFailedError.errno)
        return bool(error_code == 0 and highwater > 0)

    async def may_use_group(self, party: str, group: str, topic: str) -> bool:
        """Whether the party may keep an offset under the name of a group."""
        consumer = AIOKafkaConsumer(**self.account(party), group_id=group, enable_auto_commit=False)
        await consumer.start()
        try:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await consumer.commit({partition: 0})
        except DENIED:
            return False
        finally:
            await consumer.stop()
        return True

    async def admin(self, party: str) -> AIOKafkaAdminClient:
        """A started administration client of the party; close it."""
        client = AIOKafkaAdminClient(**self.account(party))
        await client.start()
        return client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """Topics, permissions and one record in each topic."""
    folder: Path = tmp_path_factory.mktemp("kafka-with-rights")
    users = {name: secrets.token_hex(8) for name in (f"turnwire_{party}" for party in PARTIES)}
    users |= {ADMIN: secrets.token_hex(8), f"turnwire_{STRANGER}": secrets.token_hex(8)}
    port = pick_port()
    server = KafkaServer(
        folder,
        port=port,
        controller_port=pick_port(avoid=[port]),
        access=KafkaAccess(users=users, super_users=(ADMIN,)),
    )
    await server.start()
    try:
        ready = Broker(server)
        await prepare(ready)
        yield ready
    finally:
        await server.stop()


async def prepare(broker: Broker) -> None:
    """Apply what an installation applies, as its administrator."""
    admin = await broker.admin(ADMIN)
    await apply_topics(admin, topic_specs(load_topics(), profile="local"))
    await admin.close()
    client = AIOKafkaClient(**broker.account(ADMIN))
    await client.bootstrap()
    await apply_acls(client, acl_bindings(load_topics()))
    await apply_acls(client, acl_bindings(load_topics()))  # again: it changes nothing
    await client.close()
    for topic in TOPICS:
        assert await broker.may_write(ADMIN, topic)


async def granted(parties: Iterable[str], topic: str, check: Any) -> set[str]:
    """The parties for which the check succeeds."""
    return {party for party in parties if await check(party, topic)}


@pytest.mark.parametrize("topic", TOPICS)
async def test_only_the_writers_of_a_topic_can_write_to_it(broker: Broker, topic: str) -> None:
    assert await granted((*PARTIES, STRANGER), topic, broker.may_write) == WRITERS[topic]


@pytest.mark.parametrize("topic", TOPICS)
async def test_only_the_readers_of_a_topic_can_read_it(broker: Broker, topic: str) -> None:
    assert await granted((*PARTIES, STRANGER), topic, broker.may_read) == READERS[topic]


async def test_the_command_line_reads_what_it_compares_and_is_told_what_it_may_not(
    broker: Broker,
) -> None:
    async with TopicReader.opened(broker.settings("ops"), "turn.events") as reader:
        assert [batch async for batch in reader.batches({})] != []
    with pytest.raises(QueueUnavailable, match="does not let this account read turn"):
        async with TopicReader.opened(broker.settings(STRANGER), "turn.events"):
            pass


async def test_a_service_keeps_offsets_only_under_groups_of_its_own_name(broker: Broker) -> None:
    assert await broker.may_use_group("ingestion", "ingestion.generation", "generation.events")
    assert not await broker.may_use_group("ingestion", "llm_gateway.steps", "context.events")
    assert not await broker.may_use_group("ingestion", "ingestion-else", "generation.events")


async def until_missing(admin: AIOKafkaAdminClient, names: list[str]) -> None:
    """Wait until the broker no longer shows the topics."""
    for _ in range(MISSING_POLLS):
        if await missing_topics(admin, names) == tuple(names):
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"{names} are still there")


async def test_a_service_receives_its_topics_under_a_group_of_its_own(broker: Broker) -> None:
    topics = [topic for topic in TOPICS if "ingestion" in READERS[topic]]
    consumer = AIOKafkaConsumer(
        *topics,
        **broker.account("ingestion"),
        group_id="ingestion.all",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            seen: set[str] = set()
            while seen != set(topics):
                seen.add((await consumer.getone()).topic)
            await consumer.commit()
    finally:
        await consumer.stop()


@pytest.mark.parametrize("party", [p for p in PARTIES if p != "door"])
async def test_a_service_sees_every_topic_that_concerns_it_and_no_other(
    broker: Broker, party: str
) -> None:
    concerning = [spec.name for spec in topic_specs(load_topics(), profile="local", party=party)]
    others = tuple(topic for topic in TOPICS if topic not in concerning)
    client = await broker.admin(party)
    try:
        assert await missing_topics(client, TOPICS) == others
    finally:
        await client.close()


async def test_a_service_cannot_give_itself_rights(broker: Broker) -> None:
    client = AIOKafkaClient(**broker.account("ingestion"))
    await client.bootstrap()
    try:
        with pytest.raises(AclsNotApplied, match="an account that may alter the cluster"):
            await apply_acls(client, acl_bindings(load_topics())[:1])
    finally:
        await client.close()


async def test_an_owner_may_make_its_topics_again_and_nobody_elses(broker: Broker) -> None:
    own = topic_specs(topics_of(load_topics(), "llm_gateway"), profile="local")
    others = topic_specs(topics_of(load_topics(), "ingestion"), profile="local")
    names = [spec.name for spec in own]
    root = await broker.admin(ADMIN)
    service = await broker.admin("llm_gateway")
    try:
        await root.delete_topics(names)
        await until_missing(root, names)
        applied = await apply_topics(service, own)
        assert applied.created == ("generation.events", "generation.events.dlq")
        assert await missing_topics(root, names) == ()
        with pytest.raises(TopicsNotApplied, match="turn"):
            await apply_topics(service, others)
    finally:
        await service.close()
        await root.close()
