"""Derives from the topic files what each service may do on the broker, and grants exactly that."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import CreateAclsRequest

from libs.errors import Terminal
from schemas.topic_files import TopicFile

ACL_TIMEOUT_S = 10.0  # one binding is one small request to the broker
_ANY_HOST = "*"
_ALLOW = 3


class ResourceType(IntEnum):
    """Kafka's numbers for what a binding is about (KIP-11)."""

    TOPIC = 2
    GROUP = 3


class PatternType(IntEnum):
    """Kafka's numbers for how a name is matched (KIP-290)."""

    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Kafka's numbers for the operations we grant (KIP-11).

    READ and WRITE include DESCRIBE; WRITE on a topic includes idempotent writing.
    """

    READ = 3
    WRITE = 4
    CREATE = 5
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


class AclsNotApplied(Terminal):
    """The broker refused to store a binding."""

    code = "acls.not_applied"


@dataclass(frozen=True, slots=True, order=True)
class AclSpec:
    """One permission: this principal may do this operation on this resource, from any host."""

    principal: str
    resource: ResourceType
    name: str
    pattern: PatternType
    operation: Operation


def principal_of(party: str) -> str:
    """The broker's name for a service or a front end, the same as its database role's."""
    return f"User:turnwire_{party}"


def group_prefix_of(party: str) -> str:
    """What the names of all consumer groups of a service begin with."""
    return f"{party}."


def acl_bindings(topics: Iterable[TopicFile]) -> tuple[AclSpec, ...]:
    """Everything that is allowed; what is not in it is denied by the authorizer.

    A producer writes, a consumer reads with groups of its own name, a reader reads without one, an
    owner may create its topics again after a loss of the broker's data, and keeps their settings.
    Sorted, without repeats.
    """
    bindings: set[AclSpec] = set()
    for topic in topics:
        bindings.update(_owner(topic.owner, (topic.topic, topic.dead_letter_topic)))
        for party in topic.producers:
            bindings.add(_on_topic(party, topic.topic, Operation.WRITE))
        for party in topic.consumers:
            bindings.update(_consumer(party, topic.topic))
        for party in topic.readers:
            bindings.add(_on_topic(party, topic.topic, Operation.READ))
        for party in topic.dead_letters.producers:
            bindings.add(_on_topic(party, topic.dead_letter_topic, Operation.WRITE))
        for party in topic.dead_letters.consumers:
            bindings.update(_consumer(party, topic.dead_letter_topic))
    return tuple(sorted(bindings))


async def apply_acls(client: AIOKafkaClient, bindings: Sequence[AclSpec]) -> None:
    """Store the bindings; one that is there already stays as it is.

    Args:
        client: Bootstrapped, as an account that may alter the cluster. The administration client
            of aiokafka has no call for this, so the request itself is sent.
        bindings: Usually ``acl_bindings(load_topics())``.

    Raises:
        AclsNotApplied: The broker refused a binding, for instance because it has no authorizer.
        TimeoutError: The broker did not answer within ACL_TIMEOUT_S.
    """
    node = client.get_random_node()
    for binding in bindings:
        request = CreateAclsRequest(
            resource_type=int(binding.resource),
            resource_name=binding.name,
            resource_pattern_type_filter=int(binding.pattern),
            principal=binding.principal,
            host=_ANY_HOST,
            operation=int(binding.operation),
            permission_type=_ALLOW,
        )
        async with asyncio.timeout(ACL_TIMEOUT_S):
            answer = await client.send(node, request)
        for result in answer.to_object()["creation_responses"]:
            if result["error_code"] != 0:
                msg = (
                    f"the broker refused {binding.operation.name} on {binding.name} for "
                    f"{binding.principal} (code {result['error_code']}, "
                    f"{result['error_message']}); it needs an authorizer, and an account that "
                    "may alter the cluster"
                )
                raise AclsNotApplied(msg)


def _on_topic(party: str, topic: str, operation: Operation) -> AclSpec:
    return AclSpec(principal_of(party), ResourceType.TOPIC, topic, PatternType.LITERAL, operation)


def _consumer(party: str, topic: str) -> Iterable[AclSpec]:
    yield _on_topic(party, topic, Operation.READ)
    yield AclSpec(
        principal_of(party),
        ResourceType.GROUP,
        group_prefix_of(party),
        PatternType.PREFIXED,
        Operation.READ,
    )


def _owner(party: str, topics: Iterable[str]) -> Iterable[AclSpec]:
    kept = (
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    )
    for topic in topics:
        for operation in kept:
            yield _on_topic(party, topic, operation)
