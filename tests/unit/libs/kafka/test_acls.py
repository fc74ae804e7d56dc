"""Permissions on the broker follow from the topic files, and there is no other permission."""

from libs.kafka.acls import AclSpec, Operation, PatternType, ResourceType, acl_bindings
from schemas.topic_files import load_topics

BINDINGS = acl_bindings(load_topics())


def writers(topic: str) -> set[str]:
    return {b.principal for b in BINDINGS if b.name == topic and b.operation is Operation.WRITE}


def test_the_door_may_write_requests_and_do_nothing_else() -> None:
    assert [b for b in BINDINGS if b.principal == "User:turnwire_door"] == [
        AclSpec(
            "User:turnwire_door",
            ResourceType.TOPIC,
            "turn.requests",
            PatternType.LITERAL,
            Operation.WRITE,
        )
    ]


def test_events_of_a_service_are_written_by_it_alone() -> None:
    assert writers("turn.events") == {"User:turnwire_ingestion"}
    assert writers("context.events") == {"User:turnwire_context_assembly"}
    assert writers("generation.events") == {"User:turnwire_llm_gateway"}


def test_nobody_may_read_or_write_by_a_pattern_that_covers_a_topic() -> None:
    patterns = {b.resource for b in BINDINGS if b.pattern is PatternType.PREFIXED}
    assert patterns == {ResourceType.GROUP}
    assert all("*" not in b.name for b in BINDINGS)


def test_a_reader_keeps_offsets_under_its_own_name() -> None:
    readers = {b.principal for b in BINDINGS if b.operation is Operation.READ}
    groups = {(b.principal, b.name) for b in BINDINGS if b.resource is ResourceType.GROUP}
    assert groups == {(name, name.removeprefix("User:turnwire_") + ".") for name in readers}


def test_who_only_looks_may_read_and_needs_no_group() -> None:
    looks = AclSpec(
        "User:turnwire_ops",
        ResourceType.TOPIC,
        "turn.events",
        PatternType.LITERAL,
        Operation.READ,
    )
    turn_events = next(topic for topic in load_topics() if topic.topic == "turn.events")
    alone = turn_events.model_copy(
        update={"dead_letters": turn_events.dead_letters.model_copy(update={"consumers": ()})}
    )
    assert [b for b in acl_bindings([alone]) if b.principal == "User:turnwire_ops"] == [looks]


def test_bindings_come_in_one_order_without_repeats() -> None:
    assert list(BINDINGS) == sorted(set(BINDINGS))
    assert acl_bindings(reversed(load_topics())) == BINDINGS
