"""A turn and its plan as lines for people."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from services.ops.screen import Screen, duration, harmless, table

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
        "kind": turn.get("kind"),
        "branch": turn.get("branch_id"),
        "waits behind": turn.get("queue_position") or None,
        "cancelled": "asked for" if turn.get("cancel_requested") else None,
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
        if step.get("invariant"):
            yield f"{screen.state('error')}  never sent: it breaks {step['invariant']}"
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
            ("state", "kind", "layer", "role", "trust", "seq", "tokens", "id"),
            [*_included(screen, plan), *_excluded(screen, plan)],
            numbers=("seq", "tokens"),
        )


def _included(screen: Screen, plan: Document) -> Iterator[tuple[str, ...]]:
    for block in plan["blocks"]:
        yield (
            screen.state("included"),
            str(block["kind"]),
            str(block.get("layer") or ""),
            str(block["role"] or ""),
            str(block["trust"]),
            "" if block["seq"] is None else str(block["seq"]),
            f"{block['tokens']:,}",
            str(block["id"]),
        )


def _excluded(screen: Screen, plan: Document) -> Iterator[tuple[str, ...]]:
    for gone in plan["excluded"]:
        yield (screen.state(str(gone["reason"])), *[""] * 6, str(gone["id"]))


def diff_lines(screen: Screen, diff: Document) -> Iterator[str]:
    """How two plans differ: the pattern in one line, then the messages it speaks of."""
    state = screen.state("ok" if diff["is_healthy"] else "warn")
    yield f"{state}  {diff['line']}"
    yield f"  turn {diff['turn_id']} against {diff['against']}"
    for name in ("added", "twice", "foreign", "swapped", "stale"):
        yield from (f"  {name:<10}{id_}" for id_ in diff.get(name, ()))
    for gone in diff.get("vanished", ()):
        yield f"  {'vanished':<10}{gone['id']} ({gone['reason']})"


def explain_lines(screen: Screen, found: Document) -> Iterator[str]:
    """Absent or ignored: the verdict first, then where it stands or why it does not."""
    budget = found.get("budget")
    if found["verdict"] == "present":
        first, last = found["block"], found["to_block"]
        blocks = f"block {first}" if first == last else f"blocks {first} to {last}"
        yield (
            f"{screen.state('included')}  {blocks} of {found['of']}, token "
            f"{found['token_offset']:,} of {found['of_tokens']:,}, trust {found['trust']}"
        )
    else:
        yield f"{screen.state('absent')}  {found['reason']}, section {found['section']}"
    if found.get("message_id"):
        yield f"  message   {found['message_id']}"
    if budget is not None:
        yield (
            f"  budget    {found['section']}: {budget['before']:,} tokens open, "
            f"{budget['used']:,} used, {budget['after']:,} left"
        )
    yield from (f"  also in   {block}" for block in found.get("also_in", ()))


def replay_lines(screen: Screen, replay: Document) -> Iterator[str]:
    """Whether the stored rows still give the bytes that were sent."""
    state, verb = ("ok", "give the") if replay["equal"] else ("warn", "no longer give the")
    yield f"{screen.state(state)}  step {replay['step_no']}: the rows {verb} bytes that were sent"
    yield f"  sent      {replay['fingerprint_sent']}"
    yield f"  now       {replay['fingerprint_now'] or 'cannot be made'}"
    yield from (f"  {change['why']:<13} {change['id']}" for change in replay["changed"])


def instruction_lines(found: Document) -> Iterator[str]:
    """The operator's texts with their versions."""
    for kind in ("system_policy", "workspace"):
        text = found.get(kind)
        if text is not None:
            yield f"{kind}, version {text['version']}"
            yield from (f"  {harmless(line)}" for line in text["text"].splitlines())
        elif kind in found:
            yield f"{kind} is not set"


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
