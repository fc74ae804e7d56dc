"""Rows as documents that JSON can hold, and the figures that are made of several rows. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

Row: TypeAlias = Mapping[str, Any]
Document: TypeAlias = dict[str, Any]

SILENT_AFTER_S = 20.0
"""A process says every 5 s that it runs; one that missed four of them is gone or frozen."""

SERVICES = ("frontend_gateway", "ingestion", "context_assembly", "llm_gateway")


def iso(at: datetime) -> str:
    """A time in UTC as RFC 3339 has it, to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def told(row: Row) -> Document:
    """A row with ids and times as text; a long number of seconds is cut to milliseconds."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, float):
        return round(value, 3)
    return value


def health_of(instance: Row) -> str:
    """How one process is: ``ready``, ``degraded``, ``not ready`` or ``silent``."""
    if instance["silent_s"] > SILENT_AFTER_S:
        return "silent"
    checks = list(instance["checks"].values())
    if any(check["state"] == "failed" for check in checks):
        return "not ready"
    if any(check["state"] == "degraded" for check in checks):
        return "degraded"
    return "ready"


def services_of(instances: Sequence[Row]) -> list[Document]:
    """One document per service, in the order of a turn; a service that never ran is ``absent``.

    The lag is that of the processes that still tell it, by topic.
    """
    found: list[Document] = []
    for name in SERVICES:
        rows = [row for row in instances if row["service"] == name]
        processes = [{**told(row), "health": health_of(row)} for row in rows]
        running = [one for one in processes if one["health"] != "silent"]
        lag: dict[str, int] = {}
        for one in running:
            for topic, records in one["lag"].items():
                lag[topic] = lag.get(topic, 0) + records
        found.append(
            {
                "service": name,
                "health": _health(processes),
                "running": len(running),
                "silent": len(processes) - len(running),
                "versions": sorted({one["version"] for one in running}),
                "lag": sum(lag.values()) if running else None,
                "lag_by_topic": lag,
                "processes": processes,
            }
        )
    return found


def _health(processes: Sequence[Document]) -> str:
    if not processes:
        return "absent"
    healths = {one["health"] for one in processes}
    # The best process decides: a service works as long as one of its processes does.
    return next(h for h in ("ready", "degraded", "not ready", "silent") if h in healths)


def leases_of(rows: Sequence[Row]) -> Document:
    """How many workers hold a lease, and what those still do whose lease has run out."""
    held = [row for row in rows if row["left_s"] > 0]
    lost = [row for row in rows if row["left_s"] <= 0]
    return {
        "held": len(held),
        "run_out": len(lost),
        "running": sum(row["running"] for row in held),
        "orphaned": sum(row["running"] for row in lost),
    }
