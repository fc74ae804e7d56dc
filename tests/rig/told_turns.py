"""What an operator's view is told of a deployment, made by the code that tells it from rows."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from libs.ids import caused_id, step_id
from libs.operating.documents import SERVICES, Document, iso, leases_of, services_of, told
from libs.operating.story import Facts, story
from services.frontend_gateway.operators import MemoryOperators

AT = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=400)
"""Not long ago, so that ages on a page are what an operator would see."""

MODEL = "smollm2-360m"
LONGEST_KEY = "k" * 255

NAMES = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def named(name: str) -> UUID:
    """The same id for the same name."""
    return uuid5(NAMES, name)


def later(seconds: float) -> datetime:
    """So long after the beginning."""
    return AT + timedelta(seconds=seconds)


def turn_row(name: str, **changes: Any) -> dict[str, Any]:
    """The row of a turn that failed after twelve seconds."""
    turn = {
        "turn_id": named(name),
        "tenant_id": named("tenant"),
        "conversation_id": named(f"conversation of {name}"),
        "branch_id": named(f"conversation of {name}"),
        "principal_id": named("principal"),
        "parent_turn_id": None,
        "kind": "message",
        "request_id": named(f"request of {name}"),
        "key": f"{name.replace(' ', '-')}-1",
        "policy": "serialize",
        "model": MODEL,
        "status": "failed",
        "reason": "provider_unavailable",
        "seq": 1,
        "attempts": 1,
        "length": 0,
        "usage": None,
        "cancel_reason": None,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "user_message_id": named(f"question of {name}"),
        "assistant_message_id": named(f"answer of {name}"),
        "queued_at_position": 0,
        "place": None,
        "is_open": False,
        "is_overdue": False,
        "wait_until": None,
        "cancel_at": None,
        "progressed_at": None,
        "created_at": later(0),
        "started_at": later(0),
        "deadline_at": later(300),
        "ended_at": later(12.1),
    }
    return {**turn, **changes}


def facts_of(name: str, *, row: dict[str, Any] | None = None, **attempt: Any) -> Facts:
    """The rows of one turn with one step and one attempt."""
    turn = row or turn_row(name)
    step = step_id(turn["turn_id"], 1)
    planned = {
        "step_id": step, "step_no": 1, "state": "ended", "reason": None, "invariant": None,
        "model": MODEL, "event_id": caused_id(step, "step.planned"), "fingerprint": "0" * 64,
        "messages": 14, "excluded": 2, "used_tokens": 3212, "budget_tokens": 8192,
        "created_at": later(0.041), "told_at": later(0.041), "deadline_at": later(180),
        "ended_at": turn["ended_at"],
    }  # fmt: skip
    tried = {
        "step_id": step, "attempt": 1, "model": MODEL, "outcome": "failed",
        "reason": "provider_unavailable", "failure": "refused", "requests": 3,
        "first_token_ms": None, "duration_ms": 11_900, "input_tokens": None,
        "output_tokens": None, "cost_usd": None, "ended_at": later(12.05), **attempt,
    }  # fmt: skip
    states = [("generating", None, planned["event_id"], 0.06)]
    if turn["ended_at"] is not None:
        cause = caused_id(step, "generation.failed:1")
        states.append((turn["status"], turn["reason"], cause, 12.1))
    return Facts(
        turn=turn,
        transitions=[
            {"status": status, "reason": reason, "cause_id": cause, "at": later(at)}
            for status, reason, cause, at in states
        ],
        steps=[planned],
        attempts=[tried],
        deliveries=[
            {
                "service": "context_assembly",
                "consumer": "context_assembly",
                "event_id": caused_id(turn["turn_id"], "turn.started"),
                "at": later(0.03),
            },
            {
                "service": "llm_gateway",
                "consumer": "llm_gateway.steps",
                "event_id": planned["event_id"],
                "at": later(0.055),
            },
        ],
    )


def letter_row(name: str) -> Document:
    """A dead letter of the model gateway."""
    return {
        "id": str(named(name)), "service": "llm_gateway", "tenant_id": str(named("tenant")),
        "conversation_id": str(named("conversation of poison")), "consumer": "llm_gateway.steps",
        "topic": "context.events", "partition": 2, "offset": 1841, "event_id": str(named("event")),
        "event_type": "step.planned", "reason": "bug", "attempts": 6, "value_bytes": 812,
        "error": "psycopg.errors.NumericValueOutOfRange", "value_sha256": "ab" * 32, "headers": 5,
        "is_asked": False, "at": iso(later(-1675)),
    }  # fmt: skip


def plant(operators: MemoryOperators) -> dict[str, UUID]:
    """A deployment with something wrong in it; ids of what is there, by name."""
    failed = turn_row("provider down")
    running = turn_row(
        "running", status="generating", reason=None, is_open=True, is_overdue=True, length=None,
        ended_at=None, progressed_at=later(1), key=LONGEST_KEY,
    )  # fmt: skip
    for row in (failed, running):
        facts = facts_of("any", row=row)
        if row["is_open"]:
            facts = replace(facts, attempts=[])
        operators.stories[row["turn_id"]] = story(facts, now=later(400))
        short = (
            "turn_id", "tenant_id", "conversation_id", "kind", "status", "reason", "created_at",
            "started_at", "deadline_at", "ended_at",
        )  # fmt: skip
        operators.turn_rows.append({**told({name: row[name] for name in short}), "place": 0})
    operators.letters = [letter_row("letter")]
    _plant_figures(operators, failed, running)
    return {
        "failed": failed["turn_id"],
        "running": running["turn_id"],
        "letter": named("letter"),
        "conversation": failed["conversation_id"],
    }


def _plant_figures(
    operators: MemoryOperators, failed: dict[str, Any], running: dict[str, Any]
) -> None:
    instances = [
        {
            "service": name, "instance_id": named(f"process of {name}"), "version": "0.1.0",
            "place": f"host:{4711 + n}", "started_at": AT, "beat_at": later(395),
            "checks": {"postgres": {"state": "ok", "detail": ""}},
            "lag": {} if name == "frontend_gateway" else {"turn.events": 3 * n},
            "silent_s": 41.0 if name == "llm_gateway" else 2.0,
        }
        for n, name in enumerate(SERVICES)
    ]  # fmt: skip
    services = services_of(instances)
    leases = [
        {
            "worker_id": named("worker"), "lease_until": later(360), "left_s": -33.0, "running": 1,
            "oldest_claim": later(1),
        },
    ]  # fmt: skip
    operators.lists |= {
        "services": services,
        "leases": [told(row) for row in leases],
        "work": [
            {
                "turn_id": str(running["turn_id"]), "step_id": str(named("step")), "attempt": 1,
                "state": "running", "worker_id": str(named("worker")),
                "claimed_at": iso(later(1)), "deadline_at": iso(later(300)),
                "progressed_at": iso(later(7)),
            },
        ],
        "outbox": [
            {
                "service": "ingestion", "id": 1, "topic": "turn.events", "type": "turn.ended",
                "key": str(failed["conversation_id"]), "event_id": str(named("event")),
                "value_bytes": 420, "created_at": iso(later(12)), "age_s": 74.2,
            },
        ],
    }  # fmt: skip
    operators.figures = _figures(services, leases)


def _figures(services: list[Document], leases: list[dict[str, Any]]) -> Document:
    return {
        "object": "ops_overview",
        "at": iso(later(400)),
        "services": services,
        "outbox": [
            {"service": name, "pending": n, "oldest_s": 74.2 * n, "dead": 0}
            for name, n in (("ingestion", 1), ("context_assembly", 0), ("llm_gateway", 0))
        ],
        "dead_letters": [
            {"service": name, "letters": n, "oldest_s": 2075.0 * n, "asked": 0}
            for name, n in (("ingestion", 0), ("context_assembly", 0), ("llm_gateway", 1))
        ],
        "leases": leases_of(leases),
        "turns": [
            _count("generating", None, 1, is_open=True),
            _count("completed", None, 1842, newest_s=2.41),
            _count("partial", "lease_expired", 3, newest_s=5213.0),
            _count("failed", "provider_unavailable", 17, newest_s=388.0),
            _count("cancelled", "user", 8, newest_s=964.0),
        ],
        "counted_among": 5000,
    }


def _count(
    status: str, reason: str | None, turns: int, *, newest_s: float = 12.0, is_open: bool = False
) -> Document:
    return {
        "is_open": is_open,
        "status": status,
        "reason": reason,
        "turns": turns,
        "oldest_s": 400.0,
        "newest_s": newest_s,
    }
