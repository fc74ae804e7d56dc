"""Cancel, edit, make again, continue, delete, rename, restore: what clients meet at the door."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http import models
from tests.rig.gateway import GatewayRig, gateway_rig, started


@pytest.fixture
async def rig() -> AsyncIterator[GatewayRig]:
    async with gateway_rig() as rig:
        yield rig


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def messages_path(turn: TurnView, message: UUID) -> str:
    return f"/v1/conversations/{turn.conversation_id}/messages/{message}"


async def ask(
    rig: GatewayRig, method: str, path: str, body: Any = None, key: str | None = None
) -> httpx.Response:
    headers = {"Idempotency-Key": key or str(uuid4())}
    return await rig.client.request(method, path, json=body, headers=headers)


def routes(turn: UUID, conversation: UUID, message: UUID) -> list[tuple[str, str, Any]]:
    """Every request that names something, with a body that is right."""
    one, talk = f"/v1/turns/{turn}", f"/v1/conversations/{conversation}"
    return [
        ("GET", one, None),
        ("GET", f"{one}/plan", None),
        ("GET", f"{one}/plan/diff", None),
        ("GET", f"{one}/replay", None),
        ("POST", f"{one}/explain", {"text": "x"}),
        ("POST", f"{one}/cancel", None),
        ("POST", f"{one}/regenerate", {}),
        ("POST", f"{one}/continue", {}),
        ("GET", talk, None),
        ("GET", f"{talk}/messages", None),
        ("GET", f"{talk}/branches", None),
        ("GET", f"{talk}/events", None),
        ("GET", f"{talk}/instructions", None),
        ("PATCH", talk, {"title": "New"}),
        ("PATCH", f"{talk}/messages/{message}", {"content": "Again"}),
        ("DELETE", f"{talk}/messages/{message}", None),
        ("DELETE", talk, None),
    ]


ROUTES = range(len(routes(UUID(int=0), UUID(int=0), UUID(int=0))))


@pytest.mark.parametrize("number", ROUTES)
async def test_unknown_foreign_and_deleted_things_answer_alike(
    rig: GatewayRig, number: int
) -> None:
    turn = await rig.turn()
    ids = (turn.id, turn.conversation_id, turn.user_message_id)
    stranger, _ = rig.new_key(tenant=rig.caller.tenant_id)
    told = []

    async def answer_to(method: str, path: str, body: Any, **headers: str) -> None:
        answer = await rig.client.request(
            method, path, json=body, headers={"Idempotency-Key": str(uuid4()), **headers}
        )
        assert code(answer) == (404, "not-found"), path
        told.append(answer.json()["detail"])

    await answer_to(*routes(uuid4(), uuid4(), uuid4())[number])
    await answer_to(*routes(*ids)[number], Authorization=f"Bearer {stranger}")
    assert (await rig.client.delete(f"/v1/conversations/{turn.conversation_id}")).status_code == 204
    await answer_to(*routes(*ids)[number])
    assert len(set(told)) == 1


async def test_a_cancel_is_durable_before_it_is_answered(rig: GatewayRig) -> None:
    turn = await rig.turn()
    answer = await rig.client.post(f"/v1/turns/{turn.id}/cancel")
    assert answer.status_code == 202
    body = answer.json()
    models.Turn.model_validate(body)
    assert (body["status"], body["cancel_requested"]) == ("generating", True)
    event = rig.ingestion.events[-1]
    assert (event.data.reason, event.correlation_id) == ("user", turn.id)
    again = await rig.client.post(f"/v1/turns/{turn.id}/cancel")
    assert again.status_code == 202


@pytest.mark.parametrize("status", ["completed", "partial", "failed", "cancelled"])
async def test_an_ended_turn_cannot_be_cancelled(rig: GatewayRig, status: str) -> None:
    turn = await rig.turn()
    rig.end(turn, "Hi.", None, status=status)
    count = len(rig.ingestion.events)
    answer = await rig.client.post(f"/v1/turns/{turn.id}/cancel")
    assert code(answer) == (409, "turn-already-terminal")
    assert answer.json()["turn_id"] == str(turn.id)
    assert len(rig.ingestion.events) == count


async def test_a_cancel_that_loses_the_race_is_told_so(rig: GatewayRig) -> None:
    turn = await rig.turn()
    rig.ingestion.problem = {"code": "turn-already-terminal", "detail": "It has ended before."}
    answer = await rig.client.post(f"/v1/turns/{turn.id}/cancel")
    assert code(answer) == (409, "turn-already-terminal")


async def test_an_edit_makes_a_turn_on_a_branch_of_its_own(rig: GatewayRig) -> None:
    turn = await rig.turn("When is the ferry?")
    rig.end(turn, "At 9:40.", None)
    path = messages_path(turn, turn.user_message_id)
    first = await ask(rig, "PATCH", path, {"content": "When is the last ferry?"}, "e1")
    again = await ask(rig, "PATCH", path, {"content": "When is the last ferry?"}, "e1")

    assert (first.status_code, again.status_code) == (202, 200)
    assert again.headers["idempotent-replayed"] == "true"
    body = models.AcceptedTurn.model_validate(first.json())
    assert first.headers["location"] == f"/v1/turns/{body.turn_id}"
    assert (body.kind, body.branch_id != turn.conversation_id) == ("edit", True)

    listed = await rig.client.get(f"/v1/conversations/{turn.conversation_id}/messages")
    data = listed.json()["data"]
    assert [row["content"] for row in data] == ["When is the last ferry?", ""]
    assert data[0]["supersedes"] == str(turn.user_message_id)
    main = await rig.client.get(
        f"/v1/conversations/{turn.conversation_id}/messages",
        params={"branch": str(turn.conversation_id)},
    )
    assert [row["content"] for row in main.json()["data"]] == ["When is the ferry?", "At 9:40."]
    branches = await rig.client.get(f"/v1/conversations/{turn.conversation_id}/branches")
    models.BranchList.model_validate(branches.json())
    assert [(row["kind"], row["is_active"]) for row in branches.json()["data"]] == [
        ("main", False),
        ("sibling", True),
    ]


async def test_an_answer_made_again_stays_under_its_question(rig: GatewayRig) -> None:
    turn = await rig.turn("When?")
    rig.end(turn, "No.", None)
    answer = await ask(rig, "POST", f"/v1/turns/{turn.id}/regenerate", {})
    assert answer.status_code == 202
    body = answer.json()
    assert body["user_message_id"] == str(turn.user_message_id)
    assert body["assistant_message_id"] != str(turn.assistant_message_id)
    assert body["kind"] == "regenerate"
    seen = (await rig.client.get(f"/v1/turns/{body['turn_id']}")).json()
    assert seen["user_message_id"] == str(turn.user_message_id)


async def test_an_unfinished_answer_can_be_continued_and_a_whole_one_not(rig: GatewayRig) -> None:
    cut, whole = await rig.turn("One?"), await rig.turn("Two?")
    rig.end(cut, "At", None, status="partial")
    rig.end(whole, "At 9:40.", None)
    accepted = await ask(rig, "POST", f"/v1/turns/{cut.id}/continue", {"model": "able"})
    refused = await ask(rig, "POST", f"/v1/turns/{whole.id}/continue", {})
    assert (accepted.status_code, accepted.json()["kind"]) == (202, "continue")
    assert rig.ingestion.events[-2].data.model == "able"
    assert code(refused) == (409, "not-continuable")


@pytest.mark.parametrize("verb", ["regenerate", "continue"])
async def test_a_running_turn_is_not_answered_again(rig: GatewayRig, verb: str) -> None:
    turn = await rig.turn()
    answer = await ask(rig, "POST", f"/v1/turns/{turn.id}/{verb}", {})
    assert code(answer) == (409, "turn-in-progress")
    assert answer.json()["turn_id"] == str(turn.id)


async def test_a_message_of_a_running_turn_is_neither_edited_nor_deleted(rig: GatewayRig) -> None:
    turn = await rig.turn()
    path = messages_path(turn, turn.user_message_id)
    assert code(await ask(rig, "PATCH", path, {"content": "x"})) == (409, "turn-in-progress")
    assert code(await ask(rig, "DELETE", path)) == (409, "turn-in-progress")


async def test_an_answer_cannot_be_edited(rig: GatewayRig) -> None:
    turn = await rig.turn()
    rig.end(turn, "Hi.", None)
    path = messages_path(turn, turn.assistant_message_id)
    assert code(await ask(rig, "PATCH", path, {"content": "Ho."})) == (409, "not-editable")


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        ({"content": ""}, 422, "validation-error"),
        ({"content": " \n"}, 422, "validation-error"),
        ({"content": "x", "policy": "whenever"}, 422, "validation-error"),
        ({"content": "x", "parent": str(uuid4())}, 422, "validation-error"),
        ({"content": "x" * (256 * 1024 + 1)}, 413, "payload-too-large"),
        ([], 422, "validation-error"),
    ],
)
async def test_a_wrong_edit_changes_nothing(
    rig: GatewayRig, body: Any, status: int, slug: str
) -> None:
    turn = await rig.turn()
    rig.end(turn, "Hi.", None)
    count = len(rig.ingestion.events)
    answer = await ask(rig, "PATCH", messages_path(turn, turn.user_message_id), body)
    assert code(answer) == (status, slug)
    assert len(rig.ingestion.events) == count


@pytest.mark.parametrize("verb", ["regenerate", "continue"])
@pytest.mark.parametrize("body", [{"policy": "whenever"}, {"options": {"top_p": 9}}, {"x": 1}])
async def test_a_wrong_wish_for_an_answer_changes_nothing(
    rig: GatewayRig, verb: str, body: Any
) -> None:
    turn = await rig.turn()
    count = len(rig.ingestion.events)
    answer = await ask(rig, "POST", f"/v1/turns/{turn.id}/{verb}", body)
    assert code(answer) == (422, "validation-error")
    assert len(rig.ingestion.events) == count


async def test_answers_and_edits_need_a_key(rig: GatewayRig) -> None:
    turn = await rig.turn()
    path = messages_path(turn, turn.user_message_id)
    for method, asked, body in (
        ("PATCH", path, {"content": "x"}),
        ("POST", f"/v1/turns/{turn.id}/regenerate", {}),
        ("POST", f"/v1/turns/{turn.id}/continue", {}),
    ):
        answer = await rig.client.request(method, asked, json=body)
        assert code(answer) == (400, "idempotency-key-missing")


async def test_a_deleted_message_is_listed_no_more(rig: GatewayRig) -> None:
    turn = await rig.turn("Secret?")
    rig.end(turn, "Yes.", None)
    path = messages_path(turn, turn.user_message_id)
    assert (await ask(rig, "DELETE", path)).status_code == 204
    assert code(await ask(rig, "DELETE", path)) == (404, "not-found")
    listed = await rig.client.get(f"/v1/conversations/{turn.conversation_id}/messages")
    assert [row["content"] for row in listed.json()["data"]] == ["Yes."]


@pytest.mark.parametrize("position", [None, "1-2", "0-1", "2147483647-1"])
async def test_the_stream_of_a_deleted_answer_is_gone_from_every_position(
    rig: GatewayRig, position: str | None
) -> None:
    turn = await rig.turn("Secret?")
    await rig.write(turn, ["Yes, ", "it is."])
    await rig.finish(turn, "Yes, it is.", "1-3")
    path = messages_path(turn, turn.assistant_message_id)
    assert (await ask(rig, "DELETE", path)).status_code == 204
    headers = {} if position is None else {"Last-Event-ID": position}
    answer = await rig.client.get(f"/v1/turns/{turn.id}/events", headers=headers)
    assert "Yes" not in answer.text
    assert answer.status_code == 410
    assert code(answer) == (410, "stream-expired")
    record = await rig.client.get(f"/v1/turns/{turn.id}")
    assert record.status_code == 200


async def test_a_repeated_post_does_not_stream_a_deleted_answer(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    first = await rig.post(conversation, "Secret?", "k1")
    turn = rig.store.turn_rows[UUID(first.json()["turn_id"])]
    await rig.live.append(turn.id, [started(turn)])
    await rig.finish(turn, "Yes.", None)
    await ask(rig, "DELETE", messages_path(turn, turn.assistant_message_id))
    answer = await rig.client.post(
        f"/v1/conversations/{conversation}/messages",
        json={"content": "Secret?"},
        headers={"Idempotency-Key": "k1", "Accept": "text/event-stream"},
    )
    assert code(answer) == (410, "stream-expired")


async def test_an_open_stream_ends_when_its_conversation_is_deleted(rig: GatewayRig) -> None:
    turn = await rig.turn()
    await rig.write(turn, ["Hel"])
    async with rig.client.stream("GET", f"/v1/turns/{turn.id}/events") as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if "Hel" in line:
                break
        rig.store.deleted_conversations.add(turn.conversation_id)
        rest = [line async for line in lines]
    assert not any("done" in line for line in rest)


async def test_a_conversation_is_renamed_and_given_a_policy(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    path = f"/v1/conversations/{conversation}"
    answer = await rig.client.patch(path, json={"title": "Ferry"})
    assert answer.status_code == 200
    models.Conversation.model_validate(answer.json())
    assert (answer.json()["title"], answer.json()["policy"]) == ("Ferry", "serialize")
    answer = await rig.client.patch(path, json={"policy": "reject"})
    assert (answer.json()["title"], answer.json()["policy"]) == ("Ferry", "reject")
    found = await rig.client.get("/v1/conversations", params={"query": "fERR"})
    assert [row["id"] for row in found.json()["data"]] == [conversation]
    none = await rig.client.get("/v1/conversations", params={"query": "train\0"})
    assert none.json()["data"] == []


@pytest.mark.parametrize(
    "body", [{}, {"title": None}, {"title": "x" * 201}, {"policy": "whenever"}, {"titel": "x"}]
)
async def test_a_wrong_update_changes_nothing(rig: GatewayRig, body: Any) -> None:
    conversation = await rig.conversation()
    count = len(rig.ingestion.events)
    answer = await rig.client.patch(f"/v1/conversations/{conversation}", json=body)
    assert code(answer) == (422, "validation-error")
    assert len(rig.ingestion.events) == count


async def test_a_deleted_conversation_comes_back_until_it_is_purged(rig: GatewayRig) -> None:
    conversation = await rig.conversation()
    path = f"/v1/conversations/{conversation}"
    assert (await rig.client.delete(path)).status_code == 204
    assert code(await rig.client.get(path)) == (404, "not-found")
    assert (await rig.client.get("/v1/conversations")).json()["data"] == []
    assert (await rig.client.post(f"{path}/restore")).status_code == 200
    assert (await rig.client.get(path)).status_code == 200
    await rig.client.delete(path)
    rig.ingestion.problem = {"code": "restore-expired", "detail": "It was deleted too long ago."}
    assert code(await rig.client.post(f"{path}/restore")) == (410, "restore-expired")


async def test_reading_keys_change_nothing(rig: GatewayRig) -> None:
    turn = await rig.turn()
    reader, caller = rig.new_key(["read"], tenant=rig.caller.tenant_id)
    count = len(rig.ingestion.events)
    del caller
    for method, path, body in routes(turn.id, turn.conversation_id, turn.user_message_id):
        if method == "GET" or path.endswith("/explain"):
            continue
        answer = await rig.client.request(
            method,
            path,
            json=body,
            headers={"Authorization": f"Bearer {reader}", "Idempotency-Key": "k"},
        )
        assert code(answer) == (403, "forbidden"), path
    assert len(rig.ingestion.events) == count


@pytest.mark.parametrize("branch", ["x", str(UUID(int=1))])
async def test_a_branch_that_is_not_there_is_not_found(rig: GatewayRig, branch: str) -> None:
    conversation = await rig.conversation()
    answer = await rig.client.get(
        f"/v1/conversations/{conversation}/messages", params={"branch": branch}
    )
    assert code(answer) == (404, "not-found")


@pytest.mark.parametrize(
    ("suffix", "allowed"),
    [
        ("", "DELETE, GET, HEAD, PATCH"),
        ("/messages", "GET, HEAD, POST"),
        ("/branches", "GET, HEAD"),
    ],
)
async def test_a_path_names_all_its_methods(rig: GatewayRig, suffix: str, allowed: str) -> None:
    path = f"/v1/conversations/{await rig.conversation()}{suffix}"
    answer = await rig.client.put(path, json={})
    assert code(answer) == (405, "method-not-allowed")
    assert answer.headers["allow"] == allowed
