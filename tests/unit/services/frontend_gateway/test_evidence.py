"""Plans as evidence over HTTP: diff, explain, replay."""

import unicodedata
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http import models
from services.frontend_gateway.ports import InstructionView, PlanView
from tests.rig.gateway import AT, GatewayRig, gateway_rig
from tests.rig.stored_plans import Shown, plan


@dataclass
class Talk:
    """Two turns of one conversation, each with its plan."""

    rig: GatewayRig
    first: TurnView
    second: TurnView

    def shown(self, *places: int) -> list[Shown]:
        rows = self.rig.store.message_rows[self.first.conversation_id]
        return [
            (str(row.id), row.role, row.content, row.seq) for row in map(rows.__getitem__, places)
        ]

    def store(self, turn: TurnView, document: dict[str, Any], step_no: int = 1) -> None:
        rows = self.rig.store.plan_rows.setdefault(turn.id, [])
        rows.append(PlanView(uuid4(), step_no, {**document, "step_no": step_no}, AT))

    async def get(self, suffix: str, **params: Any) -> httpx.Response:
        return await self.rig.client.get(f"/v1/turns/{self.second.id}{suffix}", params=params)

    async def explain(self, **body: Any) -> httpx.Response:
        return await self.rig.client.post(f"/v1/turns/{self.second.id}/explain", json=body)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with gateway_rig() as rig:
        conversation = await rig.conversation()
        turns = []
        for text, answer in (
            ("When does the ferry leave?", "At 9:40."),
            ("And back?", "At 18:05."),
        ):
            posted = await rig.post(conversation, text)
            turn = rig.store.turn_rows[UUID(posted.json()["turn_id"])]
            turns.append(rig.end(turn, answer, None))
        made = Talk(rig, *turns)
        made.store(turns[0], plan(made.shown(0), turn_id=turns[0].id))
        made.store(turns[1], plan(made.shown(0, 1, 2), turn_id=turns[1].id))
        yield made


async def test_consecutive_turns_differ_by_two_messages(talk: Talk) -> None:
    answer = await talk.get("/plan/diff")
    assert answer.status_code == 200
    body = models.PlanDiff.model_validate(answer.json())
    assert (body.pattern, body.is_healthy, body.against) == ("two_new", True, talk.first.id)
    named = await talk.get("/plan/diff", against=str(talk.first.id))
    assert named.json() == answer.json()


async def test_a_first_turn_follows_no_other_one(talk: Talk) -> None:
    answer = await talk.rig.client.get(f"/v1/turns/{talk.first.id}/plan/diff")
    assert code(answer) == (404, "not-found")


async def test_a_diff_across_conversations_tells_nothing_of_others(talk: Talk) -> None:
    own = await talk.rig.turn("Elsewhere?")
    assert code(await talk.get("/plan/diff", against=str(own.id))) == (422, "validation-error")
    _, stranger = talk.rig.new_key()
    foreign = replace(
        talk.first, id=uuid4(), tenant_id=stranger.tenant_id, principal_id=stranger.principal_id
    )
    talk.rig.store.turn_rows[foreign.id] = foreign
    seen = await talk.get("/plan/diff", against=str(foreign.id))
    none = await talk.get("/plan/diff", against=str(uuid4()))
    assert code(seen) == code(none) == (404, "not-found")
    assert seen.json()["detail"] == none.json()["detail"]


@pytest.mark.parametrize("suffix", ["/plan", "/plan/diff", "/replay"])
async def test_a_plan_that_is_not_there_yet_is_not_found(talk: Talk, suffix: str) -> None:
    talk.rig.store.plan_rows.clear()
    assert code(await talk.get(suffix)) == (404, "not-found")
    assert code(await talk.explain(text="ferry")) == (404, "not-found")


async def test_a_step_is_read_by_its_number(talk: Talk) -> None:
    talk.store(talk.second, plan(talk.shown(0, 1, 2), turn_id=talk.second.id), 2)
    whole = await talk.get("/plan")
    assert [step["step_no"] for step in whole.json()["steps"]] == [1, 2]
    one = await talk.get("/plan", step=2)
    models.TurnPlan.model_validate(one.json())
    assert [step["step_no"] for step in one.json()["steps"]] == [2]
    assert code(await talk.get("/plan", step=3)) == (404, "not-found")
    for wrong in ("0", "-1", "x", "10000", "1.0"):
        assert code(await talk.get("/plan", step=wrong)) == (422, "validation-error")
    assert code(await talk.get("/plan", stpe=1)) == (422, "validation-error")


async def test_a_plan_that_was_never_sent_names_the_rule_that_it_breaks(talk: Talk) -> None:
    rows = talk.rig.store.plan_rows[talk.second.id]
    assert (await talk.get("/plan")).json()["steps"][0]["invariant"] is None
    rows[0] = replace(rows[0], invariant="history_contiguous")
    body = models.TurnPlan.model_validate((await talk.get("/plan")).json())
    assert body.steps[0].invariant == "history_contiguous"


async def test_a_text_that_was_shown_is_present_with_its_place(talk: Talk) -> None:
    body = models.Explanation.model_validate((await talk.explain(text="9:40")).json())
    assert (body.verdict, body.block, body.to_block, body.of) == ("present", 2, 2, 3)
    assert (body.token_offset, body.of_tokens) == (5, 9)
    assert (body.trust, body.section) == ("model", "history")
    assert body.budget is not None


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("Der Fährplan gilt.", unicodedata.normalize("NFD", "Der Fährplan")),
        (unicodedata.normalize("NFD", "한국어 페리"), "한국어 페리"),
        (unicodedata.normalize("NFD", "Ελλάδα: το πλοίο"), "Ελλάδα"),
        ("رحلة العبّارة", "العبّارة"),
        ("渡轮几点开?", "几点"),
        ("line one\r\n\tline two", "one line\n two"),
        ("a family \U0001f469\u200d\U0001f467 boards", "\U0001f469\u200d\U0001f467"),
        ("x" * 90_000 + " the end", "the end"),
    ],
    ids=["umlaut", "hangul", "greek", "arabic", "chinese", "lines", "emoji", "long"],
)
@pytest.mark.parametrize("is_shown", [True, False])
async def test_how_characters_are_composed_and_lines_are_broken_means_nothing(
    talk: Talk, stored: str, asked: str, is_shown: bool
) -> None:
    rows = talk.rig.store.message_rows[talk.first.conversation_id]
    rows[1] = replace(rows[1], content=stored)
    talk.rig.store.plan_rows[talk.second.id].clear()
    shown = talk.shown(0, 1, 2) if is_shown else talk.shown(2)
    talk.store(talk.second, plan(shown, turn_id=talk.second.id, up_to=None if is_shown else 2))
    body = (await talk.explain(text=asked)).json()
    if is_shown:
        assert (body["verdict"], body["block"], body["to_block"]) == ("present", 2, 2)
    elif "line" not in stored:  # rows are searched for the text as it stands
        assert (body["verdict"], body["reason"]) == ("absent", "budget")
        assert body["message_id"] == str(rows[1].id)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("ferry leave?\n\nAt 9:40.", (1, 2)),
        ("ferry leave? At 9:40. And back?", (1, 3)),
        ("leave?At 9:40.", (1, 2)),
        ("9:40.\r\n\r\nAnd", (2, 3)),
    ],
)
async def test_a_text_that_runs_over_several_blocks_is_present_from_the_first_to_the_last(
    talk: Talk, text: str, blocks: tuple[int, int]
) -> None:
    body = models.Explanation.model_validate((await talk.explain(text=text)).json())
    assert (body.verdict, body.block, body.to_block) == ("present", *blocks)
    assert body.token_offset == (0 if blocks[0] == 1 else 5)


async def test_a_text_of_two_messages_of_which_one_was_cut_is_absent_for_that_one(
    talk: Talk,
) -> None:
    talk.rig.store.plan_rows[talk.second.id].clear()
    talk.store(talk.second, plan(talk.shown(1, 2), turn_id=talk.second.id, up_to=1))
    body = (await talk.explain(text="When does the ferry leave?\n\nAt 9:40.")).json()
    assert (body["verdict"], body["reason"]) == ("absent", "budget")
    assert body["message_id"] == str(talk.first.user_message_id)


async def test_no_text_is_found_over_a_message_that_was_deleted(talk: Talk) -> None:
    talk.rig.store.deleted_messages.add(talk.first.assistant_message_id)
    assert (await talk.explain(text="leave? And back?")).json()["verdict"] == "absent"
    assert (await talk.explain(text="And back?")).json()["verdict"] == "present"


async def test_the_message_before_the_turn_explains_more_than_one_behind_it(talk: Talk) -> None:
    rows = talk.rig.store.message_rows[talk.first.conversation_id]
    rows[1] = replace(rows[1], content="At 18:05.")
    talk.rig.store.plan_rows[talk.second.id].clear()
    talk.store(talk.second, plan(talk.shown(2), turn_id=talk.second.id, up_to=2))
    body = (await talk.explain(text="18:05")).json()
    assert (body["reason"], body["message_id"]) == ("budget", str(rows[1].id))


async def test_a_message_that_was_shown_is_present(talk: Talk) -> None:
    body = (await talk.explain(message_id=str(talk.second.user_message_id))).json()
    assert (body["verdict"], body["block"], body["section"]) == ("present", 3, "current")


async def test_what_was_never_said_is_not_stored(talk: Talk) -> None:
    body = (await talk.explain(text="submarine")).json()
    models.Explanation.model_validate(body)
    assert (body["verdict"], body["reason"]) == ("absent", "not_stored")


async def test_what_was_said_later_is_later(talk: Talk) -> None:
    body = (await talk.explain(text="18:05")).json()
    assert (body["verdict"], body["reason"]) == ("absent", "later")


async def test_what_did_not_fit_is_absent_by_budget(talk: Talk) -> None:
    talk.rig.store.plan_rows[talk.second.id].clear()
    talk.store(talk.second, plan(talk.shown(2), turn_id=talk.second.id, up_to=2))
    body = (await talk.explain(text="9:40")).json()
    assert (body["verdict"], body["reason"]) == ("absent", "budget")
    assert body["budget"] == {"before": 900, "used": 5, "after": 895}
    assert body["message_id"] == str(talk.first.assistant_message_id)


async def test_what_a_plan_left_out_is_absent_with_its_reason(talk: Talk) -> None:
    gone = str(talk.first.user_message_id)
    talk.rig.store.plan_rows[talk.second.id].clear()
    talk.store(
        talk.second,
        plan(talk.shown(1, 2), turn_id=talk.second.id, excluded=[(gone, "duplicate")]),
    )
    body = (await talk.explain(message_id=gone)).json()
    assert (body["verdict"], body["reason"]) == ("absent", "duplicate")


async def test_another_branch_is_superseded(talk: Talk) -> None:
    path = f"/v1/conversations/{talk.first.conversation_id}/messages/{talk.second.user_message_id}"
    edited = await talk.rig.client.patch(
        path, json={"content": "And the day after?"}, headers={"Idempotency-Key": "e"}
    )
    assert edited.status_code == 202
    body = (await talk.explain(text="day after")).json()
    assert (body["verdict"], body["reason"]) == ("absent", "superseded")


async def test_a_deleted_message_is_absent_as_deleted(talk: Talk) -> None:
    talk.rig.store.plan_rows[talk.second.id].clear()
    talk.store(talk.second, plan(talk.shown(0, 2), turn_id=talk.second.id))
    gone = talk.first.assistant_message_id
    talk.rig.store.deleted_messages.add(gone)
    body = (await talk.explain(message_id=str(gone))).json()
    assert (body["verdict"], body["reason"]) == ("absent", "deleted")


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        ({}, 422, "validation-error"),
        ({"text": "x", "message_id": str(uuid4())}, 422, "validation-error"),
        ({"text": ""}, 422, "validation-error"),
        ({"text": " \n\u3000\t"}, 422, "validation-error"),
        ({"text": "x" * 8193}, 413, "payload-too-large"),
        ({"text": "x" * 100_000}, 413, "payload-too-large"),
        ({"message_id": "x"}, 422, "validation-error"),
        ({"message_id": str(uuid4())}, 404, "not-found"),
    ],
)
async def test_a_wrong_question_is_refused(talk: Talk, body: Any, status: int, slug: str) -> None:
    assert code(await talk.explain(**body)) == (status, slug)


async def test_a_payload_is_made_again_from_what_is_stored(talk: Talk) -> None:
    body = models.Replay.model_validate((await talk.get("/replay")).json())
    assert body.equal
    assert body.fingerprint_now == body.fingerprint_sent
    assert body.changed == []


async def test_a_changed_row_is_named(talk: Talk) -> None:
    rows = talk.rig.store.message_rows[talk.first.conversation_id]
    rows[1] = replace(rows[1], content="At 9:41.")
    body = (await talk.get("/replay")).json()
    assert body["equal"] is False
    assert body["changed"] == [{"id": str(rows[1].id), "why": "text_changed"}]
    assert body["fingerprint_now"] is not None


async def test_a_deleted_and_a_lost_row_are_told_apart(talk: Talk) -> None:
    rows = talk.rig.store.message_rows[talk.first.conversation_id]
    talk.rig.store.deleted_messages.add(rows[0].id)
    lost = rows.pop(1)
    body = (await talk.get("/replay")).json()
    assert (body["equal"], body["fingerprint_now"]) == (False, None)
    assert body["changed"] == [
        {"id": str(rows[0].id), "why": "deleted"},
        {"id": str(lost.id), "why": "missing"},
    ]


async def test_instructions_are_replayed_in_the_version_that_was_used(talk: Talk) -> None:
    tenant = talk.rig.caller.tenant_id
    name = "workspace:tenant:1"
    used = {"id": name, "kind": "workspace", "scope": "tenant", "version": "1"}
    talk.rig.store.plan_rows[talk.second.id].clear()
    document = plan(talk.shown(0, 1, 2), heads={name: "Be brief."}, instructions=[used])
    talk.store(talk.second, document)
    assert (await talk.get("/replay")).json()["changed"] == [{"id": name, "why": "missing"}]
    for version, text in enumerate(("Be brief.", "Be long."), start=1):
        row = InstructionView(tenant, "workspace", version, text)
        talk.rig.store.instruction_rows.append(row)
    assert (await talk.get("/replay")).json()["equal"] is True
    found = (await talk.explain(text="brief")).json()
    assert (found["trust"], found["message_id"]) == ("operator", None)


async def test_a_plan_from_before_version_1_is_read_but_not_judged(talk: Talk) -> None:
    talk.rig.store.plan_rows[talk.second.id] = [PlanView(uuid4(), 1, {"blocks": []}, AT)]
    assert (await talk.get("/plan")).status_code == 200
    for suffix in ("/plan/diff", "/replay"):
        assert code(await talk.get(suffix)) == (404, "not-found")
