"""The services consume and publish exactly what the topic files say."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.kafka.acls import group_prefix_of
from schemas import registry
from schemas.topic_files import load_topics
from services.ops.projections import EFFECTS
from tests.architecture.tree import ROOT, SERVICES, files, parsed

TOPIC_OF_NAME = {
    name: value
    for name, value in vars(registry).items()
    if isinstance(value, str) and value in registry.EVENTS_OF_TOPIC
}


def consumed(tree: ast.Module) -> Iterator[str]:
    """Topics of the handler classes of a module: the names in ``topics = (…)``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "topics":
            for name in ast.walk(node.value):
                if isinstance(name, ast.Name) and name.id in TOPIC_OF_NAME:
                    yield TOPIC_OF_NAME[name.id]


def groups(tree: ast.Module) -> Iterator[str]:
    """Names of consumer groups: what ``consumer`` or ``…CONSUMER`` is set to."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            value = getattr(node, "value", None)
            if ast.unparse(target).lower().endswith("consumer") and isinstance(value, ast.Constant):
                yield str(value.value)


def published(tree: ast.Module) -> Iterator[str]:
    """Topics that stand as an argument of a call that makes a record."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("outbox_message", "Record")
        ):
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(argument, ast.Name) and argument.id in TOPIC_OF_NAME:
                    yield TOPIC_OF_NAME[argument.id]


def trees(service: str, *, root: Path = ROOT) -> Iterator[ast.Module]:
    yield from (parsed(path) for path in files(f"services/{service}", root=root))


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_consumes_what_the_topic_files_say(service: str) -> None:
    by_file = {topic.topic for topic in load_topics() if service in topic.consumers}
    assert {topic for tree in trees(service) for topic in consumed(tree)} == by_file


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_publishes_what_the_topic_files_say(service: str) -> None:
    by_file = {topic.topic for topic in load_topics() if service in topic.producers}
    assert {topic for tree in trees(service) for topic in published(tree)} == by_file


@pytest.mark.parametrize("service", SERVICES)
def test_consumer_groups_are_called_after_their_service(service: str) -> None:
    names = [name for tree in trees(service) for name in groups(tree)]
    assert [name for name in names if not name.startswith(group_prefix_of(service))] == []
    assert bool(names) == any(service in topic.consumers for topic in load_topics())


def test_the_command_line_refuses_to_replay_every_consumer_there_is() -> None:
    """Each of them writes rows that others act on."""
    names = {name for service in SERVICES for tree in trees(service) for name in groups(tree)}
    assert set(EFFECTS) == names


def test_what_a_source_consumes_and_publishes_is_found() -> None:
    tree = ast.parse(
        "CONSUMER: Final = 'a.b'\n"
        "class H:\n"
        "  consumer = 'c.d'\n"
        "  topics = (TURN_EVENTS, CONTEXT_EVENTS)\n"
        "  def f(self): return [outbox_message(event, GENERATION_EVENTS)]\n"
    )
    assert set(groups(tree)) == {"a.b", "c.d"}
    assert set(consumed(tree)) == {"turn.events", "context.events"}
    assert set(published(tree)) == {"generation.events"}
