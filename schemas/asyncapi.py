"""Builds the AsyncAPI 3 document of all topics from the topic files and the event registry."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from schemas.envelope import Data, Envelope
from schemas.registry import ALL_EVENTS
from schemas.topic_files import TopicFile

ASYNCAPI_VERSION = "3.0.0"
KAFKA_BINDING_VERSION = "0.5.0"
DOCUMENT_VERSION = "1.1.0"  # of the contract: rises with an added event, topic or version

_SCHEMA_REF = "#/components/schemas/{model}"
_UUID_TEXT = {"type": "string", "format": "uuid"}
_HEADERS: dict[str, Any] = {
    "type": "object",
    "required": ["ce_id", "ce_type", "ce_source", "event-version"],
    "properties": {
        "ce_id": {**_UUID_TEXT, "description": "The envelope's id."},
        "ce_type": {"type": "string", "description": "The envelope's type."},
        "ce_source": {"type": "string", "description": "The envelope's source."},
        "event-version": {"type": "string", "description": "The envelope's version."},
        "traceparent": {"type": "string", "description": "W3C trace context of the turn."},
    },
}
_DOOR_FIELDS = ("door-key-id", "door-mac")
_DOOR_HEADERS: dict[str, Any] = {
    "type": "object",
    "required": [*_HEADERS["required"], *_DOOR_FIELDS],
    "properties": {
        **_HEADERS["properties"],
        "door-key-id": {**_UUID_TEXT, "description": "Which door key signed the record."},
        "door-mac": {
            "type": "string",
            "pattern": "^[0-9a-f]{64}$",
            "description": "HMAC-SHA256 of the raw bytes of the value, in hexadecimal.",
        },
    },
}


def document(topics: Iterable[TopicFile], examples: Mapping[str, list[Any]]) -> dict[str, Any]:
    """The whole document, in a fixed order.

    Args:
        topics: The topic files; every event they name must be in the registry.
        examples: Records by message name, such as ``TurnRequestedV1``.

    Raises:
        KeyError: A topic file names an event that the registry does not have.
    """
    files = tuple(topics)
    known = {(event.TYPE, event.VERSION): event for event in ALL_EVENTS}
    events = {file.topic: [known[e.type, e.version] for e in file.events] for file in files}
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": {
            "title": "Turnwire topics",
            "version": DOCUMENT_VERSION,
            "description": (
                "What the services of Turnwire tell each other. Every value is one JSON "
                "envelope; the record key is the conversation's id. Readers ignore fields that "
                "they do not know; a later version of an event is a message of its own."
            ),
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "127.0.0.1:9092",
                "protocol": "kafka",
                "description": "The broker of a local stack; KAFKA_BOOTSTRAP_SERVERS names yours.",
            }
        },
        "channels": {file.topic: _channel(file, events[file.topic]) for file in files},
        "operations": dict(_operations(files, events)),
        "components": {
            "messages": {
                event.__name__: _message(
                    [file for file in files if event in events[file.topic]],
                    event,
                    examples.get(event.__name__, []),
                )
                for file in files
                for event in events[file.topic]
            },
            "schemas": _schemas(),
        },
    }


def _channel(file: TopicFile, events: Iterable[type[Data]]) -> dict[str, Any]:
    return {
        "address": file.topic,
        "description": f"{file.description.strip()}\nOwned by {file.owner}.",
        "messages": {
            event.__name__: {"$ref": f"#/components/messages/{event.__name__}"} for event in events
        },
        "bindings": {
            "kafka": {
                "topic": file.topic,
                "partitions": file.partitions.production,
                "replicas": file.replication.production,
                "topicConfiguration": {
                    "cleanup.policy": [file.config["cleanup.policy"]],
                    "retention.ms": int(file.config["retention.ms"]),
                    "max.message.bytes": int(file.config["max.message.bytes"]),
                },
                "bindingVersion": KAFKA_BINDING_VERSION,
            }
        },
    }


def _operations(
    files: Iterable[TopicFile], events: Mapping[str, list[type[Data]]]
) -> Iterable[tuple[str, dict[str, Any]]]:
    """One operation for each party and topic: who sends, who receives."""
    for file in files:
        receivers = (*file.consumers, *file.readers)
        for action, parties in (("send", file.producers), ("receive", receivers)):
            for party in parties:
                yield (
                    f"{party}.{action}.{file.topic}",
                    {
                        "action": action,
                        "channel": {"$ref": f"#/channels/{file.topic}"},
                        "summary": f"{party} {action}s {file.topic}.",
                        "messages": [
                            {"$ref": f"#/channels/{file.topic}/messages/{event.__name__}"}
                            for event in events[file.topic]
                        ],
                    },
                )


def _headers(files: Iterable[TopicFile]) -> dict[str, Any]:
    """Of a message that travels on these topics: what the door signs is required there alone."""
    is_of_door = ["door" in file.producers for file in files]
    if not any(is_of_door):
        return _HEADERS
    return _DOOR_HEADERS if all(is_of_door) else {**_DOOR_HEADERS, "required": _HEADERS["required"]}


def _message(files: Sequence[TopicFile], event: type[Data], examples: list[Any]) -> dict[str, Any]:
    summary = (event.__doc__ or "").strip().splitlines()[0]
    return {
        "name": event.__name__,
        "title": f"{event.TYPE}, version {event.VERSION}",
        "summary": summary,
        "contentType": "application/json",
        "headers": _headers(files),
        "payload": {
            "allOf": [
                {"$ref": _SCHEMA_REF.format(model="Envelope")},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": event.TYPE},
                        "version": {"const": event.VERSION},
                        "data": {"$ref": _SCHEMA_REF.format(model=event.__name__)},
                    },
                },
            ]
        },
        "bindings": {
            "kafka": {
                "key": {**_UUID_TEXT, "description": "The conversation's id."},
                "bindingVersion": KAFKA_BINDING_VERSION,
            }
        },
        "examples": [{"payload": example} for example in examples],
    }


def _schemas() -> dict[str, Any]:
    models: list[type[BaseModel]] = [Envelope, *ALL_EVENTS]
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=_SCHEMA_REF
    )
    return dict(sorted(definitions["$defs"].items()))
