"""The page for front ends is true: each request, answer, event and refusal on it fits the code."""

import re
from collections.abc import Mapping
from typing import Any, get_args
from uuid import uuid4

import orjson
import pytest
from pydantic import BaseModel, TypeAdapter

from schemas.requests import Policy
from schemas.streams import queue_status
from services.frontend_gateway.core.activity import (
    GONE,
    ConversationActivity,
    TurnActivity,
    Watching,
)
from services.frontend_gateway.core.problems import KINDS
from services.frontend_gateway.http.openapi import _ALWAYS, OPERATIONS, Operation
from services.ingestion.core.policy import MAX_OPEN_TURNS
from services.ingestion.core.spots import MAX_BRANCHES
from services.ingestion.settings import IngestionSettings
from tests.architecture.tree import ROOT

PAGE = (ROOT / "docs" / "conversations.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(http|sse)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANSWER = re.compile(r"HTTP/1\.1 (\d{3}) ")
ROW = re.compile(r"^\| `([a-z-]+)` \| (\d{3}) \|", re.MULTILINE)
POLICY_ROW = re.compile(r"^\| `([a-z]+)` \| [^|]+ \|$", re.MULTILINE)
CODE = re.compile(r"`([a-z]+(?:-[a-z]+)+)`")
NO_CODES = {"cancel-after-s"}


def blocks(kind: str) -> list[str]:
    return [text for found, text in FENCE.findall(PAGE) if found == kind]


def pairs() -> list[tuple[str, str]]:
    """Each request of the page with the answers that follow it."""
    found: list[tuple[str, str]] = []
    request = ""
    for text in blocks("http"):
        if ANSWER.match(text):
            found.append((request, text))
        else:
            request = text
    return found


def operation_of(request: str) -> Operation:
    method, path = request.split("\n", 1)[0].split(" ")
    (found,) = [o for o in OPERATIONS if (o.method, o.path) == (method.lower(), path)]
    return found


def body_of(text: str) -> Any:
    _, _, body = text.partition("\n\n")
    return orjson.loads(body) if body.strip() else None


def check_part(model: type[BaseModel], shown: Mapping[str, Any]) -> None:
    """A part of an answer: every field is one of the model's, with a value of its kind."""
    for name, value in shown.items():
        adapter = TypeAdapter(model.model_fields[name].annotation)
        if name == "data":
            (item,) = get_args(model.model_fields[name].annotation)
            for one in value:
                check_part(item, one)
        else:
            adapter.validate_json(orjson.dumps(value))


def test_the_page_shows_something() -> None:
    shown = {operation_of(request).id for request, _ in pairs()}

    assert shown == {
        *("post_message", "cancel_turn", "edit_message", "list_branches", "regenerate_turn"),
        *("continue_turn", "delete_message", "delete_conversation", "restore_conversation"),
        *("update_conversation", "stream_conversation", "explain"),
    }


@pytest.mark.parametrize(("request_", "answer"), pairs())
def test_a_request_and_its_answer_fit_the_interface(request_: str, answer: str) -> None:
    operation = operation_of(request_)
    sent, got = body_of(request_), body_of(answer)
    (status,) = map(int, ANSWER.findall(answer))

    assert ("Idempotency-Key:" in request_) == ("Idempotency-Key!" in operation.parameters)
    assert (sent is None) == (operation.body is None)
    if operation.body is not None:
        operation.body.model_validate_json(orjson.dumps(sent))
    if status >= 400:
        kind = KINDS[got["code"]]
        assert got["code"] in operation.problems
        assert (got["status"], got["retryable"]) == (kind.status, kind.retryable)
    elif status in operation.answers:
        model = operation.answers[status]
        assert (got is None) == (model is None)
        if model is not None:
            check_part(model, got)
    else:
        assert status in operation.streams


def test_the_table_of_refusals_is_that_of_the_operations() -> None:
    told = {code: int(status) for code, status in ROW.findall(PAGE)}
    possible = {slug for request, _ in pairs() for slug in operation_of(request).problems}
    listed = {"cursor-invalid", "stream-expired"}  # of lists and streams, which the text names

    assert set(told) == possible | set(_ALWAYS) | listed
    assert told == {code: KINDS[code].status for code in told}
    assert set(CODE.findall(PAGE)) - NO_CODES <= set(KINDS)


def test_the_table_of_policies_is_complete() -> None:
    assert sorted(POLICY_ROW.findall(PAGE)) == sorted(get_args(Policy))


def test_events_are_told_as_the_page_says() -> None:
    opened = TurnActivity(uuid4(), uuid4(), "message", "generating", None, 1, 0)
    ended = TurnActivity(opened.turn_id, opened.branch_id, "message", "completed", None, 1, None)
    watching = Watching()
    told = [watching.begin(uuid4(), ConversationActivity(is_deleted=False, turns=()))]
    for now in ([opened], [ended]):
        told += watching.changes(ConversationActivity(is_deleted=False, turns=now))
    told += watching.changes(GONE)

    waits, watched = (
        [(event, list(orjson.loads(data))) for event, data in re.findall(FRAME, text)]
        for text in blocks("sse")
    )

    assert watched == [(notice.event, list(notice.data)) for notice in told]
    entry = queue_status(2, position=1)
    assert waits == [(entry.event, list(orjson.loads(entry.data)))]


FRAME = re.compile(r"^event: (\w+)\ndata: (.*)$", re.MULTILINE)


def test_the_numbers_are_those_in_force() -> None:
    fields = IngestionSettings.model_fields

    assert f"at most {fields['queue_depth'].default} wait" in PAGE
    assert f"longer than {fields['queue_wait_s'].default:g} s" in PAGE
    assert fields["restore_within_s"].default == 600
    assert "For ten minutes" in PAGE
    assert f"At most {MAX_OPEN_TURNS} turns" in PAGE
    assert f"at most {MAX_BRANCHES} branches" in PAGE
