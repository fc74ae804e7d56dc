"""Why a turn ended, in words, and what an operator can do about it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason means.

    Attributes:
        why: A whole sentence.
        next_step: What to do, or why nothing has to be done.
    """

    why: str
    next_step: str


END_REASONS = ("internal", "deadline", "user")
"""Reasons that an operator may give for ending a turn: our fault, too slow, not wanted."""

MEANINGS: Mapping[str, Meaning] = MappingProxyType(
    {
        "provider_cut": Meaning(
            "The provider cut the stream after part of the answer had been shown.",
            "Nothing here is broken; the user can continue the answer or ask again.",
        ),
        "lease_expired": Meaning(
            "The worker that was calling the model died or froze, and part of the answer had "
            "already been shown, so nobody could begin it again.",
            "Look at the attempts: the worker's id and its log say why it went. The user can "
            "continue the answer.",
        ),
        "max_tokens": Meaning(
            "The answer reached the limit of tokens.",
            "Raise max_output of the model in the catalogue, or let the user continue.",
        ),
        "content_filter": Meaning(
            "The provider's filter stopped the answer.", "Nothing here is broken."
        ),
        "deadline": Meaning(
            "The turn was not done when its deadline came.",
            "The longest gap between two lines below is where the time went; look at that service.",
        ),
        "step_deadline": Meaning(
            "One call of the model took longer than a step may take.",
            "Look at the provider's speed, or raise the step's limit.",
        ),
        "idle_timeout": Meaning(
            "The provider was connected and said nothing for too long.",
            "Look at the provider; repeated ones are its fault.",
        ),
        "user": Meaning("Somebody asked for it to stop.", "Nothing has to be done."),
        "no_subscriber": Meaning(
            "Nobody watched the answer any more, and the request said to stop then.",
            "Nothing has to be done.",
        ),
        "replaced": Meaning(
            "A later message of the conversation took its place.", "Nothing has to be done."
        ),
        "conversation_deleted": Meaning("Its conversation was deleted.", "Nothing has to be done."),
        "context_too_large": Meaning(
            "What must be shown to the model does not fit into its window.",
            "Compare the step's tokens with its budget; use a larger model, shorter instructions, "
            "or a shorter message.",
        ),
        "invariant": Meaning(
            "The plan broke an invariant, so it was not sent to any model.",
            "The step names the invariant; open the plan to see which block broke it, and report "
            "it: this is a fault of ours.",
        ),
        "provider_refused": Meaning(
            "The provider will not take this request, and asking again would not help.",
            "The attempt names its answer: a wrong key, an unknown model or its safety rules.",
        ),
        "provider_unavailable": Meaning(
            "No provider answered, however often it was asked.",
            "Look at the provider at LLM_BASE_URL; `turnwire doctor` asks it. The user can ask "
            "again once it is back.",
        ),
        "queue_timeout": Meaning(
            "It waited behind earlier turns for as long as it may.",
            "Look at the turn before it in the conversation.",
        ),
        "dead_lettered": Meaning(
            "A record that the turn needed could not be handled and was set aside.",
            "Open the dead letter: it names the topic, the reason and the error. Re-driving it "
            "does not bring this turn back, its end is final.",
        ),
        "internal": Meaning(
            "Something went wrong here that should not.",
            "Look at the logs of the services below under the turn's id and its trace.",
        ),
    }
)

STATES = (
    "open", "queued", "pending", "generating", "waiting_for_tool",
    "completed", "partial", "failed", "cancelled",
)  # fmt: skip
"""States by which turns are listed; ``open`` is any that has not ended."""

OPEN: Mapping[str, Meaning] = MappingProxyType(
    {
        "queued": Meaning(
            "It waits for an earlier turn of its branch.", "Look at the turn before it."
        ),
        "pending": Meaning(
            "It is accepted and no model has been called yet.",
            "If that lasts, look at context_assembly and at the outbox of ingestion.",
        ),
        "generating": Meaning(
            "A model is being called, or is about to be.",
            "If that lasts, look at the lease of its worker below.",
        ),
        "waiting_for_tool": Meaning("It waits for a tool.", "Look at the tool."),
    }
)

INVARIANTS: Mapping[str, str] = MappingProxyType(
    {
        "current_turn_once_in_plan": "the message to answer would not have stood in it once, "
        "and last",
        "superseded_excluded": "something that was replaced or deleted would have been shown",
        "plan_within_budget": "it was larger than its budget",
        "plan_deterministic": "the same rows gave another plan",
        "history_contiguous": "its history had a hole, or was not the newest",
        "trust_framed": "data was not set apart from instructions",
    }
)
"""What a plan would have done that breaks a rule, as the second half of a sentence."""

FAILURES: Mapping[str, str] = MappingProxyType(
    {
        "refused": "the connection was refused",
        "timeout": "no answer came in time",
        "idle": "it was connected and silent",
        "cut": "the stream broke",
        "malformed": "the answer was not the protocol",
        "throttled": "it asked for fewer requests",
        "server_error": "it failed by itself",
        "bad_request": "it called the request wrong",
        "unauthorized": "it did not take the key",
        "context_length": "it called the prompt too long",
        "safety": "its safety rules said no",
    }
)
"""Classes of a provider's failures, as the second half of a sentence."""

_UNKNOWN = Meaning("The rows give no reason.", "Look at the lines below.")


def failure_of(attempt: Mapping[str, Any]) -> str:
    """The last failure of an attempt in words, with the provider's own short code."""
    kind, *codes = str(attempt["failure"]).replace(":", " ").split()
    code = f" ({' '.join(codes)})" if codes else ""
    return FAILURES.get(kind, kind) + code


def meaning_of(status: str, reason: str | None, *, is_open: bool) -> Meaning:
    """What the state of a turn means.

    Args:
        status: Of an open turn that has not started ``queued``.
    """
    if is_open:
        return OPEN.get(status, _UNKNOWN)
    if status == "completed":
        return Meaning("The answer is complete.", "Nothing has to be done.")
    return MEANINGS.get(reason or "", _UNKNOWN)
