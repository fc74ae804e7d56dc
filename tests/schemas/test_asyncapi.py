"""The AsyncAPI document is sound: references resolve, schemas are schemas, examples fit."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from schemas.export import ASYNCAPI_PATH, ROOT
from schemas.registry import ALL_EVENTS, EVENTS_OF_TOPIC

DOCUMENT: dict[str, Any] = yaml.safe_load((ROOT / ASYNCAPI_PATH).read_text(encoding="utf-8"))

REFERENCE = {
    "type": "object",
    "required": ["$ref"],
    "properties": {"$ref": {"type": "string", "pattern": "^#/"}},
    "additionalProperties": False,
}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


def map_of(schema: dict[str, Any]) -> dict[str, Any]:
    """An object whose keys are names and whose values are all of one kind."""
    return {
        "type": "object",
        "propertyNames": {"pattern": "^[A-Za-z0-9_.-]+$"},
        "additionalProperties": schema,
        "minProperties": 1,
    }


# The part of AsyncAPI 3.0.0 that the document uses, field by field, and nothing beside it.
TEXT = {"type": "string", "minLength": 1}
SHAPE = closed(
    ["asyncapi", "info", "channels", "operations", "components"],
    asyncapi={"const": "3.0.0"},
    info=closed(["title", "version"], title=TEXT, version=TEXT, description=TEXT),
    defaultContentType=TEXT,
    servers=map_of(closed(["host", "protocol"], host=TEXT, protocol=TEXT, description=TEXT)),
    channels=map_of(
        closed(
            ["address", "messages"],
            address=TEXT,
            description=TEXT,
            messages=map_of(REFERENCE),
            bindings={"type": "object"},
        )
    ),
    operations=map_of(
        closed(
            ["action", "channel", "messages"],
            action={"enum": ["send", "receive"]},
            channel=REFERENCE,
            summary=TEXT,
            messages={"type": "array", "minItems": 1, "items": REFERENCE},
        )
    ),
    components=closed(
        ["messages", "schemas"],
        messages=map_of(
            closed(
                ["name", "payload"],
                name=TEXT,
                title=TEXT,
                summary=TEXT,
                contentType=TEXT,
                headers={"type": "object"},
                payload={"type": "object"},
                bindings={"type": "object"},
                examples={
                    "type": "array",
                    "minItems": 1,
                    "items": closed(["payload"], payload={"type": "object"}),
                },
            )
        ),
        schemas=map_of({"type": "object"}),
    ),
)


def references(node: Any) -> Iterator[str]:
    """Every ``$ref`` below a node, examples left out."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            elif key != "examples":
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(document: dict[str, Any], reference: str) -> Any:
    """What a local reference points at; KeyError where it points at nothing."""
    node: Any = document
    for part in reference.removeprefix("#/").split("/"):
        node = node[part.replace("~1", "/").replace("~0", "~")]
    return node


def faults(document: dict[str, Any]) -> list[str]:
    """Everything that makes the document unsound."""
    found = []
    for reference in references(document):
        try:
            resolve(document, reference)
        except KeyError:
            found.append(f"{reference} points at nothing")
    if found:
        return found
    for name, operation in document["operations"].items():
        channel = operation["channel"]["$ref"]
        found += [
            f"{name} uses {message['$ref']}, which is not of its channel"
            for message in operation["messages"]
            if not message["$ref"].startswith(f"{channel}/messages/")
        ]
    for name, message in document["components"]["messages"].items():
        schema = {**message["payload"], "components": document["components"]}
        validator = Draft202012Validator(schema)
        for example in message["examples"]:
            try:
                validator.validate(example["payload"])
            except ValidationError as error:
                found.append(f"{name}: an example does not fit: {error.message}")
    return found


def test_the_document_is_sound() -> None:
    assert faults(DOCUMENT) == []


def test_the_document_has_the_shape_of_asyncapi_3() -> None:
    Draft202012Validator.check_schema(SHAPE)
    Draft202012Validator(SHAPE).validate(DOCUMENT)


@pytest.mark.parametrize(
    "edit",
    [
        {"asyncapi": "2.6.0"},
        {"info": {"title": "Turnwire topics"}},
        {"servers": {"local": {"url": "kafka://127.0.0.1"}}},
        {"channels": {"turn.events": {"adress": "turn.events", "messages": {}}}},
        {"topics": {}},
    ],
)
def test_a_document_of_another_shape_is_noticed(edit: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Draft202012Validator(SHAPE).validate({**DOCUMENT, **edit})


def test_every_payload_schema_is_a_schema() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_topic_is_a_channel_with_exactly_its_events() -> None:
    channels = {
        channel["address"]: set(channel["messages"]) for channel in DOCUMENT["channels"].values()
    }
    assert channels == {
        topic: {event.__name__ for event in events} for topic, events in EVENTS_OF_TOPIC.items()
    }


def test_every_event_is_a_message_with_examples() -> None:
    messages = DOCUMENT["components"]["messages"]
    assert set(messages) == {event.__name__ for event in ALL_EVENTS}
    assert all(message["examples"] for message in messages.values())


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (
            ["channels", "turn.events", "messages", "TurnEndedV1", "$ref"],
            "#/components/messages/TurnVanishedV1",
            "points at nothing",
        ),
        (
            ["operations", "ingestion.send.turn.events", "messages", 0, "$ref"],
            "#/channels/turn.requests/messages/TurnRequestedV1",
            "not of its channel",
        ),
        (
            ["components", "messages", "TurnEndedV1", "examples", 0, "payload", "version"],
            2,
            "does not fit",
        ),
    ],
)
def test_an_unsound_document_is_noticed(path: list[str | int], value: object, said: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    node: Any = document
    for part in path[:-1]:
        node = node[part]
    node[path[-1]] = value

    assert any(said in fault for fault in faults(document))
