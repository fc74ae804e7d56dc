"""What Turnwire answers, as typed values; fields that a newer server adds are ignored."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from turnwire.errors import UnexpectedAnswer

T = TypeVar("T")

TERMINAL = frozenset({"completed", "partial", "failed", "cancelled"})
"""States in which a turn stays for ever."""

Policy = Literal["serialize", "queue", "reject", "replace", "branch"]
"""What happens to a message while an earlier turn of its branch runs."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of an answer.

    Attributes:
        estimated: Whether they were counted by us, since the provider did not say.
    """

    input: int
    output: int
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class AcceptedTurn:
    """The identity of a turn that is durable.

    Attributes:
        seq: Of the user message.
        key: The idempotency key that stands for it.
        is_replay: Whether the turn was there already under this key.
        queue_position: Turns before it on its branch; None or 0 if it starts at once.
    """

    conversation_id: UUID
    turn_id: UUID
    user_message_id: UUID
    assistant_message_id: UUID
    seq: int
    status: str
    request_id: UUID
    kind: str = "message"
    branch_id: UUID | None = None
    queue_position: int | None = None
    key: str = ""
    is_replay: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation.

    Attributes:
        turn: The first turn, where the conversation was made together with a message.
        key: The idempotency key it was made with; empty when it was read.
    """

    id: UUID
    title: str | None
    policy: Policy
    created_at: datetime
    updated_at: datetime | None = None
    message_count: int = 0
    turn: AcceptedTurn | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A message; the content of a running answer is what is stored so far.

    Attributes:
        supersedes: The message that this one is a new revision of.
    """

    id: UUID
    role: Literal["user", "assistant"]
    content: str
    seq: int
    status: str
    reason: str | None
    turn_id: UUID
    created_at: datetime
    branch_id: UUID | None = None
    supersedes: UUID | None = None
    kind: str = "message"


@dataclass(frozen=True, slots=True)
class Turn:
    """The record of a turn, without its text.

    Attributes:
        length: Bytes of the answer in UTF-8, once it has ended.
        queue_position: Turns before it on its branch, while it waits.
        cancel_requested: Whether somebody has asked for its end.
    """

    id: UUID
    conversation_id: UUID
    user_message_id: UUID
    assistant_message_id: UUID
    seq: int
    status: str
    reason: str | None = None
    policy: str | None = None
    model: str | None = None
    length: int | None = None
    sha256: str | None = None
    usage: Usage | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    kind: str = "message"
    branch_id: UUID | None = None
    parent_turn_id: UUID | None = None
    queue_position: int | None = None
    cancel_requested: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True)
class Branch:
    """One line of a conversation.

    Attributes:
        fork_seq: Below this number it shows what its parent shows; None for the main branch.
    """

    id: UUID
    kind: str
    is_active: bool
    parent_branch_id: UUID | None = None
    fork_seq: int | None = None
    first_turn_id: UUID | None = None
    last_turn_id: UUID | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the model was shown in one step.

    Attributes:
        plan: A document of the published schema ``prompt_plan.v1``.
        invariant: The rule that the plan breaks; then it was never sent, and the turn failed.
    """

    step_id: UUID
    step_no: int
    created_at: datetime
    plan: Mapping[str, Any]
    invariant: str | None = None


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """The plans of a turn, one a step."""

    turn_id: UUID
    conversation_id: UUID
    steps: tuple[StepPlan, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer in its final state.

    Attributes:
        text: All that was shown, also of an answer that was cut or cancelled.
        reason: Why it is not complete; None for a completed one.
    """

    turn_id: UUID
    status: str
    reason: str | None
    text: str
    usage: Usage | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the model said all it had to say."""
        return self.status == "completed"


def read(kind: type[T], document: object) -> T:
    """A document of the server as a value.

    Raises:
        UnexpectedAnswer: The document lacks a field, or holds something else in it.
    """
    if not isinstance(document, Mapping):
        msg = f"an answer that should be a {kind.__name__} is no JSON object"
        raise UnexpectedAnswer(msg)
    values: dict[str, Any] = {}
    for name, hint, is_required in _shape(cast("type", kind)):
        if name in document:
            values[name] = _value(hint, document[name], f"{kind.__name__}.{name}")
        elif is_required:
            msg = f"an answer that should be a {kind.__name__} has no {name}"
            raise UnexpectedAnswer(msg)
    return kind(**values)


@cache
def _shape(kind: type) -> tuple[tuple[str, Any, bool], ...]:
    hints = get_type_hints(kind)
    return tuple(
        (field.name, hints[field.name], field.default is MISSING)
        for field in fields(cast("Any", kind))
    )


def _value(hint: Any, value: object, where: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        if value is None:
            return None
        hint = next(one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_value(get_args(hint)[0], one, where) for one in value)
    if is_dataclass(hint):
        return read(cast("type[Any]", hint), value)
    try:
        if hint is UUID and isinstance(value, str):
            return UUID(value)
        if hint is datetime and isinstance(value, str):
            return datetime.fromisoformat(value)
    except ValueError:
        msg = f"{where} of the answer cannot be read"
        raise UnexpectedAnswer(msg) from None
    expected = _plain(hint)
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        msg = f"{where} of the answer is a {type(value).__name__}"
        raise UnexpectedAnswer(msg)
    return value


def _plain(hint: Any) -> type:
    if get_origin(hint) is Literal:
        return str
    found = get_origin(hint) or hint
    return cast("type", found)
