"""Turns that ended badly, over the operator's interface of the real house: figures, acts, rights.

That it says why each of them ended is read on the page: ``tests/browser/test_ops_page.py``.
"""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
import pytest_asyncio

from services.frontend_gateway.http.openapi_ops import PREFIX
from tests.rig.broken_turns import BROKEN
from tests.rig.house import House
from tests.rig.waiting import until

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="session")]

TIMEOUT = aiohttp.ClientTimeout(total=20)


class Operator:
    """Somebody with a key of scope admin and nothing else."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str) -> None:
        self._http = http
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"}

    async def ask(
        self, path: str, *, body: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Status and document of one request."""
        method = "GET" if body is None else "POST"
        url = f"{self._url}{PREFIX}/{path}"
        async with self._http.request(method, url, json=body, headers=self._headers) as answer:
            return answer.status, await answer.json(content_type=None)

    async def get(self, path: str) -> dict[str, Any]:
        """A document that is there."""
        status, document = await self.ask(path)
        assert status == 200, (path, document)
        return document


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def operator(house: House) -> AsyncIterator[Operator]:
    key = await house.make_key(f"operators-{uuid4().hex[:6]}", scopes=("admin",))
    async with aiohttp.ClientSession(timeout=TIMEOUT) as http:
        yield Operator(http, house.gateway_url(), key.key)


async def test_the_figures_count_the_broken_ones_and_every_process(
    house: House, operator: Operator
) -> None:
    broken = await BROKEN["provider_down"](house)

    told: dict[str, Any] = {}

    async def have_all_spoken() -> bool:
        told.update(await operator.get("overview"))
        are_well = all(one["health"] in ("ready", "degraded") for one in told["services"])
        return bool(are_well and told["leases"]["held"])

    await until(have_all_spoken)
    counts = {(r["status"], r["reason"]): r["turns"] for r in told["turns"] if not r["is_open"]}
    assert counts["failed", "provider_unavailable"] >= 1
    listed = await operator.get("turns?status=failed&reason=provider_unavailable")
    assert str(broken.turn_id) in {row["turn_id"] for row in listed["data"]}
    processes: list[dict[str, Any]] = []

    async def both_gateways_run() -> bool:
        processes[:] = (await operator.get("services"))["data"]
        (gateways,) = (one for one in processes if one["service"] == "frontend_gateway")
        return bool(gateways["running"] == 2)

    await until(both_gateways_run)
    assert all(one["lag"] is not None for one in processes)


async def test_a_dead_letter_is_handled_again_on_demand(house: House, operator: Operator) -> None:
    """It is refused again for the same reason, and says so; nothing else happens to its turn."""
    broken = await BROKEN["poison_record"](house)
    story = await operator.get(f"turns/{broken.turn_id}")
    (letter,) = story["dead_letters"]
    path = f"dead-letters/{letter['id']}"

    status, tried = await operator.ask(f"{path}/redrive", body={"service": "llm_gateway"})
    assert (status, tried["dry_run"]) == (200, True)
    before = (await operator.get(path))["dead_letter"]
    body = {"service": "llm_gateway", "dry_run": False}
    status, done = await operator.ask(f"{path}/redrive", body=body)
    assert (status, done["dry_run"]) == (200, False)

    async def was_tried_again() -> bool:
        now = (await operator.get(path))["dead_letter"]
        return bool(not now["is_asked"] and now["attempts"] == before["attempts"] + 1)

    await until(was_tried_again, within_s=20)
    after = await operator.get(f"turns/{broken.turn_id}")
    assert after["sentence"] == story["sentence"]
    acts = [row["action"] for row in (await operator.get("acts"))["data"]]
    assert acts.count("dead_letter.redriven") == 1


async def test_nobody_without_the_scope_sees_or_does_anything(house: House) -> None:
    """Every operation under the prefix that the running gateway describes."""
    key = await house.make_key(f"curious-{uuid4().hex[:6]}", scopes=("chat", "read", "captures"))
    async with aiohttp.ClientSession(timeout=TIMEOUT) as http:
        curious = Operator(http, house.gateway_url(), key.key)
        async with http.get(f"{house.gateway_url()}/openapi.json") as answer:
            paths = (await answer.json())["paths"]
        asked = [
            (
                path.removeprefix(f"{PREFIX}/").format(turn_id=uuid4(), dead_letter_id=uuid4()),
                method,
            )
            for path, methods in paths.items()
            if path.startswith(PREFIX)
            for method in methods
        ]
        assert ("overview", "get") in asked
        for path, method in asked:
            status, _ = await curious.ask(path, body=None if method == "get" else {})
            assert status == 403, (method, path)
