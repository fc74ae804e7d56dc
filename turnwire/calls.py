"""Every request of the interface as a value: path, body, and how its answer is read.

Both clients send these, so what a call means is written once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

import httpx

from turnwire.errors import ProblemError, TurnwireError, UnexpectedAnswer
from turnwire.models import (
    AcceptedTurn,
    Branch,
    Conversation,
    Message,
    Policy,
    Turn,
    TurnPlan,
    read,
)

T = TypeVar("T")
Json = Mapping[str, Any]

PAGE = 100
"""Items of one page of a list; the most that the server gives."""


@dataclass(frozen=True, slots=True)
class Options:
    """How an answer is made; what is left out follows the model's defaults.

    Attributes:
        max_tokens: Of the answer.
        cancel_after_s: The turn is cancelled this many seconds after its last stream was closed.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    cancel_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What may be said about a new turn, whatever it is about.

    Attributes:
        policy: What happens while an earlier turn runs; None: the conversation's.
        model: None: the server's default.
        key: Idempotency key; None: a fresh one. Keep it if you may have to ask again.
    """

    policy: Policy | None = None
    model: str | None = None
    options: Options | None = None
    key: str | None = None

    def body(self) -> dict[str, Any]:
        """The fields that are set."""
        options = None if self.options is None else set_fields(_of_options(self.options))
        return set_fields({"policy": self.policy, "model": self.model, "options": options})


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request.

    Attributes:
        read: The answer as a value; never called with a refusal.
        key: Idempotency key.
        done_slug: A refusal that a repeat gets when the lost first try had worked.
        then: Asked for in that case; without it the call just counts as done.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    body: Json | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    done_slug: str | None = None
    then: "Call[T] | None" = None

    @property
    def headers(self) -> dict[str, str]:
        """Beside those of the connection."""
        return {} if self.key is None else {"Idempotency-Key": f'"{_quoted(self.key)}"'}

    def was_done(self, error: TurnwireError, *, is_repeat: bool) -> bool:
        """Whether a refusal only says that a try without an answer had worked."""
        return is_repeat and isinstance(error, ProblemError) and error.slug == self.done_slug


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list."""

    items: tuple[T, ...]
    last_id: str | None
    has_more: bool


def create_conversation(
    title: str | None, policy: Policy | None, model: str | None, key: str | None
) -> Call[Conversation]:
    """``POST /v1/conversations``."""
    key = key or new_key()
    body = set_fields({"title": title, "policy": policy, "model": model})

    def made(response: httpx.Response) -> Conversation:
        return replace(read(Conversation, json_of(response)), key=key)

    return Call("POST", "/v1/conversations", made, body=body, key=key)


def conversation(conversation_id: UUID | str) -> Call[Conversation]:
    """``GET /v1/conversations/{id}``."""
    return Call("GET", f"/v1/conversations/{conversation_id}", _reader(Conversation))


def conversations(query: str | None, after: str | None) -> Call[Page[Conversation]]:
    """``GET /v1/conversations``: one page, newest first."""
    asked = set_fields({"query": query, "after": after, "limit": str(PAGE)})
    return Call("GET", "/v1/conversations", _pages(Conversation), query=asked)


def update_conversation(
    conversation_id: UUID | str, title: str | None, policy: Policy | None
) -> Call[Conversation]:
    """``PATCH /v1/conversations/{id}``."""
    path = f"/v1/conversations/{conversation_id}"
    body = set_fields({"title": title, "policy": policy})
    return Call("PATCH", path, _reader(Conversation), body=body)


def delete_conversation(conversation_id: UUID | str) -> Call[None]:
    """``DELETE /v1/conversations/{id}``."""
    path = f"/v1/conversations/{conversation_id}"
    return Call("DELETE", path, _nothing, done_slug="not-found")


def restore_conversation(conversation_id: UUID | str) -> Call[Conversation]:
    """``POST /v1/conversations/{id}/restore``; a repeat of a try that worked just reads it."""
    path = f"/v1/conversations/{conversation_id}"
    then = conversation(conversation_id)
    reader = _reader(Conversation)
    return Call("POST", f"{path}/restore", reader, done_slug="not-found", then=then)


def messages(
    conversation_id: UUID | str, branch: UUID | str | None, after: str | None
) -> Call[Page[Message]]:
    """``GET /v1/conversations/{id}/messages``: one page, oldest first."""
    named = None if branch is None else str(branch)
    asked = set_fields({"branch": named, "after": after, "limit": str(PAGE), "order": "asc"})
    path = f"/v1/conversations/{conversation_id}/messages"
    return Call("GET", path, _pages(Message), query=asked)


def branches(conversation_id: UUID | str) -> Call[Page[Branch]]:
    """``GET /v1/conversations/{id}/branches``."""
    return Call("GET", f"/v1/conversations/{conversation_id}/branches", _pages(Branch))


def post(
    conversation_id: UUID | str, content: str, parent: UUID | str | None, ask: Ask
) -> Call[AcceptedTurn]:
    """``POST /v1/conversations/{id}/messages``."""
    named = None if parent is None else str(parent)
    body = {"content": content, **ask.body(), **set_fields({"parent": named})}
    return _turn_call("POST", f"/v1/conversations/{conversation_id}/messages", body, ask)


def edit(
    conversation_id: UUID | str, message_id: UUID | str, content: str, ask: Ask
) -> Call[AcceptedTurn]:
    """``PATCH /v1/conversations/{id}/messages/{mid}``."""
    path = f"/v1/conversations/{conversation_id}/messages/{message_id}"
    return _turn_call("PATCH", path, {"content": content, **ask.body()}, ask)


def regenerate(turn_id: UUID | str, ask: Ask) -> Call[AcceptedTurn]:
    """``POST /v1/turns/{id}/regenerate``."""
    return _turn_call("POST", f"/v1/turns/{turn_id}/regenerate", ask.body(), ask)


def continue_(turn_id: UUID | str, ask: Ask) -> Call[AcceptedTurn]:
    """``POST /v1/turns/{id}/continue``."""
    return _turn_call("POST", f"/v1/turns/{turn_id}/continue", ask.body(), ask)


def delete_message(conversation_id: UUID | str, message_id: UUID | str) -> Call[None]:
    """``DELETE /v1/conversations/{id}/messages/{mid}``."""
    path = f"/v1/conversations/{conversation_id}/messages/{message_id}"
    return Call("DELETE", path, _nothing, done_slug="not-found")


def turn(turn_id: UUID | str) -> Call[Turn]:
    """``GET /v1/turns/{id}``."""
    return Call("GET", f"/v1/turns/{turn_id}", _reader(Turn))


def cancel(turn_id: UUID | str) -> Call[Turn]:
    """``POST /v1/turns/{id}/cancel``; a repeat of a try that worked just reads the turn."""
    path = f"/v1/turns/{turn_id}/cancel"
    then = turn(turn_id)
    return Call("POST", path, _reader(Turn), done_slug="turn-already-terminal", then=then)


def plan(turn_id: UUID | str, step: int | None) -> Call[TurnPlan]:
    """``GET /v1/turns/{id}/plan``."""
    query = {} if step is None else {"step": str(step)}
    return Call("GET", f"/v1/turns/{turn_id}/plan", _reader(TurnPlan), query=query)


def document(
    method: str, path: str, *, query: Mapping[str, str] | None = None, body: Json | None = None
) -> Call[dict[str, Any]]:
    """A document that is not typed here, such as a diff or an explanation."""
    return Call(method, path, json_of, body=body, query=query or {})


def diff(turn_id: UUID | str, against: UUID | str | None, step: int | None) -> Call[dict[str, Any]]:
    """``GET /v1/turns/{id}/plan/diff``."""
    asked = {"against": None if against is None else str(against), "step": _number(step)}
    return document("GET", f"/v1/turns/{turn_id}/plan/diff", query=set_fields(asked))


def explain(
    turn_id: UUID | str, text: str | None, message_id: UUID | str | None, step: int | None
) -> Call[dict[str, Any]]:
    """``POST /v1/turns/{id}/explain``: about a text or a message."""
    named = None if message_id is None else str(message_id)
    body = set_fields({"text": text, "message_id": named, "step": step})
    return document("POST", f"/v1/turns/{turn_id}/explain", body=body)


def replay(turn_id: UUID | str, step: int | None) -> Call[dict[str, Any]]:
    """``GET /v1/turns/{id}/replay``."""
    query = set_fields({"step": _number(step)})
    return document("GET", f"/v1/turns/{turn_id}/replay", query=query)


def set_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in values.items() if value is not None}


def new_key() -> str:
    """A fresh idempotency key."""
    return str(uuid4())


def json_of(response: httpx.Response) -> dict[str, Any]:
    """The JSON object that an answer holds.

    Raises:
        UnexpectedAnswer: It holds none.
    """
    try:
        found = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        msg = f"the answer of {response.url.path} is no JSON object; is that a Turnwire gateway?"
        raise UnexpectedAnswer(msg)
    return found


def _turn_call(method: str, path: str, body: Json, ask: Ask) -> Call[AcceptedTurn]:
    key = ask.key or new_key()

    def accepted(response: httpx.Response) -> AcceptedTurn:
        found = read(AcceptedTurn, json_of(response))
        is_replay = response.headers.get("idempotent-replayed") == "true"
        return replace(found, key=key, is_replay=is_replay)

    return Call(method, path, accepted, body=body, key=key)


def _reader(kind: type[T]) -> Callable[[httpx.Response], T]:
    return lambda response: read(kind, json_of(response))


def _pages(kind: type[T]) -> Callable[[httpx.Response], Page[T]]:
    def page(response: httpx.Response) -> Page[T]:
        found = json_of(response)
        items: Iterable[object] = found.get("data") or ()
        read_items = tuple(read(kind, item) for item in items)
        return Page(read_items, found.get("last_id"), bool(found.get("has_more")))

    return page


def _nothing(response: httpx.Response) -> None:
    del response


def _of_options(options: Options) -> dict[str, Any]:
    return {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "cancel_after_s": options.cancel_after_s,
    }


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _quoted(key: str) -> str:
    return key.replace("\\", "\\\\").replace('"', '\\"')
