"""Plans every stored step a second time, from rows alone and by other code than the product's.

A planner that is compared with itself agrees with itself. So the rules are written down here once
more, in the simplest way: history is what stands before the turn in its branch and may be shown,
the newest of it that fits, and the fingerprint is that of the bytes which follow.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any
from uuid import UUID

import orjson
import psycopg

from libs import tokens
from libs.catalogue import Catalogue, ModelCard
from tests.rig.verdict import Verdict

NO_ANSWER = "[no answer]"
INTERRUPTED = "\n\n[interrupted]"
CUT_OFF = ("partial", "cancelled")
SHOWN_ANSWERS = ("completed", *CUT_OFF)
TRANSPORT_FIELDS = frozenset({"stream", "stream_options"})
"""What the provider's adapter adds to a payload; everything else must be the plan's."""

MAX_REMEMBERED = 20_000
"""Texts whose tokens are remembered: a history is planned again with every turn that follows."""

PLANS = """
select p.plan, p.tenant_id, t.id as turn_id, t.conversation_id, t.branch_id, t.base_seq, t.seq,
       t.user_message_id, t.options, s.invariant
  from context_assembly.plans p
  join context_assembly.steps s on s.tenant_id = p.tenant_id and s.step_id = p.step_id
  join ingestion.turns t on t.tenant_id = p.tenant_id and t.id = p.turn_id
 where p.tenant_id = any(%s)
 order by t.conversation_id, t.seq
"""
MESSAGES = """
select id, tenant_id, turn_id, branch_id, seq, role, status, text from ingestion.messages
 where conversation_id = %s order by seq desc
"""
UNPLANNED = """
select t.id, s.invariant from ingestion.turns t
  left join context_assembly.steps s on s.tenant_id = t.tenant_id and s.turn_id = t.id
  left join context_assembly.plans p on p.tenant_id = t.tenant_id and p.turn_id = t.id
 where t.tenant_id = any(%s)
   and (s.invariant is not null
        or (p.turn_id is null and exists (
              select from llm_gateway.attempts a where a.turn_id = t.id and a.requests > 0)))
"""
FINGERPRINTS = "select plan->>'fingerprint' as fingerprint from context_assembly.plans"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a run's plans were made by."""

    catalogue: Catalogue
    policy_text: str = ""


@dataclass(slots=True)
class Replanned:
    """A plan made anew.

    Attributes:
        shown: Ids of the messages, oldest first, the current one last.
        messages: As the model is sent them.
    """

    shown: list[str] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    used: int = 0


def check_plans(
    connection: psycopg.Connection[Any], tenants: Sequence[UUID], rules: Rules, verdict: Verdict
) -> None:
    """Every stored plan of these tenants, and every turn that a model was asked for without one."""
    rows = connection.execute(PLANS, [list(tenants)]).fetchall()
    for conversation, plans in groupby(rows, key=lambda row: row["conversation_id"]):
        history = connection.execute(MESSAGES, [conversation]).fetchall()
        for row in plans:
            _check_plan(row, history, rules, verdict)
    for row in connection.execute(UNPLANNED, [list(tenants)]).fetchall():
        name = row["invariant"] or "plan_deterministic"
        told = "broke an invariant" if row["invariant"] else "went to a model without a stored plan"
        verdict.check(_promise(name), holds=False, otherwise=f"turn {row['id']} {told} ({name})")


def _promise(invariant: str) -> str:
    return "plan_deterministic" if invariant == "history_contiguous" else invariant


def check_prompts(
    connection: psycopg.Connection[Any], prompts: Sequence[bytes], verdict: Verdict
) -> None:
    """What the provider was asked is, byte for byte, what some stored plan says."""
    planned = {row["fingerprint"] for row in connection.execute(FINGERPRINTS).fetchall()}
    for body in prompts:
        sent = {k: v for k, v in orjson.loads(body).items() if k not in TRANSPORT_FIELDS}
        verdict.check(
            "plan_deterministic",
            holds=_fingerprint(sent) in planned,
            otherwise="the provider was asked something that no stored plan says",
        )


def _check_plan(
    row: Mapping[str, Any], history: Sequence[Mapping[str, Any]], rules: Rules, verdict: Verdict
) -> None:
    plan = row["plan"]
    card = rules.catalogue.model(plan["model"])
    options = row["options"] or {}
    reply = min(options.get("max_tokens") or card.max_output, card.max_output)
    budget = max(0, int((card.window - reply) / card.safety_factor) - card.reply_overhead)
    made = _plan_again(row, history, card, policy_text=rules.policy_text, budget=budget)
    turn, ids = row["turn_id"], plan["message_ids"]
    current = str(row["user_message_id"])
    verdict.check(
        "current_turn_once_in_plan",
        holds=ids.count(current) == 1 and ids[-1:] == [current],
        otherwise=f"the plan of turn {turn} shows its message {ids.count(current)} times",
    )
    may_show = {str(message["id"]) for message in _before(row, history)}
    verdict.check(
        "superseded_excluded",
        holds=may_show.issuperset(ids[:-1]) and len(set(ids)) == len(ids),
        otherwise=f"the plan of turn {turn} shows {len(set(ids[:-1]) - may_show)} messages that "
        "are not its history, or one twice",
    )
    used = sum(block["tokens"] for block in plan["blocks"])
    verdict.check(
        "plan_within_budget",
        holds=used == plan["budget"]["used"] == made.used <= budget == plan["budget"]["tokens"],
        otherwise=f"the plan of turn {turn} uses {used} of {plan['budget']['tokens']} tokens, "
        f"planned again {made.used} of {budget}",
    )
    payload = {"model": card.name, "messages": made.messages, "max_tokens": reply}
    payload |= {k: options[k] for k in ("temperature", "top_p") if options.get(k) is not None}
    verdict.check(
        "plan_deterministic",
        holds=ids == made.shown and plan["fingerprint"] == _fingerprint(payload),
        otherwise=f"turn {turn} planned again shows {len(made.shown)} messages, stored are "
        f"{len(ids)}; the fingerprint is another one",
    )


def _before(
    row: Mapping[str, Any], history: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The messages that a turn may be shown beside its own, newest first.

    Whatever stood there when the turn was planned had ended, and an end is never changed: the rows
    of today are those of that moment.
    """
    return [
        message
        for message in history
        if message["tenant_id"] == row["tenant_id"]
        and message["branch_id"] == row["branch_id"]
        and message["seq"] < row["seq"]
        and (message["role"] == "user" or (message["status"] in SHOWN_ANSWERS and message["text"]))
    ]


def _plan_again(
    row: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    card: ModelCard,
    *,
    policy_text: str,
    budget: int,
) -> Replanned:
    (current,) = [message for message in history if message["id"] == row["user_message_id"]]
    made = Replanned(used=_cost(current, card))
    if policy_text:
        made.used += _count(policy_text, card.tokenizer) + card.per_message_overhead
    kept: list[Mapping[str, Any]] = []
    for group in _groups(_before(row, history), card):
        tokens_of_group = sum(_cost(message, card) for message in group)
        if made.used + tokens_of_group > budget:
            break
        made.used += tokens_of_group
        kept += group
    made.shown = [str(m["id"]) for m in reversed(kept) if m["id"] is not None] + [
        str(current["id"])
    ]
    system = [{"role": "system", "content": policy_text}] if policy_text else []
    made.messages = [*system, *map(_rendered, [*reversed(kept), current])]
    return made


def _groups(
    newest_first: Sequence[Mapping[str, Any]], card: ModelCard
) -> list[list[Mapping[str, Any]]]:
    """Messages that come or stay away together, newest first in and between groups."""
    if not card.alternate_roles:
        return [[message] for message in newest_first]
    found = []
    for _, members in groupby(newest_first, key=lambda message: message["turn_id"]):
        group = list(members)
        if group[0]["role"] == "user":
            unanswered = {"id": None, "role": "assistant", "status": "", "text": NO_ANSWER}
            group.insert(0, unanswered)
        found.append(group)
    return found


def _cost(message: Mapping[str, Any], card: ModelCard) -> int:
    mark = _count(INTERRUPTED, card.tokenizer) if _is_cut_off(message) else 0
    return _count(message["text"] or "", card.tokenizer) + card.per_message_overhead + mark


def _is_cut_off(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and message["status"] in CUT_OFF


def _rendered(message: Mapping[str, Any]) -> dict[str, str]:
    mark = INTERRUPTED if _is_cut_off(message) else ""
    return {"role": message["role"], "content": (message["text"] or "") + mark}


def _fingerprint(payload: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(payload, option=orjson.OPT_SORT_KEYS)).hexdigest()


@lru_cache(maxsize=MAX_REMEMBERED)
def _count(text: str, tokenizer: str) -> int:
    return tokens.count(text, tokenizer)
