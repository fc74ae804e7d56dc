"""The whole story of one turn over all services, as lines in the order of time. Pure."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from libs.ids import EventId, caused_id
from libs.operating.documents import Document, Row, iso, told
from libs.operating.reasons import INVARIANTS, failure_of, meaning_of

CAUSED_BY_TURN = ("turn.accepted", "turn.started", "turn.cancel_requested")
CAUSED_BY_STEP = ("step.planned", "step.refused")
CAUSED_BY_ATTEMPT = ("generation.completed", "generation.interrupted", "generation.failed")

# Lines of one transaction have one time; this is the order in which they belong together.
_REQUEST, _STATE, _STEP, _CLAIM, _CALL, _DELIVERY, _END, _LAST = range(8)


@dataclass(frozen=True, slots=True)
class Facts:
    """The rows of one turn.

    Attributes:
        dead_letters: Of its conversation, the newest ones.
        waiting: Rows of outboxes that concern its conversation.
        acts: Of operators, on the turn.
    """

    turn: Row
    request: Row | None = None
    transitions: Sequence[Row] = ()
    steps: Sequence[Row] = ()
    work: Sequence[Row] = ()
    attempts: Sequence[Row] = ()
    deliveries: Sequence[Row] = ()
    dead_letters: Sequence[Row] = ()
    waiting: Sequence[Row] = ()
    acts: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """One event of a story.

    Attributes:
        rank: Decides between lines of one time.
        ids: What the line is about, by name.
    """

    at: datetime
    rank: int
    service: str
    what: str
    kind: str
    detail: str = ""
    ids: Mapping[str, UUID | int | str | None] = field(default_factory=dict)


def end_ids(turn: UUID) -> tuple[EventId, EventId]:
    """The ids that the end of a turn can have: ended by its service, or by an operator.

    The second is what ``ingestion.op_end_turn`` makes, in SQL, which has no uuid5.
    """
    digest = hashlib.md5(f"operator.turn_ended:{turn}".encode(), usedforsecurity=False)
    return caused_id(turn, "turn.ended"), EventId(UUID(digest.hexdigest()))


def event_names(turn: Row, steps: Sequence[Row], attempts: int) -> dict[UUID, str]:
    """Every event that the turn can have told, by id: ids follow from their cause.

    Args:
        attempts: The highest attempt that any row names.
    """
    named: dict[UUID, str] = {turn["request_id"]: "turn.requested"}
    named |= {caused_id(turn["turn_id"], name): name for name in CAUSED_BY_TURN}
    named |= dict.fromkeys(end_ids(turn["turn_id"]), "turn.ended")
    for step in steps:
        named |= {caused_id(step["step_id"], name): name for name in CAUSED_BY_STEP}
        for k in range(1, attempts + 2):
            named |= {caused_id(step["step_id"], f"{name}:{k}"): name for name in CAUSED_BY_ATTEMPT}
    return named


def story(facts: Facts, *, now: datetime) -> Document:
    """The story as a document: what became of the turn and why, then its lines."""
    turn = facts.turn
    status = shown_status(turn)
    meaning = meaning_of(status, turn["reason"], is_open=turn["is_open"])
    highest = max((a["attempt"] for a in (*facts.attempts, *facts.work)), default=0)
    names = event_names(turn, facts.steps, highest)
    letters = [letter for letter in facts.dead_letters if _concerns(letter, turn, names)]
    lines = sorted(_lines(facts, letters, names), key=lambda line: (line.at, line.rank))
    return {
        "object": "turn_story",
        "turn": {**told(turn), "status": status, "trace_id": trace_of(turn["traceparent"])},
        "sentence": _sentence(turn, status, now),
        "why": _why(meaning.why, facts, letters),
        "next_step": meaning.next_step,
        "lines": _told_lines(lines),
        "steps": [told(row) for row in facts.steps],
        "attempts": [told(row) for row in facts.attempts],
        "work": [told(row) for row in facts.work],
        "dead_letters": [told(row) for row in letters],
        "waiting": [told(row) for row in facts.waiting if row["event_id"] in names],
        "acts": [told(row) for row in facts.acts],
        "may": _possible(turn),
    }


def shown_status(turn: Row) -> str:
    """The turn's state; one that has not started is ``queued``."""
    is_queued = turn["is_open"] and turn["started_at"] is None
    return "queued" if is_queued else str(turn["status"])


def trace_of(traceparent: str | None) -> str | None:
    """The trace's id inside a W3C trace context."""
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) >= 4 else None  # noqa: PLR2004 -- version, trace, span, flags


def _possible(turn: Row) -> list[str]:
    if not turn["is_open"]:
        return []
    return ["end", "reap"] if turn["started_at"] is not None else ["end"]


def _sentence(turn: Row, status: str, now: datetime) -> str:
    reason = f" ({turn['reason']})" if turn["reason"] else ""
    if turn["is_open"]:
        overdue = "; its deadline has passed" if turn["is_overdue"] else ""
        return f"{status.capitalize()} for {_took(now - turn['created_at'])}{overdue}."
    took = _took(turn["ended_at"] - turn["created_at"])
    return f"{status.capitalize()}{reason} {took} after it was accepted."


def _why(why: str, facts: Facts, letters: Sequence[Row]) -> str:
    """The meaning of the reason, with what the rows know beyond it."""
    more: list[str] = []
    reason = facts.turn["reason"]
    if reason == "invariant":
        names = [step["invariant"] for step in facts.steps if step["invariant"]]
        more += [f"It is {name}: {INVARIANTS.get(name, 'see the step')}." for name in names]
    if reason in ("provider_unavailable", "provider_refused", "idle_timeout"):
        for attempt in facts.attempts[-1:]:
            failure = f"; the last time {failure_of(attempt)}" if attempt["failure"] else ""
            more.append(f"It was asked {_times(attempt['requests'])}{failure}.")
    if reason == "dead_lettered":
        for letter in letters[:1]:
            more.append(
                f"{letter['consumer']} refused record {letter['offset']} of {letter['topic']} "
                f"({letter['reason']})."
            )
    if reason == "lease_expired" and facts.attempts:
        more.append(f"Attempt {facts.attempts[-1]['attempt']} was the last one.")
    by_operator = [act for act in facts.acts if act["action"] in ("turn.ended", "turn.reaped")]
    more += [f"An operator did it: {act['action']} by {act['actor']}." for act in by_operator[-1:]]
    return " ".join([why, *more])


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _concerns(letter: Row, turn: Row, names: Mapping[UUID, str]) -> bool:
    """Whether a dead letter of the conversation is this turn's: by event, else by time."""
    if letter["event_id"] in names:
        return True
    end = turn["ended_at"] + timedelta(seconds=5) if turn["ended_at"] else None
    is_known = letter["event_id"] is not None and letter["topic"] == "turn.requests"
    return (
        not is_known and letter["at"] >= turn["created_at"] and (end is None or letter["at"] <= end)
    )


def _lines(facts: Facts, letters: Sequence[Row], names: Mapping[UUID, str]) -> Iterator[Line]:
    yield from _request_lines(facts)
    yield from _state_lines(facts, names)
    for step in facts.steps:
        yield from _step_lines(step)
    for work in facts.work:
        yield from _work_lines(work)
    for attempt in facts.attempts:
        yield from _attempt_lines(attempt)
    for row in facts.deliveries:
        name = names.get(row["event_id"], "an event")
        ids = {"event_id": row["event_id"]}
        what = f"{name} handled"
        yield Line(row["at"], _DELIVERY, row["service"], what, "delivery", row["consumer"], ids)
    for row in facts.waiting:
        if row["event_id"] in names:
            what = f"{row['type']} waits for the broker"
            ids = {"event_id": row["event_id"]}
            yield Line(row["created_at"], _LAST, row["service"], what, "event", row["topic"], ids)
    for row in letters:
        what = f"record of {row['topic']} set aside: {row['reason']}"
        ids = {"dead_letter_id": row["id"], "event_id": row["event_id"]}
        yield Line(row["at"], _END, row["service"], what, "dead_letter", row["error"], ids)
    for row in facts.acts:
        what = f"operator: {row['action']}"
        yield Line(row["at"], _LAST, "ops", what, "act", row["actor"])


def _request_lines(facts: Facts) -> Iterator[Line]:
    turn = facts.turn
    ids = {"request_id": turn["request_id"]}
    at = facts.request["decided_at"] if facts.request is not None else turn["created_at"]
    detail = f"policy {turn['policy']}, kind {turn['kind']}"
    yield Line(at, _REQUEST, "ingestion", "request accepted", "event", detail, ids)


def _state_lines(facts: Facts, names: Mapping[UUID, str]) -> Iterator[Line]:
    turn = facts.turn
    if turn["queued_at_position"]:
        what = f"queued at place {turn['queued_at_position']}"
        yield Line(turn["created_at"], _STATE, "ingestion", what, "transition")
    if turn["started_at"] is not None:
        detail = f"its deadline comes after {_took(turn['deadline_at'] - turn['started_at'])}"
        yield Line(turn["started_at"], _STATE, "ingestion", "turn started", "transition", detail)
    if turn["cancel_at"] is not None:
        detail = str(turn["cancel_reason"])
        yield Line(turn["cancel_at"], _STATE, "ingestion", "asked to stop", "transition", detail)
    for row in facts.transitions:
        is_end = row["status"] in ("completed", "partial", "failed", "cancelled")
        what = f"turn is {row['status']}"
        cause = names.get(row["cause_id"])
        # An operator's end follows from no event: its row names the event that it writes itself.
        is_told = cause is not None and row["cause_id"] not in end_ids(turn["turn_id"])
        because = f"because of {cause}" if is_told else None
        detail = ", ".join(filter(None, [row["reason"], because]))
        rank = _END if is_end else _STATE
        ids = {"event_id": row["cause_id"]}
        yield Line(row["at"], rank, "ingestion", what, "transition", detail, ids)


def _step_lines(step: Row) -> Iterator[Line]:
    ids = {"step_id": step["step_id"], "event_id": step["event_id"]}
    name = f"step {step['step_no']}"
    if step["reason"] is not None:
        what = f"{name} refused: {step['reason']}"
        detail = step["invariant"] or ""
    else:
        what, detail = f"{name} planned", f"for {step['model']}"
        if step["used_tokens"] is not None:
            detail = (
                f"{step['messages']} messages, {step['used_tokens']:,} of "
                f"{step['budget_tokens']:,} tokens, {step['excluded']} left out, {detail}"
            )
    yield Line(step["created_at"], _STEP, "context_assembly", what, "step", detail, ids)
    if step["told_at"] is not None and step["told_at"] > step["created_at"]:
        what = f"{name} told again"
        yield Line(step["told_at"], _STEP, "context_assembly", what, "event", "", ids)


def _work_lines(work: Row) -> Iterator[Line]:
    ids = {"step_id": work["step_id"], "attempt": work["attempt"], "worker_id": work["worker_id"]}
    if work["claimed_at"] is not None:
        what = f"attempt {work['attempt']} claimed"
        until = work["lease_until"]
        detail = f"lease until {iso(until)}" if until is not None else f"work is {work['state']}"
        yield Line(work["claimed_at"], _CLAIM, "llm_gateway", what, "lease", detail, ids)
    else:
        detail = f"work is {work['state']}"
        yield Line(work["created_at"], _CLAIM, "llm_gateway", "step taken", "lease", detail, ids)


def _attempt_lines(attempt: Row) -> Iterator[Line]:
    number, ended_at = attempt["attempt"], attempt["ended_at"]
    ids = {"step_id": attempt["step_id"], "attempt": number}
    if attempt["duration_ms"] is not None:
        began_at = ended_at - timedelta(milliseconds=attempt["duration_ms"])
        what = f"attempt {number} calls the model"
        yield Line(began_at, _CALL, "llm_gateway", what, "attempt", attempt["model"], ids)
        if attempt["first_token_ms"] is not None:
            at = began_at + timedelta(milliseconds=attempt["first_token_ms"])
            what = f"attempt {number}: first token"
            yield Line(at, _CALL, "llm_gateway", what, "attempt", "", ids)
    what = f"attempt {number} {attempt['outcome']}: {attempt['reason']}"
    parts = [f"asked {_times(attempt['requests'])}" if attempt["requests"] else "never asked"]
    if attempt["failure"]:
        parts.append(f"the last time {failure_of(attempt)}")
    if attempt["output_tokens"] is not None:
        parts.append(f"{attempt['input_tokens']:,} tokens in, {attempt['output_tokens']:,} out")
    yield Line(ended_at, _CALL, "llm_gateway", what, "attempt", ", ".join(parts), ids)


def _told_lines(lines: Sequence[Line]) -> list[Document]:
    """Lines with the seconds since the line before, the first with none."""
    found: list[Document] = []
    before: datetime | None = None
    for line in lines:
        gap = None if before is None else max(0.0, (line.at - before).total_seconds())
        ids: dict[str, Any] = {
            name: value if isinstance(value, int) else str(value)
            for name, value in line.ids.items()
            if value is not None
        }
        found.append(
            {
                "at": iso(line.at),
                "gap_s": None if gap is None else round(gap, 3),
                "service": line.service,
                "kind": line.kind,
                "what": line.what,
                "detail": line.detail,
                "ids": ids,
            }
        )
        before = line.at
    return found


def _took(span: timedelta) -> str:
    seconds = max(0.0, span.total_seconds())
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:  # noqa: PLR2004 -- three significant digits
        return f"{seconds:.3g} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
