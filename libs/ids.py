"""Names and derivation rules of all ids.

A turn, a message and a conversation made with a key have ids that follow from their cause, so that
a repeat of the cause meets the same row. Everything else is a time-ordered uuid7.
"""

from typing import Literal, NewType
from uuid import UUID, uuid5

TenantId = NewType("TenantId", UUID)
PrincipalId = NewType("PrincipalId", UUID)
ConversationId = NewType("ConversationId", UUID)
BranchId = NewType("BranchId", UUID)
TurnId = NewType("TurnId", UUID)
MessageId = NewType("MessageId", UUID)
StepId = NewType("StepId", UUID)
EventId = NewType("EventId", UUID)

_UUID7_RANDOM_BYTES = 10  # RFC 9562 section 5.7: 74 random bits beside version and variant


def turn_id(tenant: UUID, conversation: UUID, key: str) -> TurnId:
    """The turn that an idempotency key names inside one conversation of one tenant."""
    return TurnId(uuid5(tenant, f"turn:{conversation}:{key}"))


def conversation_id(tenant: UUID, principal: UUID, key: str) -> ConversationId:
    """The conversation that an idempotency key names for one principal."""
    return ConversationId(uuid5(tenant, f"conversation:{principal}:{key}"))


def message_id(turn: UUID, role: Literal["user", "assistant"]) -> MessageId:
    """The message of that role that a turn writes.

    A turn that answers an earlier question writes no user message: its row names the question.
    """
    return MessageId(uuid5(turn, role))


def branch_id(turn: UUID) -> BranchId:
    """The branch that a turn opens, where it opens one: a repeat of the request meets it."""
    return BranchId(uuid5(turn, "branch"))


def step_id(turn: UUID, step_no: int) -> StepId:
    """Step ``step_no`` (from 1) of a turn: planning it twice meets the same row."""
    return StepId(uuid5(turn, f"step:{step_no}"))


def caused_id(cause: UUID, name: str) -> EventId:
    """The id of the event ``name`` that follows from ``cause``: the same cause, the same id."""
    return EventId(uuid5(cause, name))


def uuid7(now_ms: int, random_bytes: bytes) -> UUID:
    """A time-ordered id (RFC 9562 section 5.7).

    Args:
        now_ms: Milliseconds since the Unix epoch.
        random_bytes: Ten random bytes; six bits are replaced by version and variant.

    Raises:
        ValueError: Not exactly ten random bytes were given.
    """
    if len(random_bytes) != _UUID7_RANDOM_BYTES:
        msg = f"uuid7 takes {_UUID7_RANDOM_BYTES} random bytes, got {len(random_bytes)}"
        raise ValueError(msg)
    value = bytearray((now_ms & (1 << 48) - 1).to_bytes(6, "big") + random_bytes)
    value[6] = value[6] & 0x0F | 0x70
    value[8] = value[8] & 0x3F | 0x80
    return UUID(bytes=bytes(value))
