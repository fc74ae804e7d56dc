"""Brings the broker's topics to what the topic files say, and says which are missing."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from libs.errors import Terminal
from schemas.topic_files import Profile, TopicFile

ADMIN_TIMEOUT_S = 30.0  # a broker that just started answers within 15 s, measured after a kill
VISIBLE_POLLS = 100  # of 50 ms: from the controller's answer to the broker's metadata takes one
VISIBLE_POLL_S = 0.05

_OK = 0
_ALREADY_EXISTS = 36  # two appliers at once: the other one was first
_TOPIC_OVERRIDE = 1  # config_source of a setting made for this topic, not inherited


class TopicsNotApplied(Terminal):
    """The broker refused to create or to change a topic."""

    code = "topics.not_applied"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a broker must know to create one topic.

    Attributes:
        config: The whole set of the topic's own settings; altering replaces all of them.
    """

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AppliedTopics:
    """What ``apply_topics`` did, by topic name.

    Attributes:
        repartitioned: Topics whose partition count on the broker is another one. They are left
            alone: with another count a key lands on another partition and loses its order.
    """

    created: tuple[str, ...]
    altered: tuple[str, ...]
    unchanged: tuple[str, ...]
    repartitioned: tuple[str, ...]


def topic_specs(
    files: Iterable[TopicFile], *, profile: Profile, party: str | None = None
) -> tuple[TopicSpec, ...]:
    """Every topic of the files, each followed by the topic of its dead letters.

    Args:
        party: Only topics that this service owns, writes or reads. On a broker with accounts a
            service does not see the others, and would take them for lost.
    """
    specs: list[TopicSpec] = []
    for file in files:
        topic_too, letters_too = (True, True) if party is None else file.concerns(party)
        for is_wanted, name, config in (
            (topic_too, file.topic, file.config),
            (letters_too, file.dead_letter_topic, file.dead_letters.config),
        ):
            if not is_wanted:
                continue
            in_sync = {"min.insync.replicas": str(file.min_insync_replicas.of(profile))}
            specs.append(
                TopicSpec(
                    name=name,
                    partitions=file.partitions.of(profile),
                    replication=file.replication.of(profile),
                    config={**config, **in_sync},
                )
            )
    return tuple(specs)


async def missing_topics(admin: AIOKafkaAdminClient, names: Iterable[str]) -> tuple[str, ...]:
    """The names that the broker does not have (or does not show to us), in the order given.

    Raises:
        TimeoutError: The broker did not answer within ADMIN_TIMEOUT_S.
    """
    async with asyncio.timeout(ADMIN_TIMEOUT_S):
        present = set(await admin.list_topics())
    return tuple(name for name in names if name not in present)


async def apply_topics(admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec]) -> AppliedTopics:
    """Create what is missing and set what differs; running it again changes nothing.

    Args:
        admin: Started, with the right to create and to alter these topics.
        specs: Usually ``topic_specs(load_topics(), profile=…)``, or those one service owns.

    Raises:
        TopicsNotApplied: The broker refused a topic; names each topic, code and reason.
        TimeoutError: The broker did not answer within ADMIN_TIMEOUT_S.
    """
    missing = set(await missing_topics(admin, [spec.name for spec in specs]))
    async with asyncio.timeout(ADMIN_TIMEOUT_S):
        await _create(admin, [spec for spec in specs if spec.name in missing])
        present = [spec for spec in specs if spec.name not in missing]
        own = await _own_settings(admin, [spec.name for spec in present])
        differing = [spec for spec in present if own[spec.name] != dict(spec.config)]
        await _alter(admin, differing)
        counts = await _partition_counts(admin, [spec.name for spec in present])
    altered = tuple(spec.name for spec in differing)
    return AppliedTopics(
        created=tuple(spec.name for spec in specs if spec.name in missing),
        altered=altered,
        unchanged=tuple(spec.name for spec in present if spec.name not in altered),
        repartitioned=tuple(s.name for s in present if counts[s.name] != s.partitions),
    )


async def _create(admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec]) -> None:
    if not specs:
        return
    answer = await admin.create_topics(
        [
            NewTopic(
                name=spec.name,
                num_partitions=spec.partitions,
                replication_factor=spec.replication,
                topic_configs=dict(spec.config),
            )
            for spec in specs
        ]
    )
    # The call raises nothing for a topic that was refused: the codes have to be read.
    refused = [
        f"{error['topic']}: code {error['error_code']}, {error.get('error_message') or 'no text'}"
        for error in answer.to_object()["topic_errors"]
        if error["error_code"] not in (_OK, _ALREADY_EXISTS)
    ]
    _raise_if_refused("create", refused)
    await _until_visible(admin, [spec.name for spec in specs])


async def _until_visible(admin: AIOKafkaAdminClient, names: Sequence[str]) -> None:
    """The controller has answered; the broker we ask learns it a moment later."""
    for _ in range(VISIBLE_POLLS):
        if not await missing_topics(admin, names):
            return
        await asyncio.sleep(VISIBLE_POLL_S)
    _raise_if_refused("show", [f"{name}: created, but not visible" for name in names])


async def _own_settings(
    admin: AIOKafkaAdminClient, names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """The settings made for each topic itself; what it inherits from the broker is left out."""
    if not names:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    own: dict[str, dict[str, str]] = {}
    for answer in await admin.describe_configs(resources):
        for resource in answer.to_object()["resources"]:
            name, code = resource["resource_name"], resource["error_code"]
            _raise_if_refused("describe", [f"{name}: code {code}"] if code != _OK else [])
            own[name] = {
                entry["config_names"]: entry["config_value"]
                for entry in resource["config_entries"]
                if entry["config_source"] == _TOPIC_OVERRIDE
            }
    return own


async def _alter(admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec]) -> None:
    if not specs:
        return
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, spec.name, configs=dict(spec.config))
        for spec in specs
    ]
    refused = [
        f"{resource['resource_name']}: code {resource['error_code']}, {resource['error_message']}"
        for answer in await admin.alter_configs(resources)
        for resource in answer.to_object()["resources"]
        if resource["error_code"] != _OK
    ]
    _raise_if_refused("alter", refused)


async def _partition_counts(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, int]:
    if not names:
        return {}
    described = await admin.describe_topics(list(names))
    return {topic["topic"]: len(topic["partitions"]) for topic in described}


def _raise_if_refused(act: str, refused: Sequence[str]) -> None:
    if refused:
        msg = (
            f"the broker refused to {act} topics ({'; '.join(refused)}); "
            "check the account's rights and the topic files, then run 'turnwire topics apply'"
        )
        raise TopicsNotApplied(msg)
