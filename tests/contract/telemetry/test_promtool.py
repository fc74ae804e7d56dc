"""Prometheus's own tool accepts what we expose, how we scrape it, and our alerts."""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from deploy.dashboards import DASHBOARDS
from libs.telemetry.labels import Labelled
from libs.telemetry.metrics import Metrics
from libs.telemetry.ops_server import OpsServer

pytestmark = pytest.mark.promtool

PROMETHEUS = Path(__file__).resolve().parents[3] / "deploy" / "observability" / "prometheus"
TIMEOUT_S = 30


def promtool(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run it in the folder of our configuration."""
    return subprocess.run(
        ["promtool", *arguments],  # noqa: S607 -- from the system's path
        input=stdin,
        cwd=PROMETHEUS,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def every_series(metrics: Metrics) -> None:
    """Give each metric at least one series, so that all of it is exposed."""
    metrics.announce("ingestion", "1.0")
    for metric in vars(metrics).values():
        inner = metric._metric if isinstance(metric, Labelled) else metric
        child = inner.labels(*("x" for _ in inner._labelnames)) if inner._labelnames else inner
        match child:
            case Counter() | Gauge():
                child.inc()
            case Histogram():
                child.observe(0.1)


async def exposed(registry: CollectorRegistry) -> bytes:
    """What the second port of a process answers."""
    server = OpsServer(registry, host="127.0.0.1", port=0, liveness={}, readiness={})
    await server.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{server.port}/metrics") as answer,
        ):
            return await answer.read()
    finally:
        await server.stop()


async def test_what_a_process_exposes_is_clean() -> None:
    registry = CollectorRegistry()
    every_series(Metrics(registry))
    text = await exposed(registry)

    checked = await asyncio.to_thread(promtool, "check", "metrics", stdin=text)

    assert text.count(b"# HELP turnwire_") > 30
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


async def test_a_metric_that_breaks_the_rules_is_noticed() -> None:
    registry = CollectorRegistry()
    Gauge("turnwire_turns_total", "A gauge that is called a counter.", registry=registry)

    checked = await asyncio.to_thread(promtool, "check", "metrics", stdin=await exposed(registry))

    assert checked.returncode != 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules/turnwire.yml"),
        ("test", "rules", "rules_test.yml"),
    ],
    ids=" ".join,
)
def test_configuration_and_alerts_are_accepted_and_do_what_they_say(
    arguments: Sequence[str],
) -> None:
    checked = promtool(*arguments)

    assert checked.returncode == 0, (checked.stdout + checked.stderr).decode()


def rules_of(queries: Sequence[str]) -> str:
    """Queries as recording rules, with a window in place of Grafana's variable."""
    rules = [
        {"record": f"checked:query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries)
    ]
    return json.dumps({"groups": [{"name": "queries", "rules": rules}]})


def test_every_query_of_a_dashboard_is_one_that_prometheus_can_read(tmp_path: Path) -> None:
    queries = [q.expr for board in DASHBOARDS for panel in board.panels for q in panel.queries]
    (tmp_path / "good.yml").write_text(rules_of(queries), encoding="utf-8")
    (tmp_path / "bad.yml").write_text(rules_of([*queries, "sum(rate(up[5m])"]), encoding="utf-8")

    good, bad = (promtool("check", "rules", str(tmp_path / f"{n}.yml")) for n in ("good", "bad"))

    assert len(queries) > 40
    assert good.returncode == 0, (good.stdout + good.stderr).decode()
    assert bad.returncode != 0
