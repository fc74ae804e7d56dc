"""All event types and the topic each travels on."""

from typing import Any

from schemas.envelope import Codec, Data, Event
from schemas.generations import (
    GenerationCompletedV1,
    GenerationFailedV1,
    GenerationInterruptedV1,
)
from schemas.requests import (
    AnswerRequestedV1,
    ConversationCreateRequestedV1,
    ConversationDeleteRequestedV1,
    ConversationRestoreRequestedV1,
    ConversationUpdateRequestedV1,
    MessageDeleteRequestedV1,
    MessageEditRequestedV1,
    TurnRequestedV1,
)
from schemas.steps import StepPlannedV1, StepRefusedV1
from schemas.turns import (
    ConversationDeletedV1,
    ConversationPurgedV1,
    ConversationRestoredV1,
    MessageDeletedV1,
    TurnAcceptedV1,
    TurnCancelRequestedV1,
    TurnEndedV1,
    TurnStartedV1,
)

TURN_REQUESTS = "turn.requests"
TURN_EVENTS = "turn.events"
CONTEXT_EVENTS = "context.events"
GENERATION_EVENTS = "generation.events"
DEAD_LETTER_SUFFIX = ".dlq"

EVENTS_OF_TOPIC: dict[str, tuple[type[Data], ...]] = {
    TURN_REQUESTS: (
        ConversationCreateRequestedV1,
        TurnRequestedV1,
        MessageEditRequestedV1,
        AnswerRequestedV1,
        TurnCancelRequestedV1,
        MessageDeleteRequestedV1,
        ConversationUpdateRequestedV1,
        ConversationDeleteRequestedV1,
        ConversationRestoreRequestedV1,
    ),
    TURN_EVENTS: (
        TurnAcceptedV1,
        TurnStartedV1,
        TurnCancelRequestedV1,
        TurnEndedV1,
        MessageDeletedV1,
        ConversationDeletedV1,
        ConversationRestoredV1,
        ConversationPurgedV1,
    ),
    CONTEXT_EVENTS: (StepPlannedV1, StepRefusedV1),
    GENERATION_EVENTS: (GenerationCompletedV1, GenerationInterruptedV1, GenerationFailedV1),
}

ALL_EVENTS: tuple[type[Data], ...] = tuple(
    dict.fromkeys(data for events in EVENTS_OF_TOPIC.values() for data in events)
)
"""Each once, though a cancel travels on two topics: first as a wish, then as a fact."""

_CODEC = Codec(ALL_EVENTS)


def decode(raw: bytes | None) -> Event[Any]:
    """Read one record of any topic; the errors are those of ``schemas.envelope.Codec.decode``."""
    return _CODEC.decode(raw)
