"""Health and metrics over real HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from libs.errors import StoreUnavailable
from libs.telemetry.metrics import Metrics
from libs.telemetry.ops_server import (
    MAX_LAG_S,
    OK,
    Check,
    CheckResult,
    LoopLagWatchdog,
    OpsServer,
)


@pytest.fixture
def metrics_registry() -> CollectorRegistry:
    return CollectorRegistry()


@asynccontextmanager
async def serving(
    registry: CollectorRegistry,
    *,
    liveness: dict[str, Check] | None = None,
    readiness: dict[str, Check] | None = None,
) -> AsyncIterator[Callable[[str], "aiohttp.client._RequestContextManager"]]:
    server = OpsServer(
        registry, host="127.0.0.1", port=0, liveness=liveness or {}, readiness=readiness or {}
    )
    await server.start()
    try:
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            yield lambda path: session.get(f"http://127.0.0.1:{server.port}{path}")
    finally:
        await server.stop()


def check(result: CheckResult) -> Check:
    async def found() -> CheckResult:
        return result

    return found


def raising(error: Exception) -> Check:
    async def fails() -> CheckResult:
        raise error

    return fails


GOOD = check(OK)
POOR = check(CheckResult(ok=True, degraded=True, detail="no live deltas"))
BAD = check(CheckResult(ok=False, detail="no member of its group"))


async def test_a_process_that_can_do_its_work_is_ready(metrics_registry: CollectorRegistry):
    async with serving(metrics_registry, readiness={"postgres": GOOD}) as get:
        for path in ("/readyz", "/healthz", "/livez"):
            async with get(path) as response:
                assert (response.status, await response.text()) == (200, "ok\n")


async def test_verbose_prints_a_line_for_each_check(metrics_registry: CollectorRegistry):
    checks = {"postgres": GOOD, "redis": POOR}
    async with (
        serving(metrics_registry, readiness=checks) as get,
        get("/readyz?verbose") as response,
    ):
        text = await response.text()

    assert response.status == 200
    assert text == "[+]postgres ok\n[!]redis degraded: no live deltas\nreadyz degraded\n"


async def test_one_failed_check_makes_it_unready_with_a_problem(
    metrics_registry: CollectorRegistry,
):
    checks = {"postgres": GOOD, "kafka": BAD, "redis": POOR}
    async with serving(metrics_registry, readiness=checks) as get:
        async with get("/readyz?verbose") as response:
            problem = await response.json(content_type="application/problem+json")
        async with get("/livez") as alive:
            assert alive.status == 200  # a restart would not bring Kafka back

    assert response.status == problem["status"] == 503
    assert response.headers["Retry-After"] == "1"
    assert problem["detail"].startswith("failed: kafka;")
    assert problem["checks"] == [
        "[+]postgres ok",
        "[-]kafka failed: no member of its group",
        "[!]redis degraded: no live deltas",
    ]


async def test_a_check_that_raises_or_hangs_has_failed_without_a_word_too_many(
    metrics_registry: CollectorRegistry,
):
    async def hangs() -> CheckResult:
        await asyncio.Event().wait()
        return OK

    checks = {
        "store": raising(StoreUnavailable("canary")),
        "socket": raising(ConnectionRefusedError("canary")),
        "hangs": hangs,
    }
    async with serving(metrics_registry, readiness=checks) as get, get("/readyz") as response:
        problem = await response.json(content_type="application/problem+json")

    assert problem["checks"] == [
        "[-]store failed: store.unavailable",
        "[-]socket failed: ConnectionRefusedError",
        "[-]hangs failed: no answer within 2 s",
    ]


async def test_a_failed_liveness_check_says_so(metrics_registry: CollectorRegistry):
    async with (
        serving(metrics_registry, liveness={"event_loop": BAD}) as get,
        get("/livez") as response,
    ):
        assert response.status == 503


async def test_metrics_are_in_the_text_format(metrics_registry: CollectorRegistry):
    Metrics(metrics_registry).announce("ingestion", "1.2.3")

    async with serving(metrics_registry) as get, get("/metrics") as response:
        text = await response.text()

    assert response.headers["Content-Type"].startswith("text/plain; version=")
    assert 'turnwire_build_info{python="' in text
    assert 'service="ingestion",version="1.2.3"} 1.0' in text


async def test_a_taken_port_is_an_error_and_the_server_can_be_stopped_all_the_same(
    metrics_registry: CollectorRegistry,
):
    first = OpsServer(metrics_registry, host="127.0.0.1", port=0, liveness={}, readiness={})
    await first.start()
    second = OpsServer(
        metrics_registry, host="127.0.0.1", port=first.port, liveness={}, readiness={}
    )
    try:
        with pytest.raises(OSError, match="address already in use"):
            await second.start()
        await second.stop()
    finally:
        await first.stop()


async def test_the_watchdog_measures_a_blocked_loop(metrics_registry: CollectorRegistry):
    metrics = Metrics(metrics_registry)
    watchdog = LoopLagWatchdog(metrics.event_loop_lag_seconds)
    task = asyncio.create_task(watchdog.run())

    def looks() -> float:
        name = "turnwire_event_loop_lag_seconds_count"
        return metrics_registry.get_sample_value(name) or 0.0

    try:
        async with asyncio.timeout(5):
            while not looks():
                await asyncio.sleep(0.01)
            seen = looks()
            time.sleep(0.6)  # noqa: ASYNC251 -- blocking the loop is the point
            while looks() == seen:
                await asyncio.sleep(0.001)
    finally:
        task.cancel()

    total_s = metrics_registry.get_sample_value("turnwire_event_loop_lag_seconds_sum") or 0.0
    assert total_s > 0.3
    assert (await watchdog.check()).ok  # late, but not hopeless


async def test_a_hopelessly_late_loop_is_not_alive(metrics_registry: CollectorRegistry):
    watchdog = LoopLagWatchdog(Metrics(metrics_registry).event_loop_lag_seconds)
    task = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0)  # it has begun its first wait
    task.cancel()
    now_s = asyncio.get_running_loop().time()

    assert watchdog.lag_s(now_s) == 0.0
    assert watchdog.lag_s(now_s + 10) > MAX_LAG_S
