"""Turns of every kind, planted into a gateway on twins, each with its plan."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from schemas.prompt_plan import SECTIONS, checksum, render
from schemas.streams import EntryId
from schemas.usage import Usage
from services.frontend_gateway.core.timeline import AttemptView, StepView, Transition
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.ports import ConversationView, MessageView, PlanView
from tests.rig.gateway import GatewayRig

TOKENIZER = "o200k_base"
MODEL = "smollm2-360m"
"""As in the pictures of the chat page."""
OVERHEAD = 4
POLICY = "You help people plan trips by ferry. Answer from what was said; say when you do not know."
WORKSPACE = "Times are local times of the harbour. Prices are in euros, for one way."
ASKED = (
    "When does the first ferry to the island leave on {day}?",
    "And how long does the crossing take?",
    "Can we bring two bicycles and a dog?",
    "What does that cost for two adults and a child of six?",
    "Is there a café on board, or should we bring breakfast?",
    "Where do we buy the tickets, and do they sell out?",
    "If we miss it, when is the next one on {day}?",
    "Does the bus to the lighthouse wait for a late ferry?",
    "What is the last way back on {day}?",
    "Please put all of this into one plan for {day}.",
)
SENTENCES = (
    "The first ferry on {day} leaves the north pier at 6:50.",
    "The crossing takes forty minutes in calm weather and up to an hour with wind from the west.",
    "Bicycles stand on the car deck, and two fit without a booking.",
    "Dogs travel on a lead, outside, and pay nothing.",
    "Two adults pay 11.40 each, the child 5.70, and a bicycle 3.00.",
    "The café opens at eight, so bring breakfast for the first ferry.",
    "Tickets are sold on the pier until ten minutes before, and on the web at any time.",
    "In August {day} sells out by Thursday; in May you can decide in the morning.",
    "If you miss it, the next one leaves at 8:20, then every ninety minutes until noon.",
    "The bus to the lighthouse waits for ten minutes; after that the next one comes in an hour.",
    "From the harbour to the lighthouse it is fifty minutes on foot along the cliff.",
    "The last ferry back on {day} leaves the island at 21:15, and it does not wait.",
    "With a child I would take the one at 18:05, which is quieter and lands at the south pier.",
    "From the south pier a tram goes to the station every twelve minutes.",
    "If the wind is above seven the small ferry stays in the harbour and the large one runs alone.",
    "You can see by six in the morning on the harbour's page whether it does.",
)
DAYS = ("Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday")


def named(*parts: object) -> UUID:
    """An id that is the same in every run."""
    return uuid5(NAMESPACE_URL, ":".join(map(str, parts)))


@dataclass(frozen=True)
class Wanted:
    """What a planted conversation shall look like.

    Attributes:
        exchanges: Ended turns before the one that is looked at.
        budget: Tokens that all blocks may use.
        sentences: Of the longest answer; answers differ in length.
        has_plan: Whether the turn got as far as its plan.
    """

    name: str
    exchanges: int = 30
    budget: int = 3_069
    sentences: int = 30
    status: str = "completed"
    reason: str | None = None
    has_plan: bool = True
    answer: str = "Here is the plan for Sunday: leave at 6:50, lighthouse at 9:00, back by 18:05."
    ahead: int | None = None


def words(text: str) -> int:
    """Tokens of a text, near enough for a page."""
    return len(text.split()) * 4 // 3


def plant(rig: GatewayRig, wanted: Wanted, *, now: datetime) -> TurnView:
    """Put a conversation into the store, and return its last turn."""
    caller = rig.caller
    conversation = named(wanted.name, "conversation")
    began = now - timedelta(minutes=9 * wanted.exchanges + 2)
    view = ConversationView(conversation, "Ferry to the island", "serialize", began, now)
    owner = (caller.tenant_id, caller.principal_id)
    rig.store.conversation_rows[conversation] = (*owner, view)
    rows: list[MessageView] = []
    rig.store.message_rows[conversation] = rows
    turn: TurnView | None = None
    for place in range(wanted.exchanges + 1):
        at = began + timedelta(minutes=9 * place)
        turn = TurnView(
            id=named(wanted.name, "turn", place),
            tenant_id=caller.tenant_id,
            conversation_id=conversation,
            principal_id=caller.principal_id,
            status="completed",
            seq=2 * place + 1,
            policy="serialize",
            model=MODEL,
            created_at=at,
            started_at=at + timedelta(milliseconds=4),
            ended_at=at + timedelta(milliseconds=1_900),
            parent_turn_id=None if turn is None else turn.id,
        )
        rig.store.turn_rows[turn.id] = turn
        day = DAYS[place // len(ASKED) % len(DAYS)]
        asked = ASKED[place % len(ASKED)].format(day=day)
        said = " ".join(
            SENTENCES[(place * 5 + n) % len(SENTENCES)]
            for n in range(1 + place * 7 % wanted.sentences)
        ).format(day=day)
        rows.append(_message(turn, "user", asked, at))
        rows.append(_message(turn, "assistant", said, at + timedelta(seconds=2)))
    assert turn is not None
    for row in rows:
        rig.store.token_rows[row.id, TOKENIZER] = words(row.content)
    return _last(rig, wanted, turn)


def _message(turn: TurnView, role: str, text: str, at: datetime) -> MessageView:
    is_user = role == "user"
    id_ = turn.user_message_id if is_user else turn.assistant_message_id
    seq = turn.seq if is_user else turn.seq + 1
    return MessageView(id_, role, text, seq, "completed", None, turn.id, at)


def _last(rig: GatewayRig, wanted: Wanted, turn: TurnView) -> TurnView:
    """Make the conversation's last turn the one that is wanted."""
    has_ended = wanted.status in ("completed", "partial", "failed", "cancelled")
    text = wanted.answer if wanted.status in ("completed", "partial", "cancelled") else ""
    raw = text.encode()
    is_waiting = wanted.status == "pending"
    last = replace(
        turn,
        status=wanted.status,
        reason=wanted.reason,
        length=len(raw) if has_ended else None,
        sha256=hashlib.sha256(raw).hexdigest() if has_ended else None,
        upto=EntryId(1, 9) if has_ended and text else None,
        started_at=None if is_waiting else turn.started_at,
        ended_at=turn.ended_at if has_ended else None,
        queue_position=wanted.ahead,
    )
    rig.store.turn_rows[last.id] = last
    rig.store.texts[last.id] = text
    rows = rig.store.message_rows[turn.conversation_id]
    rows[-1] = replace(rows[-1], content=text, status=wanted.status)
    if wanted.has_plan:
        plan = plan_it(rig, last, rows[:-1], wanted)
        if has_ended:
            last = replace(last, usage=Usage(input=plan["budget"]["used"], output=words(text)))
            rig.store.turn_rows[last.id] = last
    _times(rig, last, wanted)
    return last


def plan_it(
    rig: GatewayRig, turn: TurnView, rows: Sequence[MessageView], wanted: Wanted
) -> dict[str, Any]:
    """Store the plan that shows the newest of these rows that fit; the last is the question."""
    texts = {"policy:1": POLICY, "workspace:tenant:3": WORKSPACE}
    heads = [_head("policy:1", "system", "settings", "1", POLICY)]
    heads.append(
        _head("workspace:tenant:3", "workspace", "context_assembly.instructions", "3", WORKSPACE)
    )
    current = rows[-1]
    left = wanted.budget - sum(one["tokens"] for one in heads) - words(current.content) - OVERHEAD
    before_history = left
    kept: list[MessageView] = []
    for row in reversed(rows[:-1]):
        if words(row.content) + OVERHEAD > left:
            break
        left -= words(row.content) + OVERHEAD
        kept.insert(0, row)
    gone = rows[: len(rows) - 1 - len(kept)]
    blocks = [*heads, *(_block(row, "message") for row in kept), _block(current, "current")]
    offset = 0
    for block in blocks:
        block["token_offset"] = offset
        offset += block["tokens"]
    document = _document(turn, blocks, gone, wanted, before_history)
    texts |= {str(row.id): row.content for row in rows}
    document["fingerprint"] = hashlib.sha256(render(document, texts)).hexdigest()
    step = named(turn.id, "step")
    rig.store.plan_rows[turn.id] = [PlanView(step, 1, document, turn.created_at or _never())]
    return document


def _never() -> datetime:
    msg = "a planted turn has a time"
    raise AssertionError(msg)


def _head(id_: str, layer: str, source: str, version: str, text: str) -> dict[str, Any]:
    return {
        "id": id_,
        "kind": "system",
        "layer": layer,
        "trust": "operator",
        "role": "system",
        "source": source,
        "version": version,
        "seq": None,
        "observed_at": None,
        "tokens": words(text) + OVERHEAD,
        "token_offset": 0,
        "score": None,
        "permission_checked_at": None,
        "checksum": checksum(text),
    }


def _block(row: MessageView, kind: str) -> dict[str, Any]:
    is_user = row.role == "user"
    return {
        "id": str(row.id),
        "kind": kind,
        "layer": "current" if kind == "current" else "history",
        "trust": "user" if is_user else "model",
        "role": row.role,
        "source": "ingestion.messages",
        "version": None,
        "seq": row.seq,
        "observed_at": None if kind == "current" else row.created_at.isoformat(),
        "tokens": words(row.content) + OVERHEAD,
        "token_offset": 0,
        "score": None,
        "permission_checked_at": None,
        "checksum": checksum(row.content),
    }


def _document(
    turn: TurnView,
    blocks: list[dict[str, Any]],
    gone: Sequence[MessageView],
    wanted: Wanted,
    before_history: int,
) -> dict[str, Any]:
    ids = [one["id"] for one in blocks if one["kind"] in ("message", "current")]
    used: dict[Any, int] = dict.fromkeys(SECTIONS, 0)
    for block in blocks:
        used[block["layer"]] += block["tokens"]
    seqs = [one["seq"] for one in blocks if one["seq"] is not None]
    nearest = list(reversed(gone))[:50]
    return {
        "schema": "prompt_plan.v1",
        "assembly_revision": 2,
        "turn_id": str(turn.id),
        "step_id": str(named(turn.id, "step")),
        "step_no": 1,
        "kind": "message",
        "model": MODEL,
        "tokenizer": TOKENIZER,
        "sampling": {"max_tokens": 1_024, "temperature": None, "top_p": None},
        "fingerprint": "",
        "nonce": None,
        "instructions": [
            {"id": "policy:1", "kind": "system_policy", "scope": "settings", "version": "1"},
            {"id": "workspace:tenant:3", "kind": "workspace", "scope": "tenant", "version": "3"},
        ],
        "blocks": blocks,
        "excluded": [{"id": str(row.id), "reason": "budget"} for row in nearest],
        "excluded_counts": {"budget": len(gone)} if gone else {},
        "excluded_up_to_seq": gone[-1].seq if gone else None,
        "budget": {
            "window": wanted.budget + 1_027,
            "reply_reserve": 1_024,
            "reply_overhead": 3,
            "safety_factor": 1.0,
            "tokens": wanted.budget,
            "used": sum(used.values()),
            "sections": _sections(used, wanted.budget, before_history),
        },
        "message_ids": ids,
        "seq_range": [min(seqs), max(seqs)],
        "count": len(ids),
        "history": {
            "base_seq": turn.seq,
            "loaded": len(ids) - 1 + len(nearest),
            "kept": len(ids) - 1,
            "trimmed": len(nearest),
        },
    }


def _sections(used: dict[Any, int], budget: int, before_history: int) -> list[dict[str, Any]]:
    found = []
    for section in SECTIONS:
        before = before_history if section == "history" else budget
        found.append(
            {
                "section": section,
                "floor": 0,
                "ceiling": None,
                "before": before,
                "used": used[section],
                "after": before - used[section],
            }
        )
    return found


def _times(rig: GatewayRig, turn: TurnView, wanted: Wanted) -> None:
    """Give a turn the steps and the attempt of a plain one, as far as it got."""
    at = turn.created_at or _never()

    def after(ms: float) -> datetime:
        return at + timedelta(milliseconds=ms)

    states = [Transition("pending", None, at)]
    if turn.started_at is not None:
        states.append(Transition("generating", None, turn.started_at))
    if turn.ended_at is not None:
        states.append(Transition(turn.status, turn.reason, turn.ended_at))
    rig.store.transition_rows[turn.id] = states
    if not wanted.has_plan:
        return
    step = named(turn.id, "step")
    ended = turn.ended_at
    rig.store.step_rows[turn.id] = [StepView(step, 1, "ended", None, None, MODEL, after(31), ended)]
    began = after(43)
    is_open = turn.ended_at is None
    rig.store.attempt_rows[turn.id] = [
        AttemptView(
            step_id=step,
            attempt=1,
            model=MODEL,
            outcome="running" if is_open else "completed",
            reason=None if is_open else "stop",
            requests=None if is_open else 1,
            first_token_ms=None if is_open else 412,
            duration_ms=None if is_open else 1_834,
            began_at=began,
            ended_at=None if is_open else after(43 + 1_834),
            input_tokens=None if turn.usage is None else turn.usage.input,
            output_tokens=None if turn.usage is None else turn.usage.output,
        )
    ]
