"""Compares what was told, on topics and in live streams, with the rows that it was told of."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson

from schemas.registry import CONTEXT_EVENTS, GENERATION_EVENTS, TURN_EVENTS
from schemas.streams import TERMINAL_ATTEMPT, Entry, TurnEnd, terminal_entries
from schemas.usage import Usage
from tests.rig.verdict import Verdict

ENDINGS: Mapping[str, frozenset[str]] = {
    TURN_EVENTS: frozenset({"turn.ended"}),
    CONTEXT_EVENTS: frozenset({"step.planned", "step.refused"}),
    GENERATION_EVENTS: frozenset(
        {"generation.completed", "generation.interrupted", "generation.failed"}
    ),
}
"""Of these a turn, or a step of one, has one: told again it keeps its id."""

Turns = Mapping[UUID, Mapping[str, Any]]
"""Rows of ``ingestion.turns`` by id."""


OF_CONVERSATIONS = "conversation."
"""What the types of records begin with that are of a whole conversation."""


def check_topics(
    topics: Mapping[str, Sequence[bytes]],
    turns: Turns,
    conversations: Collection[UUID],
    verdict: Verdict,
) -> None:
    """Every record is of a turn or a conversation that exists, and each end has one identity."""
    for topic, records in topics.items():
        ends: dict[tuple[str, str], set[str]] = {}
        ended_as: dict[str, str] = {}
        for raw in records:
            event = orjson.loads(raw)
            turn = event["correlation_id"]
            verdict.check(
                "one_turn_per_key",
                holds=UUID(turn)
                in (conversations if event["type"].startswith(OF_CONVERSATIONS) else turns),
                otherwise=f"{topic} tells {event['type']} of turn {turn}, which does not exist",
            )
            if event["type"] in ENDINGS.get(topic, ()):
                step = str(event["data"].get("step_id"))
                ends.setdefault((turn, step), set()).add(event["id"])
                ended_as[turn] = event["data"].get("status", "")
        for (turn, step), ids in ends.items():
            verdict.check(
                "one_terminal_per_turn",
                holds=len(ids) == 1,
                otherwise=f"{topic} tells {len(ids)} different ends of turn {turn}, step {step}",
            )
        if topic == TURN_EVENTS:
            _check_told_ends(ended_as, turns, verdict)


def _check_told_ends(ended_as: Mapping[str, str], turns: Turns, verdict: Verdict) -> None:
    for turn, told in ended_as.items():
        row = turns.get(UUID(turn))
        if row is not None:
            verdict.check(
                "one_terminal_per_turn",
                holds=row["status"] == told,
                otherwise=f"turn {turn} is {row['status']}, its end was told as {told}",
            )


def check_streams(streams: Mapping[UUID, Sequence[Entry]], turns: Turns, verdict: Verdict) -> None:
    """What Redis holds of a turn: entries in order without a hole, the row's end, nothing after.

    A stream without an end is no fault: it is told at best effort, and follows from the row.
    """
    for turn_id, entries in streams.items():
        row = turns.get(turn_id)
        if row is None:
            continue
        ids = [entry.id for entry in entries]
        attempts: dict[int, list[int]] = {}
        for entry_id in ids:
            attempts.setdefault(entry_id.attempt, []).append(entry_id.n)
        is_whole = all(
            numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            for attempt, numbers in attempts.items()
            if attempt > 0
        )
        verdict.check(
            "stream_equals_store",
            holds=ids == sorted(set(ids)) and is_whole,
            otherwise=f"the stream of turn {turn_id} in Redis has the entries {_told(ids)}",
        )
        end = [entry for entry in entries if entry.id.attempt == TERMINAL_ATTEMPT]
        if end and row["ended_at"] is not None:
            expected = terminal_entries(_end_of(row))
            verdict.check(
                "stream_equals_store",
                holds=[_content(e) for e in end] == [_content(e) for e in expected],
                otherwise=f"the stream of turn {turn_id} in Redis ends with "
                f"{[e.event for e in end]}, its row says {row['status']}",
            )
        elif end:
            verdict.check(
                "stream_equals_store",
                holds=False,
                otherwise=f"the stream of turn {turn_id} has an end, the turn has none",
            )


def _end_of(row: Mapping[str, Any]) -> TurnEnd:
    return TurnEnd(
        status=row["status"],
        reason=row["reason"],
        length=row["length"] or 0,
        sha256=row["sha256"],
        usage=None if row["usage"] is None else Usage.model_validate(row["usage"]),
    )


def _content(entry: Entry) -> tuple[str, str, Any]:
    return str(entry.id), entry.event, orjson.loads(entry.data)


def _told(ids: Sequence[Any]) -> str:
    counts = Counter(entry_id.attempt for entry_id in ids)
    return ", ".join(f"{count} of attempt {attempt}" for attempt, count in counts.items())
