"""A turn and its plan as lines for people."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from services.ops.screen import Screen, duration, table

Document = Mapping[str, Any]


def turn_lines(screen: Screen, turn: Document) -> Iterator[str]:
    """The record of a turn: its state first."""
    reason = f" ({turn['reason']})" if turn.get("reason") else ""
    took = _took(turn)
    yield f"Turn {turn['id']} is {screen.state(turn['status'])}{reason}{took}"
    facts = {
        "conversation": turn["conversation_id"],
        "question": turn["user_message_id"],
        "answer": turn["assistant_message_id"],
        "seq": turn["seq"],
        "policy": turn.get("policy"),
        "model": turn.get("model"),
        "bytes": turn.get("length"),
        "tokens": _usage(turn.get("usage")),
        "created": turn.get("created_at"),
        "ended": turn.get("ended_at"),
    }
    for name, value in facts.items():
        if value is not None:
            yield f"  {name:<14}{value}"


def plan_lines(screen: Screen, document: Document) -> Iterator[str]:
    """The plans of a turn: budget by section, then blocks, then what was left out and why."""
    for step in document["steps"]:
        plan = step["plan"]
        budget = plan["budget"]
        loaded = plan["history"]["loaded"]
        yield (
            f"Step {step['step_no']} uses {plan['count']} of {loaded + 1} messages, "
            f"{budget['used']:,} of {budget['tokens']:,} tokens, for {plan['model']}"
        )
        yield f"  fingerprint {plan['fingerprint']}"
        yield f"  assembly    {plan['assembly_revision']}, seq {plan['seq_range']}"
        yield ""
        yield from table(
            ("section", "before", "used", "after"),
            [
                (s["section"], f"{s['before']:,}", f"{s['used']:,}", f"{s['after']:,}")
                for s in budget["sections"]
            ],
            numbers=("before", "used", "after"),
        )
        yield ""
        yield from table(
            ("state", "kind", "role", "trust", "seq", "tokens", "id"),
            [*_included(screen, plan), *_excluded(screen, plan)],
            numbers=("seq", "tokens"),
        )


def _included(screen: Screen, plan: Document) -> Iterator[tuple[str, ...]]:
    for block in plan["blocks"]:
        yield (
            screen.state("included"),
            str(block["kind"]),
            str(block["role"] or ""),
            str(block["trust"]),
            "" if block["seq"] is None else str(block["seq"]),
            f"{block['tokens']:,}",
            str(block["id"]),
        )


def _excluded(screen: Screen, plan: Document) -> Iterator[tuple[str, ...]]:
    for gone in plan["excluded"]:
        yield (screen.state(str(gone["reason"])), "", "", "", "", "", str(gone["id"]))


def _usage(usage: Document | None) -> str | None:
    if usage is None:
        return None
    note = ", estimated" if usage.get("estimated") else ""
    return f"{usage['input']:,} in, {usage['output']:,} out{note}"


def _took(turn: Document) -> str:
    if not turn.get("created_at") or not turn.get("ended_at"):
        return ""
    began, ended = (datetime.fromisoformat(turn[name]) for name in ("created_at", "ended_at"))
    return f" after {duration((ended - began).total_seconds())}"
