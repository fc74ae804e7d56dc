"""Routes of the plan inspector: timeline, what was left out, single texts, and the page."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import pytest

from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http import story_models
from services.frontend_gateway.ports import InstructionView
from tests.browser.planted import POLICY, WORKSPACE, Wanted, plant
from tests.rig.gateway import GatewayRig, gateway_rig

NOW = datetime(2026, 1, 31, 9, 40, tzinfo=UTC)


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with gateway_rig(system_policy_text=POLICY, system_policy_version="1") as rig:
        yield rig


@pytest.fixture
def turn(rig: GatewayRig) -> TurnView:
    rig.store.instruction_rows.append(
        InstructionView(rig.caller.tenant_id, "workspace", 3, WORKSPACE)
    )
    return plant(rig, Wanted("story", exchanges=150, sentences=3, budget=600), now=NOW)


async def get(rig: GatewayRig, turn: TurnView, suffix: str, **params: Any) -> httpx.Response:
    return await rig.client.get(f"/v1/turns/{turn.id}{suffix}", params=params)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_a_timeline_tells_hops_states_steps_and_attempts(
    rig: GatewayRig, turn: TurnView
) -> None:
    answer = await get(rig, turn, "/timeline")
    assert set(answer.json()) == set(story_models.Timeline.model_fields)
    body = story_models.Timeline.model_validate(answer.json())
    assert [hop.name for hop in body.hops] == [
        "accepted", "started", "planned", "called", "first_token", "call_ended", "committed",
    ]  # fmt: skip
    assert body.total_ms == sum(hop.duration_ms or 0 for hop in body.hops) == 1_900
    assert [one.status for one in body.transitions] == ["pending", "generating", "completed"]
    assert [(one.attempt, one.step_no, one.outcome) for one in body.attempts] == [
        (1, 1, "completed")
    ]
    assert abs((body.now - datetime.now(UTC)).total_seconds()) < 60


@pytest.mark.parametrize(
    "suffix",
    ["/timeline", "/plan/left-out", "/plan/text?id=policy:1", "/plan/excerpts?ids=policy:1"],
)
async def test_a_foreign_turn_is_an_unknown_one(
    rig: GatewayRig, turn: TurnView, suffix: str
) -> None:
    key, _ = rig.new_key()
    colleague, _ = rig.new_key(tenant=turn.tenant_id)
    for other in (key, colleague):
        foreign = await rig.client.get(
            f"/v1/turns/{turn.id}{suffix}", headers={"Authorization": f"Bearer {other}"}
        )
        unknown = await rig.client.get(f"/v1/turns/{uuid4()}{suffix}")
        assert code(foreign) == code(unknown) == (404, "not-found")
        assert foreign.json()["detail"] == unknown.json()["detail"]


async def test_what_was_left_out_comes_in_pages_newest_first_and_complete(
    rig: GatewayRig, turn: TurnView
) -> None:
    plan = rig.store.plan_rows[turn.id][0].plan
    boundary = plan["excluded_up_to_seq"]
    seen: list[int] = []
    below: int | None = None
    for _ in range(20):
        more = {} if below is None else {"below": below}
        answer = await get(rig, turn, "/plan/left-out", limit=37, **more)
        page = story_models.LeftOutList.model_validate(answer.json())
        assert len(page.data) <= 37
        assert page.total == (boundary if below is None else None)
        assert {row.reason for row in page.data} == {"budget"}
        assert all(row.tokens is not None for row in page.data)
        seen += [row.seq for row in page.data if row.seq is not None]
        below = page.next_below
        if below is None:
            break
    assert seen == list(range(boundary, 0, -1))
    assert plan["count"] + boundary == turn.seq


async def test_a_list_of_what_was_left_out_holds_no_text(rig: GatewayRig, turn: TurnView) -> None:
    answer = await get(rig, turn, "/plan/left-out", limit=100)
    assert "ferry" not in answer.text


async def test_a_deleted_message_that_a_plan_names_is_listed_once_as_deleted(
    rig: GatewayRig, turn: TurnView
) -> None:
    plan = rig.store.plan_rows[turn.id][0].plan
    gone = plan["excluded"][3]["id"]
    row = next(row for row in rig.store.message_rows[turn.conversation_id] if str(row.id) == gone)
    rig.store.deleted_messages.add(row.id)
    page = (await get(rig, turn, "/plan/left-out", limit=10)).json()
    assert [one["reason"] for one in page["data"] if one["id"] == gone] == ["deleted"]
    assert page["total"] == plan["excluded_up_to_seq"]
    second = (await get(rig, turn, "/plan/left-out", limit=10, below=page["next_below"])).json()
    assert gone not in str(second)


async def test_a_named_exclusion_above_the_boundary_and_one_that_is_no_message_are_listed(
    rig: GatewayRig, turn: TurnView
) -> None:
    (view,) = rig.store.plan_rows[turn.id]
    newest = rig.store.message_rows[turn.conversation_id][-3]
    excluded = [
        {"id": str(newest.id), "reason": "superseded"},
        {"id": "memory:7", "reason": "expired"},
        *view.plan["excluded"],
    ]
    rig.store.plan_rows[turn.id] = [replace(view, plan={**view.plan, "excluded": excluded})]
    page = (await get(rig, turn, "/plan/left-out", limit=5)).json()
    assert [(one["id"], one["reason"]) for one in page["data"][:2]] == [
        ("memory:7", "expired"),
        (str(newest.id), "superseded"),
    ]
    assert page["total"] == view.plan["excluded_up_to_seq"] + 2


async def test_a_plan_that_left_nothing_out_says_so(rig: GatewayRig) -> None:
    short = plant(rig, Wanted("short", exchanges=1), now=NOW)
    page = (await get(rig, short, "/plan/left-out")).json()
    assert (page["total"], page["data"], page["next_below"]) == (0, [], None)


async def test_the_text_of_a_block_is_the_one_that_was_sent(
    rig: GatewayRig, turn: TurnView
) -> None:
    plan = rig.store.plan_rows[turn.id][0].plan
    for block in plan["blocks"]:
        answer = await get(rig, turn, "/plan/text", id=block["id"])
        body = story_models.PlanText.model_validate(answer.json())
        assert body.text
        assert (body.missing, body.is_as_sent) == (None, True)
    policy = (await get(rig, turn, "/plan/text", id="policy:1", step=1)).json()
    assert policy["text"] == POLICY


async def test_excerpts_are_beginnings_of_what_is_still_stored_here(
    rig: GatewayRig, turn: TurnView
) -> None:
    rows = rig.store.message_rows[turn.conversation_id]
    rows[0] = replace(rows[0], content="long " * 100)
    rig.store.deleted_messages.add(rows[1].id)
    other = plant(rig, Wanted("other", exchanges=1), now=NOW)
    ids = ["workspace:tenant:3", *(str(row.id) for row in rows[:3]), str(other.user_message_id)]
    answer = await get(rig, turn, "/plan/excerpts", ids=[*ids, ids[0], "memory:7", "<b>"])
    body = story_models.ExcerptList.model_validate(answer.json())
    assert [(one.id, one.excerpt) for one in body.data] == [
        (ids[0], WORKSPACE),
        (ids[1], ("long " * 100)[:160]),
        (ids[3], rows[2].content),
    ]


async def test_a_text_that_was_changed_or_deleted_since_says_so(
    rig: GatewayRig, turn: TurnView
) -> None:
    rows = rig.store.message_rows[turn.conversation_id]
    kept = rows[-3]
    rows[-3] = replace(kept, content="Something else.")
    changed = (await get(rig, turn, "/plan/text", id=str(kept.id))).json()
    assert (changed["text"], changed["is_as_sent"]) == ("Something else.", False)
    rig.store.deleted_messages.add(kept.id)
    gone = (await get(rig, turn, "/plan/text", id=str(kept.id))).json()
    assert (gone["text"], gone["missing"]) == (None, "deleted")
    rig.store.instruction_rows.clear()
    lost = (await get(rig, turn, "/plan/text", id="workspace:tenant:3")).json()
    assert (lost["text"], lost["missing"]) == (None, "missing")


async def test_a_message_that_was_left_out_can_be_read_and_one_of_another_talk_cannot(
    rig: GatewayRig, turn: TurnView
) -> None:
    oldest = rig.store.message_rows[turn.conversation_id][0]
    found = (await get(rig, turn, "/plan/text", id=str(oldest.id))).json()
    assert (found["text"], found["is_as_sent"]) == (oldest.content, None)
    other = plant(rig, Wanted("other", exchanges=1), now=NOW)
    for wrong in (str(other.user_message_id), str(uuid4()), "memory:7", "<b>x</b>"):
        assert code(await get(rig, turn, "/plan/text", id=wrong)) == (404, "not-found")


@pytest.mark.parametrize(
    ("suffix", "params"),
    [
        ("/timeline", {"step": 1}),
        ("/plan/left-out", {"below": "0"}),
        ("/plan/left-out", {"below": "x"}),
        ("/plan/left-out", {"below": str(2**70)}),
        ("/plan/left-out", {"limit": "101"}),
        ("/plan/excerpts", {}),
        ("/plan/excerpts", {"ids": ["x"] * 2 + [str(n) for n in range(50)]}),
        ("/plan/excerpts", {"ids": "x" * 301}),
        ("/plan/text", {}),
        ("/plan/text", {"id": ""}),
        ("/plan/text", {"id": "x" * 301}),
        ("/plan/text", {"id": "policy:1", "step": "0"}),
    ],
)
async def test_a_wrong_parameter_is_refused(
    rig: GatewayRig, turn: TurnView, suffix: str, params: dict[str, Any]
) -> None:
    assert code(await get(rig, turn, suffix, **params)) == (422, "validation-error")


async def test_a_turn_without_a_plan_has_a_timeline_and_no_list(rig: GatewayRig) -> None:
    queued = plant(
        rig, Wanted("queued", exchanges=1, status="pending", ahead=2, has_plan=False), now=NOW
    )
    told = (await get(rig, queued, "/timeline")).json()
    assert [hop["name"] for hop in told["hops"]] == ["accepted"]
    assert (told["steps"], told["attempts"], told["total_ms"]) == ([], [], 0)
    assert code(await get(rig, queued, "/plan/left-out")) == (404, "not-found")


async def test_the_page_is_there_for_readers_and_a_plain_one_says_no_to_others(
    rig: GatewayRig, turn: TurnView
) -> None:
    page = await rig.client.get(f"/ui/turns/{turn.id}")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    other, _ = rig.new_key()
    no = [
        await rig.client.get(f"/ui/turns/{uuid4()}"),
        await rig.client.get("/ui/turns/%3Cscript%3Ealert(1)%3C/script%3E"),
        await rig.client.get("/ui/turns/"),
        await rig.client.get(f"/ui/turns/{turn.id}", headers={"Authorization": f"Bearer {other}"}),
    ]
    assert {answer.status_code for answer in no} == {404}
    assert len({answer.text for answer in no}) == 1
    assert "There is no such turn for this key" in no[0].text
    assert {answer.headers["cache-control"] for answer in no} == {"no-store"}


async def test_without_a_session_the_page_leads_to_the_sign_in_and_back_to_an_id_alone(
    rig: GatewayRig, turn: TurnView
) -> None:
    async with httpx.AsyncClient(base_url=rig.url) as stranger:
        known = await stranger.get(f"/ui/turns/{turn.id}")
        odd = await stranger.get("/ui/turns/%3Cb%3E//elsewhere.example")
    assert (known.status_code, known.headers["location"]) == (
        303,
        f"/ui/login?next=/ui/turns/{turn.id}",
    )
    assert (odd.status_code, odd.headers["location"]) == (303, "/ui/login")


async def test_a_lost_database_leaves_the_page_which_asks_again(
    rig: GatewayRig, turn: TurnView
) -> None:
    rig.store.is_away = True
    assert (await rig.client.get(f"/ui/turns/{turn.id}")).status_code == 200
    assert code(await get(rig, turn, "/timeline")) == (503, "dependency-unavailable")
