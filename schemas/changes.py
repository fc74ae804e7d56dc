"""Says what a change of an event's schema breaks; an empty answer means it is additive."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PROSE = frozenset({"title", "description", "examples", "$comment"})
"""Keywords that say something to people and nothing to a validator."""


def breaking_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Where ``new`` may refuse what ``old`` accepted, or say it in another way.

    Additive inside a version is one thing only: another property, with a default, in an object.
    Everything else that a validator can see is breaking, a loosened limit too, since readers of
    the day before still hold the tighter one.
    """
    return tuple(_of_schema(old, new, "$"))


def _of_schema(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for keyword in sorted((old.keys() | new.keys()) - PROSE):
            here = f"{path}.{keyword}"
            if keyword in ("properties", "$defs"):
                yield from _of_names(old.get(keyword, {}), new.get(keyword, {}), here)
            elif keyword not in new:
                yield f"{here} was removed"
            elif keyword not in old:
                yield f"{here} was added"
            elif keyword == "required":
                yield from _of_required(old[keyword], new[keyword], here)
            else:
                yield from _of_schema(old[keyword], new[keyword], here)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _of_schema(before, after, f"{path}[{index}]")
    elif old != new or type(old) is not type(new):
        yield f"{path} changed from {old!r} to {new!r}"


def _of_names(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> Iterator[str]:
    """Properties by name: a new one is fine, unless ``required`` names it."""
    for name, schema in old.items():
        if name in new:
            yield from _of_schema(schema, new[name], f"{path}.{name}")
        else:
            yield f"{path}.{name} was removed"


def _of_required(old: Sequence[str], new: Sequence[str], path: str) -> Iterator[str]:
    yield from (f"{path}: {name} became required" for name in sorted(set(new) - set(old)))
    yield from (f"{path}: {name} became optional" for name in sorted(set(old) - set(new)))
