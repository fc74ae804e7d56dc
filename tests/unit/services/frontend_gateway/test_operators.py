"""The operators' interface on twins: who may ask, what is refused, acts that are tried first."""

from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
import pytest

from services.frontend_gateway.http.context import Context
from services.frontend_gateway.http.openapi import OPERATIONS
from services.frontend_gateway.http.openapi_ops import PREFIX
from services.frontend_gateway.http.operators import OperatorRoutes
from tests.rig.broken_turns import EXPECTED
from tests.rig.gateway import GatewayRig, gateway_rig
from tests.rig.told_turns import plant

WALK = Path(__file__).parents[4] / "docs" / "operating.md"
LISTS = ("overview", "services", "outbox", "dead-letters", "leases", "acts", "turns")


def as_operator(rig: GatewayRig) -> dict[str, str]:
    key, _ = rig.new_key(["admin"])
    return {"Authorization": f"Bearer {key}"}


async def ask(
    rig: GatewayRig, path: str, headers: dict[str, str], body: Any = None
) -> httpx.Response:
    method = "GET" if body is None else "POST"
    return await rig.client.request(method, f"{PREFIX}/{path}", headers=headers, json=body)


async def test_every_operation_needs_the_scope_admin() -> None:
    operations = [one for one in OPERATIONS if one.path.startswith(PREFIX)]
    routes = OperatorRoutes(cast(Context, None)).routes()
    served = {(m, one.path) for one in routes for m in one.methods or () if m != "HEAD"}
    assert {(one.method.upper(), one.path) for one in operations} == served
    async with gateway_rig() as rig:
        for scopes in (["chat"], ["read"], ["captures"], ["chat", "read", "captures"]):
            key, _ = rig.new_key(scopes)
            for one in operations:
                path = one.path.replace("{turn_id}", str(uuid4()))
                path = path.replace("{dead_letter_id}", str(uuid4()))
                headers = {"Authorization": f"Bearer {key}"}
                answer = await rig.client.request(one.method, path, headers=headers, json={})
                assert answer.status_code == 403, path
        assert rig.operators.done == []


def test_no_operation_makes_a_key() -> None:
    """Keys, and above all those of operators, are made by the command line on the host."""
    assert not [one.id for one in OPERATIONS if "key" in one.id or "keys" in one.path]


@pytest.mark.parametrize("name", list(EXPECTED))
def test_the_walk_through_quotes_what_is_told_of_a_broken_turn(name: str) -> None:
    """``EXPECTED`` is what the running house tells; see ``tests/browser/test_ops_page.py``."""
    told, page = EXPECTED[name], WALK.read_text(encoding="utf-8")
    assert f"> {told.status.capitalize()} ({told.reason}) " in page
    assert told.why in page
    for service, line in told.lines:
        assert f"`{line}" in page, (service, line)


async def test_lists_and_the_story_are_told() -> None:
    async with gateway_rig() as rig:
        ids, headers = plant(rig.operators), as_operator(rig)
        for name in LISTS:
            assert (await ask(rig, name, headers)).status_code == 200, name
        story = (await ask(rig, f"turns/{ids['failed']}", headers)).json()
        assert story["turn"]["turn_id"] == str(ids["failed"])
        letter = (await ask(rig, f"dead-letters/{ids['letter']}", headers)).json()
        assert letter["dead_letter"]["id"] == str(ids["letter"])
        found = (await ask(rig, f"search?q={ids['conversation']}", headers)).json()
        assert [one["turn_id"] for one in found["turns"]] == [str(ids["failed"])]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"turns/{UUID(int=1)}", 404),
        ("turns/%3Cscript%3Ealert(1)%3C%2Fscript%3E", 404),
        ("turns/undefined", 422),
        (f"dead-letters/{UUID(int=1)}", 404),
        ("dead-letters/x", 404),
        ("search", 422),
        ("search?q=" + "a" * 256, 422),
        ("search?q=%00", 422),
        ("search?query=a", 422),
        ("turns?status=sleeping", 422),
        ("turns?reason=DROP", 422),
        ("overview?x=1", 422),
    ],
)
async def test_bad_questions_are_answered_with_a_problem(path: str, status: int) -> None:
    async with gateway_rig() as rig:
        plant(rig.operators)
        answer = await ask(rig, path, as_operator(rig))
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert "<script" not in answer.json()["detail"]


async def test_an_act_without_further_words_is_a_dry_run() -> None:
    async with gateway_rig() as rig:
        ids, headers = plant(rig.operators), as_operator(rig)
        acts = {
            "reap": (f"turns/{ids['running']}/reap", {}),
            "end": (f"turns/{ids['running']}/end", {"reason": "user"}),
            "redrive": (f"dead-letters/{ids['letter']}/redrive", {"service": "llm_gateway"}),
        }
        for path, body in acts.values():
            assert (await ask(rig, path, headers, body)).json()["dry_run"] is True
            done = await ask(rig, path, headers, {**body, "dry_run": False})
            assert done.json()["dry_run"] is False
        assert [(act, dry) for act, _, _, dry in rig.operators.done] == [
            (act, dry) for act in acts for dry in (True, False)
        ]
        assert all(actor.startswith("key:") for _, _, actor, _ in rig.operators.done)


async def test_what_has_ended_or_is_unknown_cannot_be_acted_on() -> None:
    async with gateway_rig() as rig:
        ids, headers = plant(rig.operators), as_operator(rig)
        ended = await ask(rig, f"turns/{ids['failed']}/end", headers, {})
        assert (ended.status_code, ended.json()["code"]) == (409, "turn-already-terminal")
        unknown = await ask(rig, f"turns/{uuid4()}/reap", headers, {})
        assert unknown.status_code == 404
        elsewhere = {"service": "ingestion"}
        path = f"dead-letters/{ids['letter']}/redrive"
        assert (await ask(rig, path, headers, elsewhere)).status_code == 404
        for body in ({"service": "nobody"}, {}, {"service": "ingestion", "force": True}):
            assert (await ask(rig, path, headers, body)).status_code == 422
        assert rig.operators.done == []


async def test_without_a_database_it_says_so_and_may_be_asked_again() -> None:
    async with gateway_rig() as rig:
        rig.operators.is_away = True
        answer = await ask(rig, "overview", as_operator(rig))
        assert answer.status_code == 503
        assert answer.json()["retryable"] is True
