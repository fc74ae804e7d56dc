"""Tells JSON schemas as tables for people: bodies of the HTTP interface, events on Kafka."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

_KINDS: Final[Mapping[str, str]] = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
    "array": "list",
}
_FORMATS: Final[Mapping[str, str]] = {"uuid": "UUID", "date-time": "time", "binary": "bytes"}
_BOUNDS: Final[Mapping[str, str]] = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
}


def definitions(schemas: Mapping[str, Schema], names: Iterable[str]) -> str:
    """A section with a table of fields for each name."""
    return "".join(_definition(name, schemas[name]) for name in names)


def kind_of(schema: Schema) -> str:
    """What a value may be, with a link where it is one of the definitions of the page."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return _either(schema[choice])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    named = _FORMATS.get(schema.get("format", "")) or _KINDS.get(schema.get("type", ""), "anything")
    if items := schema.get("items"):
        named = f"list of {kind_of(items)}"
    bounds = [
        "not empty" if (key, schema[key]) == ("minLength", 1) else words.format(schema[key])
        for key, words in _BOUNDS.items()
        if key in schema
    ]
    return ", ".join([named, *bounds])


def said(text: str) -> str:
    """A description on one line of a table."""
    return re.sub(r"\s+", " ", text).strip().replace("``", "`").replace("|", "\\|")


def _either(choices: Iterable[Schema]) -> str:
    kinds = [kind_of(one) for one in choices if one.get("type") != "null"]
    if len(kinds) < len(list(choices)):
        kinds.append("null")
    return " or ".join(kinds)


def _definition(name: str, schema: Schema) -> str:
    lines = [f"\n## {name}\n"]
    if description := schema.get("description"):
        lines.append(f"\n{said(description)}\n")
    fields = schema.get("properties", {})
    if not fields:
        lines.append(
            "\nNo field.\n" if schema.get("type") == "object" else f"\n{kind_of(schema)}\n"
        )
        return "".join(lines)
    required = schema.get("required", ())
    lines.append("\n| field | kind | meaning |\n|---|---|---|\n")
    for field, one in fields.items():
        lines.append(f"| `{field}` | {kind_of(one)} | {_meaning(one, field in required)} |\n")
    return "".join(lines)


def _meaning(schema: Schema, is_required: bool) -> str:  # noqa: FBT001 -- of one table
    words = [said(schema.get("description", ""))]
    if not is_required and "const" not in schema:
        default = schema.get("default")
        words.append("Optional." if default in (None, [], {}) else f"Default `{_plain(default)}`.")
    return " ".join(word for word in words if word)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
