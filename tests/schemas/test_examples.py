"""Every record that was ever published can still be read: the golden examples stand for them."""

import json
from pathlib import Path

import orjson
import pytest
from jsonschema import Draft202012Validator

from schemas.envelope import Data, encode
from schemas.errors import MalformedEvent
from schemas.export import EXAMPLES_FOLDER, examples_of, json_schemas
from schemas.registry import ALL_EVENTS, EVENTS_OF_TOPIC, TURN_EVENTS, TURN_REQUESTS, decode
from schemas.requests import ConversationUpdateRequestedV1
from schemas.turns import TurnCancelRequestedV1 as CANCEL  # noqa: N814 -- a constant of this file

PATHS = sorted(EXAMPLES_FOLDER.rglob("*.json"))


def example_id(path: Path) -> str:
    return path.relative_to(EXAMPLES_FOLDER).as_posix()


@pytest.mark.parametrize("path", PATHS, ids=example_id)
def test_an_example_is_read_as_what_its_folder_says(path: Path) -> None:
    event = decode(path.read_bytes())

    assert (event.type, str(event.version)) == (path.parts[-3], path.parts[-2])
    assert {"id", "tenant_id", "conversation_id"} <= json.loads(path.read_text()).keys()


@pytest.mark.parametrize("path", PATHS, ids=example_id)
def test_an_example_that_is_written_again_is_the_same_event(path: Path) -> None:
    event = decode(path.read_bytes())

    assert decode(encode(event)) == event


@pytest.mark.parametrize("path", PATHS, ids=example_id)
def test_an_example_fits_the_schema_of_readers(path: Path) -> None:
    record = json.loads(path.read_text())
    schemas = json_schemas()
    data_schema = schemas[f"schemas/json/{record['type']}.v{record['version']}.read.schema.json"]

    Draft202012Validator(data_schema).validate(record["data"])
    Draft202012Validator(schemas["schemas/json/envelope.read.schema.json"]).validate(record)


@pytest.mark.parametrize("event", ALL_EVENTS, ids=lambda event: event.__name__)
def test_what_we_write_today_fits_the_schema_of_writers(event: type[Data]) -> None:
    schema = json_schemas()[f"schemas/json/{event.TYPE}.v{event.VERSION}.written.schema.json"]
    for _, record in examples_of(event):
        written = orjson.loads(encode(decode(orjson.dumps(record))))
        Draft202012Validator(schema).validate(written["data"])


@pytest.mark.parametrize("event", ALL_EVENTS, ids=lambda event: event.__name__)
def test_every_event_has_an_example_and_every_field_is_set_in_one(event: type[Data]) -> None:
    seen: set[str] = set()
    for _, record in examples_of(event):
        seen.update(name for name, value in record["data"].items() if value is not None)

    assert set(event.model_fields) <= seen


def test_no_example_belongs_to_an_event_that_is_gone() -> None:
    known = {(event.TYPE, str(event.VERSION)) for event in ALL_EVENTS}
    assert {(path.parts[-3], path.parts[-2]) for path in PATHS} == known


def test_an_example_that_lost_a_required_field_would_be_noticed() -> None:
    record = json.loads(PATHS[0].read_text())
    record["data"] = {}
    with pytest.raises(Exception, match="does not fit its schema"):
        decode(json.dumps(record).encode())


def test_an_update_that_changes_nothing_is_no_update() -> None:
    record = examples_of(ConversationUpdateRequestedV1)
    _, value = next(iter(record))
    value["data"] |= {"title": None, "policy": None}

    with pytest.raises(MalformedEvent):
        decode(json.dumps(value).encode())


def test_a_cancel_is_the_same_event_as_a_wish_and_as_a_fact() -> None:
    told = {stem: decode(json.dumps(value).encode()) for stem, value in examples_of(CANCEL)}

    assert told["asked_at_the_door"].data.request_id == told["asked_at_the_door"].id
    assert told["by_the_user"].data.principal_id is None
    for topic in (TURN_REQUESTS, TURN_EVENTS):
        assert CANCEL in EVENTS_OF_TOPIC[topic]
    assert ALL_EVENTS.count(CANCEL) == 1
