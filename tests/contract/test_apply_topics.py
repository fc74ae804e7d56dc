"""Applying topics creates what is missing, repairs what differs, and leaves the rest alone."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from libs.kafka.topics import (
    TopicsNotApplied,
    TopicSpec,
    apply_topics,
    missing_topics,
    topic_specs,
)
from schemas.topic_files import load_topics
from tests.rig.waiting import until

pytestmark = pytest.mark.kafka


@pytest_asyncio.fixture
async def admin(kafka_url: str) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=kafka_url)
    await client.start()
    yield client
    await client.close()


@pytest.fixture
def specs(topic_prefix: str) -> list[TopicSpec]:
    """Our topics under names of this test's own."""
    return [
        replace(spec, name=topic_prefix + spec.name)
        for spec in topic_specs(load_topics(), profile="local")
    ]


async def settings_on_the_broker(admin: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    [answer] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    [resource] = answer.to_object()["resources"]
    return {entry["config_names"]: entry["config_value"] for entry in resource["config_entries"]}


async def test_missing_topics_are_made_as_their_files_say(
    admin: AIOKafkaAdminClient, specs: list[TopicSpec]
) -> None:
    names = [spec.name for spec in specs]
    assert await missing_topics(admin, names) == tuple(names)

    applied = await apply_topics(admin, specs)

    assert applied.created == tuple(names)
    assert await missing_topics(admin, names) == ()
    for spec in specs:
        on_broker = await settings_on_the_broker(admin, spec.name)
        assert {name: on_broker[name] for name in spec.config} == spec.config
    described = await admin.describe_topics(names)
    assert {len(topic["partitions"]) for topic in described} == {4}


async def test_applying_again_changes_nothing(
    admin: AIOKafkaAdminClient, specs: list[TopicSpec]
) -> None:
    await apply_topics(admin, specs)

    applied = await apply_topics(admin, specs)

    assert applied.unchanged == tuple(spec.name for spec in specs)
    assert (applied.created, applied.altered, applied.repartitioned) == ((), (), ())


async def test_a_setting_changed_by_hand_is_repaired_and_the_others_stay(
    admin: AIOKafkaAdminClient, specs: list[TopicSpec]
) -> None:
    spec = specs[0]
    await apply_topics(admin, [spec])
    by_hand = {"retention.ms": "1000", "delete.retention.ms": "5"}
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, spec.name, by_hand)])

    async def is_seen() -> bool:  # a broker that has taken a setting tells of it a little later
        return (await settings_on_the_broker(admin, spec.name))["retention.ms"] == "1000"

    await until(is_seen)
    applied = await apply_topics(admin, [spec])

    assert applied.altered == (spec.name,)
    on_broker = await settings_on_the_broker(admin, spec.name)
    assert {name: on_broker[name] for name in spec.config} == spec.config
    assert on_broker["delete.retention.ms"] == "86400000"  # the broker's default again


async def test_another_partition_count_is_told_and_not_touched(
    admin: AIOKafkaAdminClient, specs: list[TopicSpec]
) -> None:
    spec = specs[0]
    await apply_topics(admin, [replace(spec, partitions=2)])

    applied = await apply_topics(admin, [spec])

    assert applied.repartitioned == (spec.name,)
    [described] = await admin.describe_topics([spec.name])
    assert len(described["partitions"]) == 2


async def test_a_refusal_names_the_topic_and_is_no_silence(
    admin: AIOKafkaAdminClient, specs: list[TopicSpec]
) -> None:
    wrong = replace(specs[0], config={"retention.ms": "for ever"})
    with pytest.raises(TopicsNotApplied, match=wrong.name):
        await apply_topics(admin, [wrong])
    too_many_copies = replace(specs[0], replication=3)
    with pytest.raises(TopicsNotApplied, match=too_many_copies.name):
        await apply_topics(admin, [too_many_copies])
