"""A change of a schema is additive or breaking, and we can tell which."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from schemas.changes import breaking_changes
from schemas.export import json_schemas

OLD: dict[str, Any] = {
    "type": "object",
    "title": "Requested",
    "properties": {
        "title": {"type": "string", "maxLength": 200, "description": "Shown in lists."},
        "policy": {"enum": ["serialize", "reject"], "type": "string"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["title", "policy"],
    "$defs": {"Part": {"type": "object", "properties": {"text": {"type": "string"}}}},
}

Edit = Callable[[dict[str, Any]], object]

ADDITIVE: dict[str, Edit] = {
    "an optional property": lambda s: s["properties"].update(
        mood={"type": "string", "default": ""}
    ),
    "an optional property inside a part": lambda s: s["$defs"]["Part"]["properties"].update(
        language={"type": "string", "default": "en"}
    ),
    "another description": lambda s: s["properties"]["title"].update(description="Shown."),
    "another title of the schema": lambda s: s.update(title="Asked"),
    "a definition for a new property": lambda s: s["$defs"].update(Tool={"type": "object"}),
}

BREAKING: dict[str, tuple[Edit, str]] = {
    "a required property": (
        lambda s: (s["properties"].update(mood={"type": "string"}), s["required"].append("mood")),
        "$.required: mood became required",
    ),
    "a removed property": (
        lambda s: s["properties"].pop("note"),
        "$.properties.note was removed",
    ),
    "a property called title that is removed": (
        lambda s: s["properties"].pop("title"),
        "$.properties.title was removed",
    ),
    "another type": (
        lambda s: s["properties"]["title"].update(type="integer"),
        "$.properties.title.type changed from 'string' to 'integer'",
    ),
    "a value more in a closed list": (
        lambda s: s["properties"]["policy"]["enum"].append("branch"),
        "$.properties.policy.enum changed from ['serialize', 'reject'] "
        "to ['serialize', 'reject', 'branch']",
    ),
    "a tighter limit": (
        lambda s: s["properties"]["title"].update(maxLength=100),
        "$.properties.title.maxLength changed from 200 to 100",
    ),
    "a new limit": (
        lambda s: s["properties"]["parts"].update(maxItems=4),
        "$.properties.parts.maxItems was added",
    ),
    "another type inside a part": (
        lambda s: s["$defs"]["Part"]["properties"]["text"].update(type="number"),
        "$.$defs.Part.properties.text.type changed from 'string' to 'number'",
    ),
    "a default of another type": (
        lambda s: s["properties"]["note"].update(default=False),
        "$.properties.note.default changed from None to False",
    ),
    "a property that became optional": (
        lambda s: s["required"].remove("policy"),
        "$.required: policy became optional",
    ),
}


@pytest.mark.parametrize("edit", ADDITIVE.values(), ids=ADDITIVE)
def test_an_additive_change_breaks_nothing(edit: Edit) -> None:
    new = copy.deepcopy(OLD)
    edit(new)

    assert new != OLD
    assert breaking_changes(OLD, new) == ()


@pytest.mark.parametrize(("edit", "said"), BREAKING.values(), ids=BREAKING)
def test_a_breaking_change_is_named(edit: Edit, said: str) -> None:
    new = copy.deepcopy(OLD)
    edit(new)

    assert breaking_changes(OLD, new) == (said,)


def test_every_schema_is_compatible_with_itself() -> None:
    assert all(breaking_changes(schema, schema) == () for schema in json_schemas().values())
