"""The OpenAPI 3.1 document, built from the models and one table of operations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from services.frontend_gateway.core.problems import KINDS
from services.frontend_gateway.http import models, openapi_ops, story_models

VERSION = "0.1.0"

_CONVERSATION = "0192f0c1-7b5e-7cc0-9d7a-0d4a5f1b2c3d"
_TURN = "6f1f8f0e-2f6b-5d0a-8e53-3c9b7a1d4e5f"
_USER_MESSAGE = "1b9d6bcd-bbfd-5b2d-9b5d-ab8dfbbd4bed"
_ANSWER = "9b1deb4d-3b7d-5bad-9bdd-2b0d7b3dcb6d"
_AT = "2026-01-31T09:40:00Z"

EXAMPLES: Mapping[str, Any] = MappingProxyType(
    {
        "AcceptedTurn": {
            "conversation_id": _CONVERSATION,
            "turn_id": _TURN,
            "user_message_id": _USER_MESSAGE,
            "assistant_message_id": _ANSWER,
            "seq": 1,
            "status": "generating",
            "kind": "message",
            "branch_id": _CONVERSATION,
            "queue_position": 0,
            "stream_url": f"/v1/turns/{_TURN}/events",
            "request_id": "0192f0c1-7b60-7a11-8c3e-5d6f7a8b9c0d",
        },
        "CreatedConversation": {
            "id": _CONVERSATION,
            "title": "Ferry",
            "policy": "serialize",
            "created_at": _AT,
        },
        "Conversation": {
            "id": _CONVERSATION,
            "title": "Ferry",
            "policy": "serialize",
            "created_at": _AT,
            "updated_at": _AT,
            "message_count": 2,
        },
        "Turn": {
            "id": _TURN,
            "object": "turn",
            "conversation_id": _CONVERSATION,
            "kind": "message",
            "branch_id": _CONVERSATION,
            "parent_turn_id": None,
            "user_message_id": _USER_MESSAGE,
            "assistant_message_id": _ANSWER,
            "seq": 1,
            "status": "completed",
            "reason": None,
            "queue_position": None,
            "cancel_requested": False,
            "policy": "serialize",
            "model": "smollm2",
            "length": 12,
            "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "usage": {
                "input": 40,
                "output": 4,
                "cached": 0,
                "cost_usd": None,
                "estimated": False,
            },
            "created_at": _AT,
            "started_at": _AT,
            "deadline_at": "2026-01-31T09:45:00Z",
            "ended_at": "2026-01-31T09:40:02Z",
            "stream_url": f"/v1/turns/{_TURN}/events",
        },
        "ConversationBody": {"title": "Ferry"},
        "MessageBody": {"content": "When does the ferry leave?"},
        "EditBody": {"content": "When does the last ferry leave?"},
        "AnswerBody": {},
        "ConversationUpdateBody": {"title": "Ferry to the island"},
        "ExplainBody": {"text": "last ferry"},
        "InstructionsBody": {"workspace": "Times are local times of the harbour."},
        "ConversationInstructionsBody": {"workspace": "Answer in one sentence."},
        "CapturePostureBody": {"posture": "failures", "sampled_per_mille": 10},
        "CaptureFlagBody": {"enabled": True},
        **openapi_ops.EXAMPLES,
        "LoginBody": {"key": "tw_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
        "ProblemDocument": {
            "type": "http://127.0.0.1:8080/problems/not-found",
            "title": "No such thing for this key",
            "status": 404,
            "detail": "There is nothing with this id that this key may see. Check the id.",
            "instance": f"/v1/turns/{_TURN}",
            "code": "not-found",
            "request_id": "0192f0c1-7b60-7a11-8c3e-5d6f7a8b9c0d",
            "retryable": False,
        },
    }
)

STREAM_EXAMPLE = (
    "retry: 2000\n\n"
    f'id: 0-1\nevent: message_started\ndata: {{"turn_id":"{_TURN}",'
    f'"message_id":"{_ANSWER}","seq":2}}\n\n'
    'id: 1-1\nevent: status\ndata: {"state":"generating","attempt":1}\n\n'
    'id: 1-2\nevent: content_delta\ndata: {"text":"At 9:40."}\n\n'
    'id: 2147483647-1\nevent: usage\ndata: {"input":40,"output":4,"cached":0,'
    '"cost_usd":null,"estimated":false}\n\n'
    'id: 2147483647-2\nevent: done\ndata: {"status":"completed","reason":null,"length":8,'
    '"sha256":"…"}\n\n'
)


ACTIVITY_EXAMPLE = (
    "retry: 2000\n\n"
    f'event: state\ndata: {{"branch_id":"{_CONVERSATION}","open":[],"last_turn_id":null}}\n\n'
    f'event: turn_began\ndata: {{"turn_id":"{_TURN}","branch_id":"{_CONVERSATION}",'
    '"status":"generating","queue_position":0,"kind":"message"}\n\n'
    f'event: turn_ended\ndata: {{"turn_id":"{_TURN}","branch_id":"{_CONVERSATION}",'
    '"status":"completed","reason":null}\n\n'
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        answers: Status -> model of the body, or None for an empty one.
        streams: Statuses that may be answered with an event stream.
        problems: Slugs that this operation can answer beside those of every operation.
    """

    method: str
    path: str
    id: str
    summary: str
    tag: str
    answers: Mapping[int, type[BaseModel] | None]
    body: type[BaseModel] | None = None
    parameters: Sequence[str] = ()
    problems: Sequence[str] = ()
    streams: Sequence[int] = ()
    headers: Mapping[int, Sequence[str]] = field(default_factory=dict)
    is_public: bool = False


_LIST = ("limit", "after", "before", "order")
_WRITE = ("idempotency-key-invalid", "idempotency-key-reused", "payload-too-large",
          "unsupported-media", "validation-error", "dependency-unavailable")  # fmt: skip

_ASKED = ("validation-error", "not-found")
_BODY = ("unsupported-media", "payload-too-large", *_ASKED)
_ANSWERED = (*_WRITE, "idempotency-key-missing", "not-found", "turn-in-progress", "quota-exceeded")
_TURN_HEADERS: Mapping[int, Sequence[str]] = MappingProxyType(
    {202: ("Location",), 200: ("Location", "Idempotent-Replayed")}
)

_CONVERSATION_PATH = "/v1/conversations/{conversation_id}"
_TURN_PATH = "/v1/turns/{turn_id}"

_MORE: Sequence[Operation] = (
    Operation(
        "patch", _CONVERSATION_PATH, "update_conversation",
        "Rename a conversation, or give it another policy", "conversations",
        {200: models.Conversation}, body=models.ConversationUpdateBody, problems=_BODY,
    ),
    Operation(
        "delete", _CONVERSATION_PATH, "delete_conversation",
        "Delete a conversation: gone at once, restorable for some minutes", "conversations",
        {204: None}, problems=_ASKED,
    ),
    Operation(
        "post", f"{_CONVERSATION_PATH}/restore", "restore_conversation",
        "Bring a deleted conversation back", "conversations", {200: models.Conversation},
        problems=(*_ASKED, "restore-expired"),
    ),
    Operation(
        "get", f"{_CONVERSATION_PATH}/branches", "list_branches",
        "List the branches of a conversation, oldest first", "conversations",
        {200: models.BranchList}, problems=_ASKED,
    ),
    Operation(
        "get", f"{_CONVERSATION_PATH}/events", "stream_conversation",
        "Stream which turns of a conversation begin and end; begins with its state",
        "conversations", {}, streams=(200,),
        problems=(*_ASKED, "quota-exceeded", "admission-rejected"),
    ),
    Operation(
        "patch", f"{_CONVERSATION_PATH}/messages/{{message_id}}", "edit_message",
        "Say a message again in other words; the old one stays on its branch", "messages",
        {202: models.AcceptedTurn, 200: models.AcceptedTurn}, body=models.EditBody,
        parameters=("Idempotency-Key!", "traceparent"), problems=(*_ANSWERED, "not-editable"),
        headers=_TURN_HEADERS,
    ),
    Operation(
        "delete", f"{_CONVERSATION_PATH}/messages/{{message_id}}", "delete_message",
        "Delete a message from lists, plans and streams", "messages", {204: None},
        problems=(*_ASKED, "turn-in-progress"),
    ),
    Operation(
        "post", f"{_TURN_PATH}/cancel", "cancel_turn", "Ask a turn to stop", "turns",
        {202: models.Turn}, problems=(*_ASKED, "turn-already-terminal"),
    ),
    Operation(
        "post", f"{_TURN_PATH}/regenerate", "regenerate_turn",
        "Ask for another answer to the same question", "turns",
        {202: models.AcceptedTurn, 200: models.AcceptedTurn}, body=models.AnswerBody,
        parameters=("Idempotency-Key!", "traceparent"), problems=_ANSWERED,
        headers=_TURN_HEADERS,
    ),
    Operation(
        "post", f"{_TURN_PATH}/continue", "continue_turn",
        "Ask for the rest of an unfinished answer", "turns",
        {202: models.AcceptedTurn, 200: models.AcceptedTurn}, body=models.AnswerBody,
        parameters=("Idempotency-Key!", "traceparent"), problems=(*_ANSWERED, "not-continuable"),
        headers=_TURN_HEADERS,
    ),
    Operation(
        "get", f"{_TURN_PATH}/plan/diff", "diff_plans",
        "Compare the plan of a turn with that of an earlier one", "evidence",
        {200: models.PlanDiff}, parameters=("against", "step"), problems=_ASKED,
    ),
    Operation(
        "get", f"{_TURN_PATH}/plan/left-out", "list_left_out",
        "List the messages that the plan left out, newest first", "evidence",
        {200: story_models.LeftOutList}, parameters=("step", "below", "limit"), problems=_ASKED,
    ),
    Operation(
        "get", f"{_TURN_PATH}/plan/text", "get_plan_text",
        "Read the text of one block, or of a message that was left out", "evidence",
        {200: story_models.PlanText}, parameters=("step", "id!"), problems=_ASKED,
    ),
    Operation(
        "get", f"{_TURN_PATH}/plan/excerpts", "list_plan_excerpts",
        "Read how the texts of blocks and messages begin", "evidence",
        {200: story_models.ExcerptList}, parameters=("step", "ids!"), problems=_ASKED,
    ),
    Operation(
        "get", f"{_TURN_PATH}/timeline", "get_timeline",
        "Read every hop of a turn with its duration, and its attempts", "evidence",
        {200: story_models.Timeline}, problems=_ASKED,
    ),
    Operation(
        "post", f"{_TURN_PATH}/explain", "explain",
        "Ask whether the model was shown a text or a message", "evidence",
        {200: models.Explanation}, body=models.ExplainBody, problems=_BODY,
    ),
    Operation(
        "get", f"{_TURN_PATH}/replay", "replay",
        "Make the payload again and compare it with what was sent", "evidence",
        {200: models.Replay}, parameters=("step",), problems=_ASKED,
    ),
    Operation(
        "get", f"{_TURN_PATH}/captures", "read_capture",
        "Read a captured payload; needs the scope captures, and leaves an audit row", "evidence",
        {200: models.Capture}, parameters=("step",), problems=_ASKED,
    ),
    Operation(
        "put", "/v1/capture", "set_capture_posture",
        "Decide whose payloads of the tenant are kept for a while", "operating",
        {200: models.CapturePosture}, body=models.CapturePostureBody, problems=_BODY,
    ),
    Operation(
        "put", f"{_CONVERSATION_PATH}/capture", "flag_conversation",
        "Keep the payloads of a conversation for a while", "operating",
        {200: models.CaptureFlag}, body=models.CaptureFlagBody, problems=_BODY,
    ),
    Operation(
        "get", "/v1/instructions", "get_instructions", "Read the tenant's instructions",
        "operating", {200: models.Instructions},
    ),
    Operation(
        "put", "/v1/instructions", "set_instructions", "Set the tenant's instructions",
        "operating", {200: models.Instructions}, body=models.InstructionsBody,
        problems=(*_BODY, "context-too-large"),
    ),
    Operation(
        "get", f"{_CONVERSATION_PATH}/instructions", "get_conversation_instructions",
        "Read the instructions of a conversation", "operating",
        {200: models.ConversationInstructions}, problems=_ASKED,
    ),
    Operation(
        "put", f"{_CONVERSATION_PATH}/instructions", "set_conversation_instructions",
        "Set the instructions of a conversation", "operating",
        {200: models.ConversationInstructions}, body=models.ConversationInstructionsBody,
        problems=(*_BODY, "context-too-large"),
    ),
)  # fmt: skip

OPERATIONS: Sequence[Operation] = (
    Operation(
        "post", "/v1/conversations", "create_conversation",
        "Create a conversation, with or without a first message", "conversations",
        {201: models.CreatedConversation, 200: models.CreatedConversation},
        body=models.ConversationBody, parameters=("Idempotency-Key",),
        problems=(*_WRITE, "idempotency-key-missing"),
        headers={201: ("Location",), 200: ("Location", "Idempotent-Replayed")},
    ),
    Operation(
        "get", "/v1/conversations", "list_conversations", "List conversations, newest first",
        "conversations", {200: models.ConversationList}, parameters=(*_LIST, "query"),
        problems=("cursor-invalid", "validation-error"),
    ),
    Operation(
        "get", "/v1/conversations/{conversation_id}", "get_conversation", "Read a conversation",
        "conversations", {200: models.Conversation}, problems=("not-found", "validation-error"),
    ),
    Operation(
        "get", "/v1/conversations/{conversation_id}/messages", "list_messages",
        "List the messages of a conversation, oldest first", "messages",
        {200: models.MessageList}, parameters=(*_LIST, "branch"),
        problems=("not-found", "cursor-invalid", "validation-error"),
    ),
    Operation(
        "post", "/v1/conversations/{conversation_id}/messages", "post_message",
        "Send a message; with Accept: text/event-stream the answer streams in the same response",
        "messages", {202: models.AcceptedTurn, 200: models.AcceptedTurn}, body=models.MessageBody,
        parameters=("Idempotency-Key!", "traceparent"), streams=(200,),
        problems=(*_WRITE, "idempotency-key-missing", "not-found", "stale-parent",
                  "turn-in-progress", "quota-exceeded"),
        headers={202: ("Location",), 200: ("Location", "Idempotent-Replayed")},
    ),
    Operation(
        "get", "/v1/turns/{turn_id}", "get_turn", "Read a turn", "turns", {200: models.Turn},
        problems=("not-found", "validation-error"),
    ),
    Operation(
        "get", "/v1/turns/{turn_id}/events", "stream_turn",
        "Stream a turn from the start, or from where a client stopped", "turns", {204: None},
        parameters=("Last-Event-ID", "after_entry"), streams=(200,),
        problems=("not-found", "cursor-invalid", "quota-exceeded", "validation-error",
                  "admission-rejected", "stream-expired"),
    ),
    Operation(
        "get", "/v1/turns/{turn_id}/plan", "get_plan",
        "Read what the model was shown, and what was left out and why", "turns",
        {200: models.TurnPlan}, parameters=("step",), problems=("not-found", "validation-error"),
    ),
    *_MORE,
    *openapi_ops.operations(Operation),
    Operation(
        "post", "/ui/login", "login", "Exchange an API key for a browser session", "pages",
        {200: models.Session}, body=models.LoginBody, is_public=True,
        problems=("forbidden", "unsupported-media", "payload-too-large", "validation-error"),
        headers={200: ("Set-Cookie",)},
    ),
    Operation(
        "post", "/ui/logout", "logout", "End the browser session", "pages", {204: None},
        problems=("forbidden",), is_public=True,
    ),
)  # fmt: skip

_TAGS = ("conversations", "messages", "turns", "evidence", "operating", "ops", "pages")

_ALWAYS = ("unauthenticated", "forbidden", "misdirected-request", "internal-error",
           "dependency-unavailable")  # fmt: skip

_PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "limit": {"in": "query", "description": "Rows of the page.",
              "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}},
    "after": {"in": "query", "description": "Rows after the one with this id, in the list's order.",
              "schema": {"type": "string", "format": "uuid"}},
    "before": {"in": "query", "description": "Rows before the one with this id.",
               "schema": {"type": "string", "format": "uuid"}},
    "order": {"in": "query", "description": "By time or by seq.",
              "schema": {"type": "string", "enum": ["asc", "desc"]}},
    "query": {"in": "query", "description": "Only conversations whose title holds this, in letters "
              "of any case.", "schema": {"type": "string", "maxLength": 200}},
    "branch": {"in": "query", "description": "Whose path is listed; left out: the one that is "
               "continued.", "schema": {"type": "string", "format": "uuid"}},
    "step": {"in": "query", "description": "Which step of the turn, from 1.",
             "schema": {"type": "integer", "minimum": 1, "maximum": 9999}},
    "below": {"in": "query", "description": "Only messages with a lower seq; next_below of a page "
              "asks for the next one.",
              "schema": {"type": "integer", "minimum": 1, "maximum": 9007199254740991}},
    "id": {"in": "query", "description": "Of a block, or of a message.",
           "schema": {"type": "string", "minLength": 1, "maxLength": 300}},
    "ids": {"in": "query", "description": "Of blocks or messages; once for each.",
            "schema": {"type": "array", "minItems": 1, "maxItems": 50,
                       "items": {"type": "string", "minLength": 1, "maxLength": 300}}},
    "against": {"in": "query", "description": "The turn to compare with; left out: the one that "
                "this one follows.", "schema": {"type": "string", "format": "uuid"}},
    **openapi_ops.PARAMETERS,
    "Idempotency-Key": {"in": "header", "description": "1 to 255 visible ASCII characters, quoted "
                        "or bare. The same key and content again is the same turn.",
                        "schema": {"type": "string"}, "example": "01J9Z4V5-ferry"},
    "traceparent": {"in": "header", "description": "W3C trace context; the turn joins that trace.",
                    "schema": {"type": "string"}},
    "Last-Event-ID": {"in": "header", "description": "Last entry id that the client has; wins over "
                      "the parameter after.",
                      "schema": {"type": "string", "pattern": "^[0-9]+-[0-9]+$"}},
}  # fmt: skip

_HEADERS: Mapping[str, str] = {
    "Location": "Path of the turn or conversation.",
    "Idempotent-Replayed": "true if this request repeats an earlier one with the same key.",
    "Set-Cookie": "An opaque session, HttpOnly and SameSite=Strict.",
}


def document() -> dict[str, Any]:
    """The whole document; the same at every call."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnwire",
            "version": VERSION,
            "description": "One message is one logical turn with one committed answer. Repeating "
            "a request with the same Idempotency-Key is always safe.",
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in _TAGS],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "api_key": {"type": "http", "scheme": "bearer", "description": "A key tw_…"},
                "session": {"type": "apiKey", "in": "cookie", "name": "turnwire_session"},
            },
        },
        "security": [{"api_key": []}, {"session": []}],
    }


def _schemas() -> dict[str, Any]:
    used: dict[str, type[BaseModel]] = {"ProblemDocument": models.ProblemDocument}
    for operation in OPERATIONS:
        for model in (operation.body, *operation.answers.values()):
            if model is not None:
                used[model.__name__] = model
    bodies = {operation.body for operation in OPERATIONS}
    _, definitions = models_json_schema(
        [(model, "validation" if model in bodies else "serialization") for model in used.values()],
        ref_template="#/components/schemas/{model}",
    )
    schemas: dict[str, Any] = definitions["$defs"]
    for name, example in EXAMPLES.items():
        schemas[name]["examples"] = [example]
    return schemas


def _operation(operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation),
    }
    if parameters := _parameters(operation):
        told["parameters"] = parameters
    if operation.body is not None:
        told["requestBody"] = {
            "required": True,
            "content": {"application/json": _content(operation.body)},
        }
    if operation.is_public:
        told["security"] = []
    return told


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = [
        {"name": part[1:-1], "in": "path", "required": True,
         "schema": {"type": "string", "format": "uuid"}}
        for part in operation.path.split("/") if part.startswith("{")
    ]  # fmt: skip
    for name in operation.parameters:
        if name == "after_entry":
            entry = {**_PARAMETERS["Last-Event-ID"], "in": "query"}
            told.append({"name": "after", **entry, "description": "As the header Last-Event-ID."})
            continue
        plain = name.removesuffix("!")
        told.append({"name": plain, **_PARAMETERS[plain], "required": name.endswith("!")})
    return told


def _responses(operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for status in sorted({*operation.answers, *operation.streams}):
        model = operation.answers.get(status)
        content: dict[str, Any] = {} if model is None else {"application/json": _content(model)}
        if status in operation.streams:
            content["text/event-stream"] = {
                "schema": {"type": "string"},
                "example": ACTIVITY_EXAMPLE if operation.tag == "conversations" else STREAM_EXAMPLE,
            }
        told[str(status)] = {
            "description": _DESCRIPTIONS[status],
            "headers": _headers(operation, status),
        }
        if content:
            told[str(status)]["content"] = content
    by_status: dict[int, list[str]] = {}
    for slug in dict.fromkeys((*operation.problems, *_ALWAYS)):
        by_status.setdefault(KINDS[slug].status, []).append(slug)
    for status, slugs in sorted(by_status.items()):
        told[str(status)] = {
            "description": ", ".join(slugs),
            "headers": _headers(operation, status),
            "content": {
                "application/problem+json": {
                    "schema": {"$ref": "#/components/schemas/ProblemDocument"},
                    "example": _problem_example(slugs[0]),
                }
            },
        }
    return told


_DESCRIPTIONS: Mapping[int, str] = {
    200: "Done, or done before.",
    201: "Created.",
    202: "Accepted: the turn is durable.",
    204: "Done, or nothing is left.",
}


def _problem_example(slug: str) -> dict[str, Any]:
    kind = KINDS[slug]
    return {
        **EXAMPLES["ProblemDocument"],
        "type": f"http://127.0.0.1:8080/problems/{slug}",
        "title": kind.title,
        "status": kind.status,
        "detail": kind.advice,
        "code": slug,
        "retryable": kind.retryable,
    }


def _headers(operation: Operation, status: int) -> dict[str, Any]:
    names = operation.headers.get(status, ())
    told: dict[str, Any] = {
        name: {"description": _HEADERS[name], "schema": {"type": "string"}} for name in names
    }
    told["X-Request-ID"] = {
        "description": "Names this request in the server's log.",
        "schema": {"type": "string"},
    }
    return told


def _content(model: type[BaseModel]) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    if model.__name__ in EXAMPLES:
        content["example"] = EXAMPLES[model.__name__]
    return content
