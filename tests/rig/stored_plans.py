"""Stored plans for tests: whole documents of ``prompt_plan.v1`` from a few words."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from jsonschema import Draft202012Validator

from schemas.prompt_plan import FIXED_TEXTS, SECTIONS, checksum, render

PUBLISHED = Path(__file__).parents[2] / "schemas/json/prompt_plan.v1.schema.json"

Shown = tuple[str, str, str, int | None]
"""A message in a plan: id, role, text, seq."""


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(PUBLISHED.read_text(encoding="utf-8")))


def as_published(document: dict[str, Any]) -> dict[str, Any]:
    """The document itself, which has the form of the published schema.

    Raises:
        jsonschema.ValidationError: Names the part that has not.
    """
    _validator().validate(document)
    return document


def block(  # noqa: PLR0913 -- each is one field of a block
    id_: str, role: str, text: str, *, kind: str, layer: str, offset: int, seq: int | None = None
) -> dict[str, Any]:
    """One block; its tokens are the words of its text."""
    trust = {"system": "operator", "assistant": "model"}.get(role, "user")
    return {
        "id": id_,
        "kind": kind,
        "layer": layer,
        "trust": "operator" if kind in FIXED_TEXTS else trust,
        "role": role,
        "source": "settings" if role == "system" else "ingestion.messages",
        "version": None,
        "seq": seq,
        "observed_at": None,
        "tokens": len(text.split()),
        "token_offset": offset,
        "score": None,
        "permission_checked_at": None,
        "checksum": checksum(text),
    }


def plan(  # noqa: PLR0913 -- each is one part of a document
    shown: Sequence[Shown],
    *,
    turn_id: UUID | None = None,
    instructions: Sequence[Mapping[str, Any]] = (),
    heads: Mapping[str, str] | None = None,
    excluded: Sequence[tuple[str, str]] = (),
    up_to: int | None = None,
    kind: str = "message",
    base_seq: int | None = None,
) -> dict[str, Any]:
    """The plan that shows these messages, the last of them as the current one."""
    blocks, texts = _laid(shown, heads or {})
    used = sum(one["tokens"] for one in blocks)
    seqs = [seq for *_, seq in shown if seq is not None]
    document: dict[str, Any] = {
        "schema": "prompt_plan.v1",
        "assembly_revision": 2,
        "turn_id": str(turn_id or uuid4()),
        "step_id": str(uuid4()),
        "step_no": 1,
        "kind": kind,
        "model": "m",
        "tokenizer": "o200k_base",
        "sampling": {"max_tokens": 100, "temperature": None, "top_p": None},
        "fingerprint": "",
        "nonce": None,
        "instructions": list(instructions),
        "blocks": blocks,
        "excluded": [{"id": id_, "reason": reason} for id_, reason in excluded],
        "excluded_counts": {},
        "excluded_up_to_seq": up_to,
        "budget": _budget(used),
        "message_ids": [id_ for id_, *_ in shown],
        "seq_range": [min(seqs), max(seqs)],
        "count": len(shown),
        "history": {
            "base_seq": base_seq or max(seqs),
            "loaded": len(shown),
            "kept": len(shown),
            "trimmed": 0,
        },
    }
    document["fingerprint"] = hashlib.sha256(render(document, texts)).hexdigest()
    return document


def _laid(
    shown: Sequence[Shown], heads: Mapping[str, str]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The blocks, and the text of each."""
    blocks: list[dict[str, Any]] = []
    texts = {**heads, **{id_: text for id_, _, text, _ in shown}}
    offset = 0
    for id_, text in heads.items():
        blocks.append(block(id_, "system", text, kind="system", layer="system", offset=offset))
        offset += blocks[-1]["tokens"]
    for place, (id_, role, text, seq) in enumerate(shown):
        is_current = place == len(shown) - 1
        kind, layer = ("current", "current") if is_current else ("message", "history")
        blocks.append(block(id_, role, text, kind=kind, layer=layer, offset=offset, seq=seq))
        offset += blocks[-1]["tokens"]
    return blocks, texts


def _budget(used: int) -> dict[str, Any]:
    numbers = {"floor": 0, "ceiling": None, "before": 900, "used": 5, "after": 895}
    return {
        "window": 1000,
        "reply_reserve": 100,
        "reply_overhead": 0,
        "safety_factor": 1.0,
        "tokens": 900,
        "used": used,
        "sections": [{"section": section, **numbers} for section in SECTIONS],
    }
