"""Health and metrics of a process, on a port of their own.

``/livez`` asks only about the process itself: a dependency that is away is no reason to restart
it. ``/readyz`` asks whether it can do its work now. Both print each check with ``?verbose``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from libs.errors import ChatError

CHECK_TIMEOUT_S = 2.0
"""Per check; together they run side by side, so a probe's own time-out of 3 s is met."""

SHUTDOWN_TIMEOUT_S = 1.0
"""For answers under way when the server closes; probes ask again."""

WATCH_EVERY_S = 0.25
"""Between two looks at the event loop; a look costs some microseconds."""

MAX_LAG_S = 5.0
"""An event loop that is late by more cannot keep its leases or its streams: better restarted."""

Problem = dict[str, str | int | bool | list[str]]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found.

    Attributes:
        ok: Whether the process can do its work as far as this check goes.
        degraded: It can, but with less: a gateway without Redis.
        detail: Why not, in a few words; no secret, no URL with a password.
    """

    ok: bool
    degraded: bool = False
    detail: str = ""


OK = CheckResult(ok=True)

Check = Callable[[], Awaitable[CheckResult]]
"""Answers, or raises an error of ours, an ``OSError`` or ``TimeoutError``: that is a failure."""


class LoopLagWatchdog:
    """Measures by how much the event loop is late, and says when it is hopeless."""

    def __init__(self, lag_seconds: Histogram) -> None:
        self._lag_seconds = lag_seconds
        self._due_at: float | None = None
        self._last_lag_s = 0.0

    async def run(self) -> None:
        """Look at the loop until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._due_at = loop.time() + WATCH_EVERY_S
            await asyncio.sleep(WATCH_EVERY_S)
            self._last_lag_s = max(0.0, loop.time() - self._due_at)
            self._lag_seconds.observe(self._last_lag_s)

    def lag_s(self, now_s: float) -> float:
        """By how much the loop was late at the last look, or is by now if that is more.

        Args:
            now_s: Time of the event loop's clock.
        """
        overdue_s = now_s - self._due_at if self._due_at is not None else 0.0
        return max(self._last_lag_s, overdue_s)

    async def check(self) -> CheckResult:
        """For ``/livez``."""
        lag_s = self.lag_s(asyncio.get_running_loop().time())
        if lag_s > MAX_LAG_S:
            return CheckResult(ok=False, detail=f"the event loop is {lag_s:.1f} s late")
        return OK


class OpsServer:
    """Serves ``/livez``, ``/readyz``, ``/healthz`` (the same as ``/livez``) and ``/metrics``.

    Args:
        registry: Whose metrics are shown.
        host: Address to bind; 127.0.0.1 unless the settings say otherwise.
        port: 0 takes a free one.
        liveness: Checks of the process itself.
        readiness: Checks of what it needs.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        host: str,
        port: int,
        liveness: Mapping[str, Check],
        readiness: Mapping[str, Check],
    ) -> None:
        self._registry = registry
        self._host = host
        self._port = port
        self._liveness = dict(liveness)
        self._readiness = dict(readiness)
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port it serves on; once started, the one that was chosen where 0 was asked for."""
        addresses = self._runner.addresses if self._runner is not None else []
        return int(addresses[0][1]) if addresses else self._port

    async def start(self) -> None:
        """Serve until ``stop``.

        Raises:
            OSError: The port is taken, or the host is not this machine's.
        """
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/healthz", self._livez)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner

    async def stop(self) -> None:
        """Close the port; waits at most ``SHUTDOWN_TIMEOUT_S`` for answers under way."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _livez(self, request: web.Request) -> web.Response:
        return await _answer(request, "livez", self._liveness)

    async def _readyz(self, request: web.Request) -> web.Response:
        return await _answer(request, "readyz", self._readiness)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


async def _answer(request: web.Request, name: str, checks: Mapping[str, Check]) -> web.Response:
    results = await run_checks(checks)
    failed = [name for name, result in results.items() if not result.ok]
    if failed:
        return _unready(name, results, failed)
    degraded = any(result.degraded for result in results.values())
    verdict = "degraded" if degraded else "ok"
    if "verbose" not in request.query:
        return web.Response(text=f"{verdict}\n")
    lines = [_line(check, result) for check, result in results.items()]
    return web.Response(text="\n".join([*lines, f"{name} {verdict}", ""]))


async def run_checks(checks: Mapping[str, Check]) -> dict[str, CheckResult]:
    """Ask all checks side by side, each within its time."""
    found = await asyncio.gather(*(_run(check) for check in checks.values()))
    return dict(zip(checks, found, strict=True))


async def _run(check: Check) -> CheckResult:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await check()
    except TimeoutError:
        return CheckResult(ok=False, detail=f"no answer within {CHECK_TIMEOUT_S:g} s")
    except ChatError as error:
        return CheckResult(ok=False, detail=error.code)
    except OSError as error:
        return CheckResult(ok=False, detail=type(error).__name__)


def _line(name: str, result: CheckResult) -> str:
    if not result.ok:
        return f"[-]{name} failed: {result.detail or 'no reason given'}"
    if result.degraded:
        return f"[!]{name} degraded{': ' + result.detail if result.detail else ''}"
    return f"[+]{name} ok"


def _unready(name: str, results: Mapping[str, CheckResult], failed: list[str]) -> web.Response:
    problem: Problem = {
        "type": "/problems/dependency-unavailable",
        "title": f"{name} failed",
        "status": HTTPStatus.SERVICE_UNAVAILABLE.value,
        "detail": f"failed: {', '.join(failed)}; the checks say why",
        "retryable": True,
        "checks": [_line(check, result) for check, result in results.items()],
    }
    return web.Response(
        status=HTTPStatus.SERVICE_UNAVAILABLE,
        body=orjson.dumps(problem),
        headers={"Content-Type": "application/problem+json", "Retry-After": "1"},
    )
