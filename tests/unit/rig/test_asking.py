"""What stands in a ledger becomes the request that asks for it, and is judged by its answer."""

from uuid import UUID

import pytest

from libs.ids import message_id
from tests.rig.asking import is_refused, looks, wanted, way, wish
from tests.rig.ledger import Act, ActKind, Ledger, Post, PostKind, Reply

CONVERSATION, TARGET, TURN = UUID(int=1), UUID(int=2), UUID(int=3)
BASE = f"/v1/conversations/{CONVERSATION}"


def post(kind: PostKind = "message", **of: str) -> Post:
    return Post(CONVERSATION, "key", "words", kind=kind, target=TARGET, **of)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "request_"),
    [
        (post(), ("POST", f"{BASE}/messages", {"content": "words"})),
        (
            post(policy="branch", model="narrow"),
            (
                "POST",
                f"{BASE}/messages",
                {"content": "words", "policy": "branch", "model": "narrow"},
            ),
        ),
        (post("edit"), ("PATCH", f"{BASE}/messages/{TARGET}", {"content": "words"})),
        (post("regenerate"), ("POST", f"/v1/turns/{TARGET}/regenerate", {})),
        (
            post("continue", policy="reject"),
            ("POST", f"/v1/turns/{TARGET}/continue", {"policy": "reject"}),
        ),
    ],
)
def test_a_wish_for_an_answer_is_one_request(
    asked: Post, request_: tuple[str, str, dict[str, str]]
) -> None:
    assert wanted(asked) == request_


@pytest.mark.parametrize(
    ("kind", "request_"),
    [
        ("cancel", ("POST", f"/v1/turns/{TARGET}/cancel")),
        ("delete_message", ("DELETE", f"{BASE}/messages/{TARGET}")),
        ("delete", ("DELETE", BASE)),
        ("restore", ("POST", f"{BASE}/restore")),
    ],
)
def test_an_act_is_one_request(kind: ActKind, request_: tuple[str, str]) -> None:
    assert way(Act(kind, CONVERSATION, TARGET)) == request_


@pytest.mark.parametrize(
    ("asked", "slug", "is_promised"),
    [
        (post(policy="reject"), "turn-in-progress", True),
        (post(policy="queue"), "quota-exceeded", True),
        (post("edit"), "not-editable", True),
        (post("continue"), "not-continuable", True),
        (post("continue", policy="reject"), "turn-in-progress", True),
        (post(), "turn-in-progress", False),
        (post(), "quota-exceeded", False),
        (post(policy="replace"), "turn-in-progress", False),
        (post(policy="reject"), "idempotency-in-progress", False),
    ],
)
def test_only_what_was_asked_for_may_be_refused(
    asked: Post, slug: str, *, is_promised: bool
) -> None:
    reply = Reply(409, {"type": f"http://127.0.0.1/problems/{slug}"}, {})

    assert is_refused(asked, reply) == is_promised


def test_a_wish_is_named_by_its_kind_else_by_its_policy() -> None:
    assert wish(post()) == "message"
    assert wish(post(policy="queue")) == "queue"
    assert wish(post("edit", policy="queue")) == "edit"


def test_a_deleted_thing_is_looked_for_where_it_was_shown() -> None:
    ledger = Ledger(UUID(int=9))
    ledger.posts.append(post())
    ledger.posts[0].replies.append(Reply(202, {"turn_id": str(TURN)}, {}))
    answer, question = message_id(TURN, "assistant"), message_id(TURN, "user")

    of_answer = looks(Act("delete_message", CONVERSATION, answer), ledger)
    of_question = looks(Act("delete_message", CONVERSATION, question), ledger)
    (of_conversation,) = looks(Act("delete", CONVERSATION, CONVERSATION), ledger)

    assert [look.where for look in of_answer] == ["the page of messages", "its stream"]
    assert [look.where for look in of_question] == ["the page of messages"]
    page = {"data": [{"id": str(answer)}]}
    assert of_answer[0].is_shown_by(Reply(200, page, {}))
    assert not of_question[0].is_shown_by(Reply(200, page, {}))
    assert of_answer[1].is_shown_by(Reply(200, {}, {}))
    assert not of_answer[1].is_shown_by(Reply(410, {}, {}))
    assert of_conversation.is_shown_by(Reply(200, {}, {}))
    assert not of_conversation.is_shown_by(Reply(503, {}, {}))
    assert looks(Act("cancel", CONVERSATION, TURN), ledger) == []
