"""How many tokens of a model's window a prompt may use, and what a turn may choose about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from services.context_assembly.core.sections import DEFAULT_RULES, SectionRule

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TEMPERATURE: Final = 2.0  # the upper end that OpenAI-compatible endpoints accept


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What planning must know of a model; all sizes in tokens.

    Attributes:
        window: Prompt and reply together.
        max_output: The longest reply.
        per_message_overhead: What a message costs beside its text.
        reply_overhead: What the chat template adds once.
        safety_factor: The prompt's share is divided by it where the tokenizer is not the model's.
        alternate_roles: The model refuses two user messages in a row.
        sections: How the prompt's sections share the budget, in the prompt's order.
    """

    model: str
    window: int
    max_output: int
    tokenizer: str
    per_message_overhead: int
    reply_overhead: int
    safety_factor: float
    alternate_roles: bool
    sections: tuple[SectionRule, ...] = DEFAULT_RULES


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a turn chose about its generation; None leaves the provider's own default.

    Attributes:
        max_tokens: Longest reply in tokens; the same number is kept free in the window.
    """

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None


def sampling_of(options: Mapping[str, object] | None, limits: ModelLimits) -> Sampling:
    """Read the options of a turn that concern the model; all others belong to other services.

    Values are checked at the door. One that is impossible all the same is left out rather than
    sent, and ``max_tokens`` never passes the model's own limit.
    """
    wanted = options or {}
    asked = wanted.get("max_tokens")
    reply = limits.max_output
    if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
        reply = min(asked, limits.max_output)
    return Sampling(
        max_tokens=reply,
        temperature=_number(wanted.get("temperature"), low=0.0, high=MAX_TEMPERATURE),
        top_p=_number(wanted.get("top_p"), low=0.0, high=1.0),
    )


def prompt_budget(limits: ModelLimits, reply_tokens: int) -> int:
    """Tokens left for the prompt, at least 0.

    The reply's reserve is subtracted here and nowhere else. The safety factor covers everything
    that was counted with a tokenizer which may not be the model's; overheads included.
    """
    room = limits.window - reply_tokens
    return max(0, int(room / limits.safety_factor) - limits.reply_overhead)


def _number(value: object, *, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if low <= value <= high else None
