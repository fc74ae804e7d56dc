"""Renders a plan into the exact bytes that the provider will be asked with."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import orjson

from libs.errors import Retryable
from schemas.prompt_plan import (
    DATA_JOINT,
    FIXED_TEXTS,
    FRAMED,
    SYSTEM_JOINT,
    frame,
    framing_text,
)
from services.context_assembly.core.nonces import nonce_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.context_assembly.core.plan import Block, PromptPlan


class HistoryChanged(Retryable):
    """A message that was chosen has no text any more; planning again sees the present rows."""

    code = "context.history_changed"


def seal(plan: PromptPlan, texts: Mapping[str, str]) -> tuple[PromptPlan, bytes]:
    """Render the payload and give the plan its nonce, its checksums and its fingerprint.

    ``schemas.prompt_plan.render`` gives the same bytes from the document; this way is the fast one.

    Args:
        texts: Text of each stored message of the plan, by message id.

    Returns:
        The plan with what follows from its texts, and the canonical payload: JSON in UTF-8 with
        sorted keys and no white space.

    Raises:
        HistoryChanged: A text is missing.
    """
    own = {one.block_id: one.text for one in plan.instructions}
    own |= {one.id: one.text for one in plan.choice.data}
    chosen = [_text(block, own, texts) for block in plan.blocks]
    nonce = None
    if plan.choice.data:
        nonce = nonce_for(plan.turn.step_id, chosen)
        chosen = [
            framing_text(nonce) if block.kind == "framing" else text
            for block, text in zip(plan.blocks, chosen, strict=True)
        ]
    body: dict[str, Any] = {
        "model": plan.limits.model,
        "messages": _messages(plan.blocks, chosen, nonce),
        "max_tokens": plan.sampling.max_tokens,
    }
    if plan.sampling.temperature is not None:
        body["temperature"] = plan.sampling.temperature
    if plan.sampling.top_p is not None:
        body["top_p"] = plan.sampling.top_p
    payload = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    checksums = tuple([crc32(text.encode()) for text in chosen])
    sealed = replace(plan, nonce=nonce, checksums=checksums, fingerprint=fingerprint(payload))
    return sealed, payload


def fingerprint(payload: bytes) -> str:
    """SHA-256 of the payload's bytes, hexadecimal."""
    return hashlib.sha256(payload).hexdigest()


def _text(block: Block, own: Mapping[str, str], texts: Mapping[str, str]) -> str:
    """A block's text without its frame; the sentence about frames comes last, with the nonce."""
    text = texts.get(block.id)
    if text is not None and block.source == "ingestion.messages":
        return text
    if block.source == "assembly":
        return FIXED_TEXTS.get(block.kind, "")
    if block.id in own:
        return own[block.id]
    msg = f"message {block.id} was chosen for a prompt and has no text now; plan again"
    raise HistoryChanged(msg)


def _messages(
    blocks: tuple[Block, ...], texts: list[str], nonce: str | None
) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = []
    before: str | None = None  # what the last message is made of, where others may join it
    for block, text in zip(blocks, texts, strict=True):
        kind = block.kind
        if kind == "message":
            messages.append({"role": block.role, "content": text})
            before = None
        elif kind == "interrupted" and block.trust == "operator":
            # Not a message of its own: roles would stop alternating.
            messages[-1]["content"] += text
        elif block.role == "system":
            if before == "system":
                messages[-1]["content"] += SYSTEM_JOINT + text
            else:
                messages.append({"role": "system", "content": text})
            before = "system"
        elif block.layer in FRAMED and nonce is not None:
            framed = frame(text, nonce=nonce, kind=kind, block_id=block.id)
            if before == "data":
                messages[-1]["content"] += DATA_JOINT + framed
            else:
                messages.append({"role": block.role, "content": framed})
            before = "data"
        else:
            messages.append({"role": block.role, "content": text})
            before = None
    return messages
