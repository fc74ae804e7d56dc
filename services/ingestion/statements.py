"""The named statements of ingestion, and rows in the form that they take."""

from collections.abc import Sequence
from typing import Any

from libs.postgres import load_queries

SQL = load_queries("services.ingestion")


def columns(rows: Sequence[Sequence[Any]], *names: str) -> dict[str, Any]:
    """Rows as the parallel arrays that ``unnest`` reads."""
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}
