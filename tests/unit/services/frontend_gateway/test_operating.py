"""Instructions and captures over HTTP: who may set them, what is refused, what is written down."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from libs.catalogue import DEFAULT_PATH
from services.frontend_gateway.http import models
from services.frontend_gateway.ports import CaptureView, PlanView
from tests.rig.gateway import AT, GatewayRig, gateway_rig
from tests.rig.stored_plans import plan


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with gateway_rig() as rig:
        yield rig


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def with_scopes(rig: GatewayRig, *scopes: str) -> dict[str, str]:
    """Headers of another key of the same principal."""
    key, _ = rig.new_key(scopes, tenant=rig.caller.tenant_id)
    hash_ = next(reversed(rig.store.keys))
    other = rig.store.keys[hash_]
    rig.store.keys[hash_] = type(other)(
        other.key_id, other.tenant_id, rig.caller.principal_id, other.scopes
    )
    return {"Authorization": f"Bearer {key}"}


async def test_instructions_count_versions_and_keep_what_is_left_out(rig: GatewayRig) -> None:
    admin = with_scopes(rig, "admin")
    empty = (await rig.client.get("/v1/instructions")).json()
    assert empty == {"object": "instructions", "system_policy": None, "workspace": None}
    first = await rig.client.put("/v1/instructions", json={"workspace": "Brief."}, headers=admin)
    assert first.status_code == 200
    body = models.Instructions.model_validate(first.json())
    assert body.system_policy is None
    assert body.workspace is not None
    assert (body.workspace.text, body.workspace.version) == ("Brief.", 1)
    await rig.client.put("/v1/instructions", json={"system_policy": "Kind."}, headers=admin)
    await rig.client.put("/v1/instructions", json={"workspace": "Long."}, headers=admin)
    await rig.client.put("/v1/instructions", json={"workspace": "Long."}, headers=admin)
    seen = (await rig.client.get("/v1/instructions")).json()
    assert (seen["workspace"]["version"], seen["system_policy"]["version"]) == (2, 1)


async def test_a_conversation_has_instructions_of_its_own(rig: GatewayRig) -> None:
    admin = with_scopes(rig, "admin")
    path = f"/v1/conversations/{await rig.conversation()}/instructions"
    answer = await rig.client.put(path, json={"workspace": "Rhyme."}, headers=admin)
    models.ConversationInstructions.model_validate(answer.json())
    assert (await rig.client.get(path)).json()["workspace"]["text"] == "Rhyme."
    other = f"/v1/conversations/{await rig.conversation()}/instructions"
    assert (await rig.client.get(other)).json()["workspace"] is None
    wrong = await rig.client.put(path, json={"system_policy": "x"}, headers=admin)
    assert code(wrong) == (422, "validation-error")


async def test_instructions_over_their_budget_are_refused_and_change_nothing(
    rig: GatewayRig,
) -> None:
    admin = with_scopes(rig, "admin")
    for body in (
        {"workspace": "word " * 4000},
        {"system_policy": "word " * 8000},
        {"system_policy": "Kind.", "workspace": "word " * 4000},  # the one that fits neither
    ):
        answer = await rig.client.put("/v1/instructions", json=body, headers=admin)
        assert code(answer) == (422, "context-too-large")
        assert "word" not in answer.text
    assert rig.store.instruction_rows == []


async def test_instructions_of_tenant_and_conversation_share_their_budget(rig: GatewayRig) -> None:
    admin = with_scopes(rig, "admin")
    path = f"/v1/conversations/{await rig.conversation()}/instructions"
    text = {"workspace": "word " * 500}
    assert (await rig.client.put(path, json=text, headers=admin)).status_code == 200
    too_long = {"workspace": "other " * 600}
    refused = await rig.client.put("/v1/instructions", json=too_long, headers=admin)
    assert code(refused) == (422, "context-too-large")
    assert (await rig.client.get("/v1/instructions")).json()["workspace"] is None
    fits = {"workspace": "other " * 400}
    answer = await rig.client.put("/v1/instructions", json=fits, headers=admin)
    assert answer.status_code == 200
    text = {"workspace": "word " * 700}
    assert code(await rig.client.put(path, json=text, headers=admin)) == (422, "context-too-large")
    for texts in ({"workspace": ""}, too_long):
        where = path if texts["workspace"] == "" else "/v1/instructions"
        answer = await rig.client.put(where, json=texts, headers=admin)
        assert answer.status_code == 200, answer.text


async def test_instructions_fit_the_models_that_nobody_listed(tmp_path: Path) -> None:
    shipped = DEFAULT_PATH.read_text(encoding="utf-8")
    small = "[unlisted.sections.workspace]\nceiling = 100\n\n# The demo model,"
    file = tmp_path / "models.toml"
    file.write_text(shipped.replace("# The demo model,", small, 1), encoding="utf-8")
    async with gateway_rig(models_file=file) as rig:
        admin = with_scopes(rig, "admin")
        body = {"workspace": "word " * 200}
        answer = await rig.client.put("/v1/instructions", json=body, headers=admin)
        assert code(answer) == (422, "context-too-large")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/instructions", {"workspace": "x"}),
        ("/v1/capture", {"posture": "none"}),
        ("/v1/conversations/{}/instructions", {"workspace": "x"}),
        ("/v1/conversations/{}/capture", {"enabled": True}),
    ],
)
async def test_only_operators_set_what_all_are_shown(rig: GatewayRig, path: str, body: Any) -> None:
    asked = path.format(await rig.conversation())
    for scope in ("chat", "read", "captures"):
        headers = with_scopes(rig, scope)
        assert code(await rig.client.put(asked, json=body, headers=headers)) == (403, "forbidden")
    headers = with_scopes(rig, "admin")
    assert (await rig.client.put(asked, json=body, headers=headers)).status_code == 200
    if "{}" in path:
        gone = path.format(uuid4())
        assert code(await rig.client.put(gone, json=body, headers=headers)) == (404, "not-found")


@pytest.mark.parametrize(
    "body", [{}, {"posture": "all"}, {"posture": "none", "sampled_per_mille": 1001}, {"x": 1}]
)
async def test_a_wrong_posture_is_refused(rig: GatewayRig, body: Any) -> None:
    answer = await rig.client.put("/v1/capture", json=body, headers=with_scopes(rig, "admin"))
    assert code(answer) == (422, "validation-error")
    assert rig.store.postures == {}


async def test_a_posture_and_a_flag_are_set(rig: GatewayRig) -> None:
    admin = with_scopes(rig, "admin")
    body = {"posture": "failures", "sampled_per_mille": 7}
    answer = await rig.client.put("/v1/capture", json=body, headers=admin)
    models.CapturePosture.model_validate(answer.json())
    assert rig.store.postures == {rig.caller.tenant_id: ("failures", 7)}
    conversation = await rig.conversation()
    path = f"/v1/conversations/{conversation}/capture"
    for enabled in (True, False):
        answer = await rig.client.put(path, json={"enabled": enabled}, headers=admin)
        models.CaptureFlag.model_validate(answer.json())
        assert bool(rig.store.flags) is enabled


async def test_a_capture_is_read_with_its_own_scope_alone_and_written_down(rig: GatewayRig) -> None:
    turn = await rig.turn()
    rig.store.capture_rows[turn.id] = [CaptureView(1, "failed", AT, b'{"model":"m"}')]
    path = f"/v1/turns/{turn.id}/captures"
    for scope in ("chat", "read", "admin"):
        headers = with_scopes(rig, scope)
        assert code(await rig.client.get(path, headers=headers)) == (403, "forbidden")
    assert rig.store.capture_reads == []
    headers = {**with_scopes(rig, "captures"), "X-Request-ID": str(uuid4())}
    answer = await rig.client.get(path, headers=headers)
    body = models.Capture.model_validate(answer.json())
    assert (body.payload, body.step_no, body.cause) == ('{"model":"m"}', 1, "failed")
    assert answer.headers["cache-control"] == "no-store"
    missing = await rig.client.get(path, params={"step": 2}, headers=headers)
    assert code(missing) == (404, "not-found")
    found = [(reader.principal_id, is_found) for *_, reader, is_found in rig.store.capture_reads]
    assert found == [(rig.caller.principal_id, True), (rig.caller.principal_id, False)]
    assert str(rig.store.capture_reads[0][2].request_id) == headers["X-Request-ID"]


async def test_a_capture_that_shows_a_deleted_message_is_gone_at_once(rig: GatewayRig) -> None:
    turn = rig.end(await rig.turn("a secret"), "ok", None)
    rows = rig.store.message_rows[turn.conversation_id]
    shown = [(str(row.id), row.role, row.content, row.seq) for row in rows[:1]]
    for step_no, document in ((1, plan([("x", "user", "x", 1)])), (2, plan(shown))):
        found = rig.store.plan_rows.setdefault(turn.id, [])
        found.append(PlanView(uuid4(), step_no, document, AT))
    rig.store.capture_rows[turn.id] = [CaptureView(n, "failed", AT, b"{}") for n in (1, 2)]
    headers = with_scopes(rig, "captures")

    async def read(step: int) -> int:
        path = f"/v1/turns/{turn.id}/captures"
        return (await rig.client.get(path, params={"step": step}, headers=headers)).status_code

    assert (await read(1), await read(2)) == (200, 200)
    rig.store.deleted_messages.add(rows[0].id)
    assert (await read(1), await read(2)) == (200, 404)
    assert len(rig.store.capture_reads) == 4


async def test_captures_of_foreign_turns_do_not_exist(rig: GatewayRig) -> None:
    turn = await rig.turn()
    rig.store.capture_rows[turn.id] = [CaptureView(1, "failed", AT, b"{}")]
    stranger, _ = rig.new_key(["captures"], tenant=rig.caller.tenant_id)
    headers = {"Authorization": f"Bearer {stranger}"}
    for asked in (turn.id, uuid4()):
        answer = await rig.client.get(f"/v1/turns/{asked}/captures", headers=headers)
        assert code(answer) == (404, "not-found")
