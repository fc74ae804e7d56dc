"""Renders a plan into the exact bytes that the provider will be asked with."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from libs.errors import Retryable
from services.context_assembly.core.plan import INTERRUPTED, NO_ANSWER, PromptPlan

if TYPE_CHECKING:
    from collections.abc import Mapping


class HistoryChanged(Retryable):
    """A message that was chosen has no text any more; planning again sees the present rows."""

    code = "context.history_changed"


def seal(plan: PromptPlan, texts: Mapping[str, str]) -> tuple[PromptPlan, bytes]:
    """Render the payload and give the plan its fingerprint.

    Args:
        texts: Text of each stored message of the plan, by message id.

    Returns:
        The plan with its fingerprint, and the canonical payload it is the SHA-256 of: JSON in
        UTF-8 with sorted keys and no white space.

    Raises:
        HistoryChanged: A text is missing.
    """
    body: dict[str, Any] = {
        "model": plan.limits.model,
        "messages": _messages(plan, texts),
        "max_tokens": plan.sampling.max_tokens,
    }
    if plan.sampling.temperature is not None:
        body["temperature"] = plan.sampling.temperature
    if plan.sampling.top_p is not None:
        body["top_p"] = plan.sampling.top_p
    payload = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return replace(plan, fingerprint=fingerprint(payload)), payload


def fingerprint(payload: bytes) -> str:
    """SHA-256 of the payload's bytes, hexadecimal."""
    return hashlib.sha256(payload).hexdigest()


def _messages(plan: PromptPlan, texts: Mapping[str, str]) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = []
    for block in plan.blocks:
        if block.kind == "interrupted":
            # Not a message of its own: roles would stop alternating.
            messages[-1]["content"] += INTERRUPTED
            continue
        if block.kind == "system":
            content = plan.policy_text
        elif block.kind == "no_answer":
            content = NO_ANSWER
        elif block.id in texts:
            content = texts[block.id]
        else:
            msg = f"message {block.id} was chosen for a prompt and has no text now; plan again"
            raise HistoryChanged(msg)
        messages.append({"role": block.role, "content": content})
    return messages
