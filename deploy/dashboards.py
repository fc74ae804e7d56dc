"""Writes Grafana's dashboards from one short description each.

``python -m deploy.dashboards`` writes them, with ``--check`` it only says what is stale. The JSON
is what Grafana provisions; nobody edits it there or by hand.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from deploy.generated import write_or_check

FOLDER_PATH = "deploy/observability/grafana/dashboards"
DATA_SOURCE: Final = {"type": "prometheus", "uid": "turnwire-prometheus"}

Unit = Literal["short", "s", "ops", "percentunit", "bytes", "currencyUSD", "none"]
Kind = Literal["timeseries", "stat", "table"]

COLUMNS = 24
"""Of Grafana's grid."""

HEIGHTS: Final[dict[Kind, int]] = {"stat": 4, "timeseries": 8, "table": 8}

SCHEMA_VERSION = 39
"""Of the dashboards' JSON; Grafana migrates older ones by itself and refuses none."""


@dataclass(frozen=True, slots=True)
class Query:
    """One line of a panel: what Prometheus is asked, and how the line is called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture.

    Attributes:
        meaning: What a person reads off it, shown behind the panel's (i).
        width: In columns of the grid.
    """

    title: str
    queries: tuple[Query, ...]
    meaning: str
    unit: Unit = "short"
    kind: Kind = "timeseries"
    width: int = 12


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page; its uid is part of its address in Grafana and never changes."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    """The median and the 95th percentile of a histogram, by a label if one is given."""
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        Query(
            f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))",
            f"{legend}{name}",
        )
        for q, name in ((0.5, "p50"), (0.95, "p95"))
    )


def rate(metric: str, *labels: str) -> tuple[Query, ...]:
    """Events a second of a counter, by labels."""
    by = f" by ({', '.join(labels)})" if labels else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    return (Query(f"sum{by} (rate({metric}[$__rate_interval]))", legend),)


OVERVIEW = Dashboard(
    "turnwire-overview",
    "Turnwire: overview",
    (
        Panel(
            "Processes that answer",
            (Query('sum(up{job=~"frontend_gateway|ingestion|context_assembly|llm_gateway"})'),),
            "One of each service is the least; fewer means that turns wait.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Open turns",
            (Query("max(turnwire_turns_in_progress)"),),
            "Accepted turns without an end; each process of ingestion reports the same rows.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Past their deadline",
            (Query("max(turnwire_turns_overdue)"),),
            "Must come back to 0 within 15 seconds.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Oldest event in an outbox",
            (Query("max(turnwire_outbox_oldest_seconds)"),),
            "Above 10 seconds something is stuck.",
            unit="s",
            kind="stat",
            width=4,
        ),
        Panel(
            "Dead letters in a day",
            (Query("sum(increase(turnwire_dead_letters_total[24h])) or vector(0)"),),
            "Each of them is worth a look.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Broken promises in a day",
            (Query("sum(increase(turnwire_invariant_violations_total[24h])) or vector(0)"),),
            "Must be 0; anything else is a bug.",
            kind="stat",
            width=4,
        ),
        Panel(
            "Turns a second",
            (
                Query("sum(rate(turnwire_turns_accepted_total[$__rate_interval]))", "accepted"),
                Query(
                    "sum by (status) (rate(turnwire_turns_terminal_total[$__rate_interval]))",
                    "{{status}}",
                ),
            ),
            "Accepted and ended keep pace; where they part, turns pile up.",
            unit="ops",
        ),
        Panel(
            "Seconds to the first word",
            quantiles("turnwire_turn_time_to_first_token_seconds"),
            "From acceptance on. Our own share is some milliseconds, the rest is the provider's.",
            unit="s",
        ),
        Panel(
            "Answers over HTTP, by status",
            rate("turnwire_http_request_duration_seconds_count", "status"),
            "What clients were told, by status.",
            unit="ops",
        ),
        Panel(
            "Lag of the event loop",
            quantiles("turnwire_event_loop_lag_seconds", "job"),
            "Something blocks the loop, or the CPU is full, where it rises.",
            unit="s",
        ),
        Panel(
            "What runs",
            (Query("sum by (job, version, python) (turnwire_build_info)"),),
            "Two versions for long: a deployment is stuck.",
            kind="table",
            width=24,
        ),
    ),
)

TURNS = Dashboard(
    "turnwire-turns",
    "Turnwire: turns",
    (
        Panel(
            "Ends a second, by state and reason",
            rate("turnwire_turns_terminal_total", "status", "reason"),
            "The reason names the service to look at.",
            unit="ops",
        ),
        Panel(
            "Accepted a second, by policy",
            rate("turnwire_turns_accepted_total", "policy"),
            "Load, and how conversations are used.",
            unit="ops",
        ),
        Panel(
            "Duration of a turn",
            quantiles("turnwire_turn_duration_seconds"),
            "From acceptance to the end, waiting in the queue included.",
            unit="s",
        ),
        Panel(
            "Open turns",
            (
                Query("max(turnwire_turns_in_progress)", "open"),
                Query("max(turnwire_turns_overdue)", "past their deadline"),
            ),
            "Rises while accepted turns do not: look at the provider, then at lag.",
        ),
        Panel(
            "Recoveries a second, by cause",
            rate("turnwire_turn_recoveries_total", "cause"),
            "What sweepers had to take up or end: workers die or stall.",
            unit="ops",
        ),
        Panel(
            "Refused writes of late workers, by place",
            rate("turnwire_fence_refusals_total", "where"),
            "Harmless each; many mean that workers stall for longer than their lease.",
            unit="ops",
        ),
        Panel(
            "Known keys a second, by result",
            rate("turnwire_idempotent_replays_total", "result"),
            "Replayed: clients retry. Conflict: a client uses a key twice.",
            unit="ops",
        ),
        Panel(
            "Blocks left out of plans, by reason",
            rate("turnwire_plan_excluded_total", "reason"),
            "When budget rises, conversations outgrow the window.",
            unit="ops",
        ),
        Panel(
            "Broken promises, by name",
            (Query("sum by (invariant) (turnwire_invariant_violations_total)", "{{invariant}}"),),
            "Must stay empty.",
            width=24,
        ),
    ),
)

STREAMS = Dashboard(
    "turnwire-streams",
    "Turnwire: streams",
    (
        Panel(
            "Open streams",
            (Query("sum by (instance) (turnwire_sse_streams_active)", "{{instance}}"),),
            "Above about 1,000 a process, add a gateway.",
        ),
        Panel(
            "Streams taken up again, by result",
            rate("turnwire_sse_resumes_total", "result"),
            "Connections break, a proxy's time-out perhaps; many snapshots: Redis loses streams.",
            unit="ops",
        ),
        Panel(
            "Bytes that wait for slow clients",
            (Query("sum by (instance) (turnwire_sse_buffer_bytes)", "{{instance}}"),),
            "Bounded per client; a steady rise means that slow ones are not cut.",
            unit="bytes",
        ),
        Panel(
            "Slow clients cut",
            rate("turnwire_sse_slow_clients_closed_total", "instance"),
            "They resume by their last id.",
            unit="ops",
        ),
        Panel(
            "Failed uses of Redis, by service and use",
            rate("turnwire_live_stream_errors_total", "job", "use"),
            "Turns go on without it; clients get checkpoints once a second.",
            unit="ops",
        ),
        Panel(
            "Requests turned away, by reason",
            rate("turnwire_admission_rejected_total", "reason"),
            "A limit is too low or a client too fast; dependency points at Kafka.",
            unit="ops",
        ),
        Panel(
            "Seconds to answer, by route",
            (
                Query(
                    "histogram_quantile(0.95, sum by (le, method, route) "
                    "(rate(turnwire_http_request_duration_seconds_bucket[$__rate_interval])))",
                    "{{method}} {{route}}",
                ),
            ),
            "95th percentile; of a stream, to its first byte.",
            unit="s",
            width=24,
        ),
    ),
)

LLM = Dashboard(
    "turnwire-llm",
    "Turnwire: models",
    (
        Panel(
            "Requests a second, by outcome",
            rate("turnwire_llm_requests_total", "model", "outcome"),
            "Repeats included. Throttled or unavailable: the provider's limits or its status.",
            unit="ops",
        ),
        Panel(
            "Share of requests that go wrong",
            (
                Query(
                    "sum by (model) (rate(turnwire_llm_requests_total{"
                    'outcome=~"unavailable|timeout|throttled|refused"}[$__rate_interval]))'
                    " / sum by (model) (rate(turnwire_llm_requests_total[$__rate_interval]))",
                    "{{model}}",
                ),
            ),
            "Above a fifth for ten minutes an alert is raised.",
            unit="percentunit",
        ),
        Panel(
            "Tokens a second, by direction",
            rate("turnwire_llm_tokens_total", "direction"),
            "Cached is a part of input.",
            unit="ops",
        ),
        Panel(
            "Spent in an hour",
            (Query("sum(increase(turnwire_llm_cost_usd_total[1h]))", "USD"),),
            "Of models whose price the catalogue knows.",
            unit="currencyUSD",
        ),
        Panel(
            "Tokens of a plan, by section",
            quantiles("turnwire_plan_tokens", "section"),
            "When a section grows, so does the price of every turn.",
        ),
        Panel(
            "Provider's count divided by ours",
            quantiles("turnwire_plan_token_estimate_ratio", "model"),
            "Above the model's safety factor a plan can overflow its window.",
            unit="none",
        ),
    ),
)

KAFKA = Dashboard(
    "turnwire-kafka",
    "Turnwire: Kafka, outbox, inbox",
    (
        Panel(
            "Records behind, by consumer and topic",
            (Query("sum by (job, topic) (turnwire_consumer_lag_records)", "{{job}} {{topic}}"),),
            "The handler is slower than the load where it rises.",
        ),
        Panel(
            "Oldest event in the outbox",
            (Query("max by (job) (turnwire_outbox_oldest_seconds)", "{{job}}"),),
            "Above 10 seconds something is stuck.",
            unit="s",
        ),
        Panel(
            "Events in the outbox",
            (Query("max by (job) (turnwire_outbox_pending)", "{{job}}"),),
            "Committed and not acknowledged by Kafka.",
        ),
        Panel(
            "Events acknowledged a second",
            rate("turnwire_outbox_published_total", "job"),
            "Keeps pace with what is accepted.",
            unit="ops",
        ),
        Panel(
            "Seconds from a poll to its commit",
            quantiles("turnwire_kafka_batch_seconds", "job"),
            "When it rises, look at Postgres: locks, disk, a missing index.",
            unit="s",
        ),
        Panel(
            "Records of a batch",
            quantiles("turnwire_kafka_batch_records", "job"),
            "Always at the largest: the handler is the bottleneck.",
            unit="none",
        ),
        Panel(
            "Repeats dropped a second, by consumer",
            rate("turnwire_inbox_duplicates_total", "consumer"),
            "Bursts follow restarts; a steady rise means that offsets are not committed.",
            unit="ops",
        ),
        Panel(
            "Dead letters, by topic and reason",
            (
                Query(
                    "sum by (job, topic, reason) (turnwire_dead_letters_total)",
                    "{{job}} {{topic}} {{reason}}",
                ),
            ),
            "A burst of one reason: a producer is broken or hostile.",
        ),
    ),
)

DASHBOARDS: Final = (OVERVIEW, TURNS, STREAMS, LLM, KAFKA)


def as_json(dashboard: Dashboard) -> str:
    """A dashboard as Grafana reads it; the same description gives the same text."""
    placed: list[dict[str, Any]] = []
    x = y = row_height = 0
    for number, panel in enumerate(dashboard.panels, start=1):
        if x + panel.width > COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        height = HEIGHTS[panel.kind]
        placed.append(_panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": height}))
        x, row_height = x + panel.width, max(row_height, height)
    page = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["turnwire"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["turnwire"], "title": "Turnwire"}],
        "panels": placed,
    }
    return json.dumps(page, indent=2) + "\n"


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATA_SOURCE,
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "instant": panel.kind != "timeseries",
            "range": panel.kind == "timeseries",
            **({"format": "table"} if panel.kind == "table" else {}),
        }
        for index, query in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def generated_files() -> dict[str, str]:
    """Text of every dashboard, by path below the root."""
    return {
        f"{FOLDER_PATH}/{board.uid.removeprefix('turnwire-')}.json": as_json(board)
        for board in DASHBOARDS
    }


def main(arguments: Sequence[str]) -> int:
    """Write or check; returns the exit code."""
    return write_or_check(generated_files(), arguments, command="deploy.dashboards")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
