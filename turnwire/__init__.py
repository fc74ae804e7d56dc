"""A typed client for Turnwire: it keeps the idempotency key, and resumes streams by itself.

``Client`` blocks, ``AsyncClient`` is for asyncio; both have the same methods. What can go wrong is
in ``turnwire.errors``; fixtures and assertions for tests are in ``turnwire.testing``.
"""

from turnwire.async_client import AsyncAnswerStream, AsyncClient
from turnwire.calls import Ask, Options
from turnwire.client import AnswerStream, Client
from turnwire.errors import (
    DamagedAnswer,
    FieldError,
    ProblemError,
    TurnwireError,
    Unavailable,
    UnexpectedAnswer,
)
from turnwire.models import (
    AcceptedTurn,
    Answer,
    Branch,
    Conversation,
    Message,
    Policy,
    StepPlan,
    Turn,
    TurnPlan,
    Usage,
)
from turnwire.patience import Patience
from turnwire.streams import StreamEvent

__all__ = [
    "AcceptedTurn",
    "Answer",
    "AnswerStream",
    "Ask",
    "AsyncAnswerStream",
    "AsyncClient",
    "Branch",
    "Client",
    "Conversation",
    "DamagedAnswer",
    "FieldError",
    "Message",
    "Options",
    "Patience",
    "Policy",
    "ProblemError",
    "StepPlan",
    "StreamEvent",
    "Turn",
    "TurnPlan",
    "TurnwireError",
    "Unavailable",
    "UnexpectedAnswer",
    "Usage",
]
