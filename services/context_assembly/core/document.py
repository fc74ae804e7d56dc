"""Writes a plan down as ``prompt_plan.v1``: ids, counts and reasons, never a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas.prompt_plan import SCHEMA
from services.context_assembly.core.plan import ASSEMBLY_REVISION

if TYPE_CHECKING:
    from services.context_assembly.core.plan import Block, PromptPlan


def to_document(plan: PromptPlan) -> dict[str, Any]:
    """The plan as it is stored and shown; ``schemas.prompt_plan`` says what each field means."""
    message_ids = list(plan.message_ids)
    checksums = plan.checksums or (None,) * len(plan.blocks)
    return {
        "schema": SCHEMA,
        "assembly_revision": ASSEMBLY_REVISION,
        "turn_id": str(plan.turn.turn_id),
        "step_id": str(plan.turn.step_id),
        "step_no": plan.turn.step_no,
        "kind": plan.turn.kind,
        "model": plan.limits.model,
        "tokenizer": plan.limits.tokenizer,
        "sampling": {
            "max_tokens": plan.sampling.max_tokens,
            "temperature": plan.sampling.temperature,
            "top_p": plan.sampling.top_p,
        },
        "fingerprint": plan.fingerprint,
        "nonce": plan.nonce,
        "instructions": [
            {"id": one.block_id, "kind": one.kind, "scope": one.scope, "version": one.version}
            for one in plan.instructions
        ],
        "blocks": [_block(block, crc) for block, crc in zip(plan.blocks, checksums, strict=True)],
        "excluded": [{"id": gone.id, "reason": gone.reason} for gone in plan.excluded],
        "excluded_counts": plan.excluded_counts,
        "excluded_up_to_seq": plan.excluded_up_to_seq,
        "budget": _budget(plan),
        "message_ids": message_ids,
        "seq_range": list(plan.seq_range),
        "count": len(message_ids),
        "history": {
            "base_seq": plan.turn.base_seq,
            "loaded": plan.loaded,
            "kept": plan.kept,
            "trimmed": plan.trimmed,
        },
    }


def _budget(plan: PromptPlan) -> dict[str, Any]:
    return {
        "window": plan.limits.window,
        "reply_reserve": plan.sampling.max_tokens,
        "reply_overhead": plan.limits.reply_overhead,
        "safety_factor": plan.limits.safety_factor,
        "tokens": plan.budget_tokens,
        "used": plan.tokens,
        "sections": [
            {
                "section": part.section,
                "floor": part.rule.floor,
                "ceiling": part.rule.ceiling,
                "before": part.before,
                "used": part.used,
                "after": part.after,
            }
            for part in plan.sections
        ],
    }


def _block(block: Block, checksum: int | None) -> dict[str, Any]:
    return {
        "id": block.id,
        "kind": block.kind,
        "layer": block.layer,
        "trust": block.trust,
        "role": block.role,
        "source": block.source,
        "version": block.version,
        "seq": block.seq,
        "observed_at": block.observed_at,
        "tokens": block.tokens,
        "token_offset": block.token_offset,
        "score": block.score,
        "permission_checked_at": block.permission_checked_at,
        "checksum": checksum,
    }
