"""Loads the named statements of a ``queries.sql`` file."""

import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

_NAME = re.compile(r"^-- name: ([a-z][a-z0-9_]*)[ \t]*$", re.MULTILINE)


def parse_queries(text: str) -> dict[str, str]:
    """Split a file at its ``-- name: xyz`` lines; comments under a name stay with their statement.

    Raises:
        ValueError: A name stands twice, or a block holds no statement.
    """
    parts = _NAME.split(text)
    queries: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        statement = body.strip().removesuffix(";").strip()
        if name in queries or not statement:
            msg = f"query {name!r} stands twice or is empty"
            raise ValueError(msg)
        queries[name] = statement
    return queries


def load_queries(package: str) -> Mapping[str, str]:
    """The statements of ``queries.sql`` inside ``package`` (such as ``services.ingestion``)."""
    text = resources.files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    return MappingProxyType(parse_queries(text))
