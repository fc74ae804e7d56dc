"""Names, help and labels of the metrics."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from libs.telemetry.labels import MAX_MODELS, OTHER_MODELS
from libs.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[4]
EXPECTED = {
    "turns_accepted_total",
    "turns_terminal_total",
    "turns_in_progress",
    "turns_overdue",
    "turn_duration_seconds",
    "turn_time_to_first_token_seconds",
    "turn_recoveries_total",
    "idempotent_replays_total",
    "invariant_violations_total",
    "sse_streams_active",
    "sse_resumes_total",
    "sse_slow_clients_closed_total",
    "sse_buffer_bytes",
    "outbox_pending",
    "outbox_oldest_seconds",
    "outbox_published_total",
    "inbox_duplicates_total",
    "consumer_lag_records",
    "dead_letters_total",
    "plan_tokens",
    "plan_excluded_total",
    "plan_token_estimate_ratio",
    "llm_requests_total",
    "llm_tokens_total",
    "llm_cost_usd_total",
    "admission_rejected_total",
    "build_info",
    "http_request_duration_seconds",
    "event_loop_lag_seconds",
    "kafka_batch_records",
    "kafka_batch_seconds",
    "fence_refusals_total",
    "live_stream_errors_total",
}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


def exposed(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def test_every_promised_metric_is_exposed_under_its_name(
    metrics: Metrics, registry: CollectorRegistry
):
    names = set(re.findall(r"^# TYPE turnwire_(\S+)", exposed(registry), re.MULTILINE))

    assert {name for name in names if not name.endswith("_created")} == EXPECTED
    assert {name for name in vars(metrics) if not name.startswith("_")} == EXPECTED


def test_each_says_what_to_do_and_none_is_labelled_by_tenant_or_conversation(
    metrics: Metrics, registry: CollectorRegistry
):
    metrics.announce("ingestion", "1.0")
    for family in registry.collect():
        assert len(family.documentation) > 60, f"{family.name} has too short a help text"
        for sample in family.samples:
            assert {"tenant", "tenant_id", "conversation_id", "turn_id"}.isdisjoint(sample.labels)


def test_every_metric_is_set_by_somebody(metrics: Metrics):
    code = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("libs", "services")
        for path in (ROOT / folder).rglob("*.py")
    )
    names = {name for name in vars(metrics) if not name.startswith("_")}

    assert {n for n in names if not re.search(rf"(metrics|self)\.{n}\b(?!:)", code)} == set()


def test_labels_are_given_by_name_or_in_order(metrics: Metrics, registry: CollectorRegistry):
    metrics.turns_terminal_total.labels(status="failed", reason="deadline").inc()
    metrics.turns_terminal_total.labels("failed", "deadline").inc()
    metrics.turns_terminal_total.labels("completed", None).inc()
    metrics.http_request_duration_seconds.labels("GET", "/v1/turns/{id}", 200).observe(0.003)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"turnwire_{name}", labels)

    assert value("turns_terminal_total", status="failed", reason="deadline") == 2
    assert value("turns_terminal_total", status="completed", reason="none") == 1
    route = {"method": "GET", "route": "/v1/turns/{id}", "status": "200"}
    assert value("http_request_duration_seconds_bucket", le="0.005", **route) == 1
    assert value("http_request_duration_seconds_bucket", le="0.002", **route) == 0


def test_models_that_clients_invent_share_one_series(metrics: Metrics, registry: CollectorRegistry):
    named = [f"model {n}" for n in range(MAX_MODELS + 7)]
    for model in (*named, named[0]):
        metrics.llm_requests_total.labels("p", model, "refused").inc()
        metrics.plan_token_estimate_ratio.labels(model).observe(1)

    def calls(model: str) -> float | None:
        labels = {"provider": "p", "model": model, "outcome": "refused"}
        return registry.get_sample_value("turnwire_llm_requests_total", labels)

    def compared(model: str) -> float | None:
        name = "turnwire_plan_token_estimate_ratio_count"
        return registry.get_sample_value(name, {"model": model})

    for seen in (calls, compared):
        assert (seen(named[0]), seen(OTHER_MODELS), seen(named[-1])) == (2, 7, None)


def test_series_of_closed_sets_start_at_zero(registry: CollectorRegistry):
    Metrics(registry)

    for labels in ({"result": "replayed"}, {"result": "conflict"}):
        assert registry.get_sample_value("turnwire_idempotent_replays_total", labels) == 0


def test_two_services_of_one_process_need_a_registry_each(registry: CollectorRegistry):
    Metrics(registry)

    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(registry)
    Metrics(CollectorRegistry())
