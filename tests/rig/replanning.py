"""Plans every stored step a second time, from rows alone and by other code than the product's.

A planner that is compared with itself agrees with itself. So the rules are written down here once
more, in the simplest way: history is what the turns before it said, each found through the turn
that it follows, the newest of it that fits, and the fingerprint is that of the bytes which follow.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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
NO_QUESTION = "[no question]"
INTERRUPTED = "\n\n[interrupted]"
BETWEEN_INSTRUCTIONS = "\n\n"
CUT_OFF = ("partial", "cancelled")
SHOWN_ANSWERS = ("completed", *CUT_OFF)
TRANSPORT_FIELDS = frozenset({"stream", "stream_options"})
"""What the provider's adapter adds to a payload; everything else must be the plan's."""

UNNAMED = frozenset({"history_contiguous", "trust_framed"})
"""Invariants that have no promise of their own name."""

MAX_REMEMBERED = 20_000
"""Texts whose tokens are remembered: a history is planned again with every turn that follows."""

DELETION_S = 5.0
"""A plan and a deletion may see each other or not if they began this close together."""

PLANS = """
select p.plan, p.tenant_id, p.created_at as planned_at, t.id as turn_id, t.conversation_id,
       t.parent_turn_id, t.user_message_id, t.continues, t.options, s.invariant
  from context_assembly.plans p
  join context_assembly.steps s on s.tenant_id = p.tenant_id and s.step_id = p.step_id
  join ingestion.turns t on t.tenant_id = p.tenant_id and t.id = p.turn_id
 where p.tenant_id = any(%s)
 order by t.conversation_id, t.seq
"""
MESSAGES = """
select id, tenant_id, turn_id, seq, role, status, text, deleted_at from ingestion.messages
 where conversation_id = %(conversation)s
 union all
select id, tenant_id, turn_id, seq, role, status, text, deleted_at from ingestion.archived_messages
 where conversation_id = %(conversation)s
 order by seq desc
"""
TURNS = """
select id, parent_turn_id, user_message_id, assistant_message_id from ingestion.turns
 where conversation_id = %(conversation)s
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
INSTRUCTIONS = """
select kind, case when scope_id = tenant_id then 'tenant' else 'conversation' end as scope,
       version, text, created_at
  from context_assembly.instructions
 where tenant_id = %(tenant)s and scope_id in (%(tenant)s, %(conversation)s)
 order by version
"""
HEAD = (("system_policy", "tenant"), ("workspace", "tenant"), ("workspace", "conversation"))
"""Kinds and scopes of what heads a prompt, in its order."""

FINGERPRINTS = "select plan->>'fingerprint' as fingerprint from context_assembly.plans"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a run's plans were made by."""

    catalogue: Catalogue
    policy_text: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """Everything of a conversation, on all its branches.

    Attributes:
        messages: Newest first.
        instructions: Every version of what was set for it or for its tenant, oldest first.
    """

    messages: Sequence[Mapping[str, Any]]
    turns: Mapping[UUID, Mapping[str, Any]]
    instructions: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a prompt may show.

    Attributes:
        head: The operator's texts at its head, in their order.
        budget: Tokens of all of it.
        of_history: Tokens of the history alone; None where it may use all that is left.
    """

    card: ModelCard
    head: tuple[str, ...]
    budget: int
    of_history: int | None = None


@dataclass(slots=True)
class Replanned:
    """A plan made anew.

    Attributes:
        shown: Ids of the messages, oldest first, the current one last.
        messages: As the model is sent them.
        fixed: Tokens of what is never trimmed: the operator's texts and the current message.
    """

    shown: list[str] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    used: int = 0
    fixed: int = 0


def check_plans(
    connection: psycopg.Connection[Any], tenants: Sequence[UUID], rules: Rules, verdict: Verdict
) -> None:
    """Every stored plan of these tenants, and every turn that a model was asked for without one."""
    rows = connection.execute(PLANS, [list(tenants)]).fetchall()
    for conversation, plans in groupby(rows, key=lambda row: row["conversation_id"]):
        asked = {"conversation": conversation}
        made = list(plans)
        of_tenant = {**asked, "tenant": made[0]["tenant_id"]}
        said = Said(
            connection.execute(MESSAGES, asked).fetchall(),
            {turn["id"]: turn for turn in connection.execute(TURNS, asked).fetchall()},
            connection.execute(INSTRUCTIONS, of_tenant).fetchall(),
        )
        for row in made:
            _check_plan(row, said, rules, verdict)
    for row in connection.execute(UNPLANNED, [list(tenants)]).fetchall():
        name = row["invariant"] or "plan_deterministic"
        told = "broke an invariant" if row["invariant"] else "went to a model without a stored plan"
        verdict.check(_promise(name), holds=False, otherwise=f"turn {row['id']} {told} ({name})")


def _promise(invariant: str) -> str:
    return "plan_deterministic" if invariant in UNNAMED else invariant


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


def _check_plan(row: Mapping[str, Any], said: Said, rules: Rules, verdict: Verdict) -> None:
    plan = row["plan"]
    card = rules.catalogue.model(plan["model"])
    options = row["options"] or {}
    reply = min(options.get("max_tokens") or card.max_output, card.max_output)
    budget = max(0, int((card.window - reply) / card.safety_factor) - card.reply_overhead)
    head, is_current = _head(row, said, rules.policy_text)
    of_history = rules.catalogue.sections(card.name)["history"].ceiling
    limits = Limits(card, head, budget, of_history)
    turn, ids = row["turn_id"], plan["message_ids"]
    current = str(row["user_message_id"])
    own = [current, *map(str, row["continues"] or ())]
    verdict.check(
        "current_turn_once_in_plan",
        holds=ids.count(current) == 1 and ids[-len(own) :] == own,
        otherwise=f"the plan of turn {turn} shows its message {ids.count(current)} times",
    )
    made = Replanned()
    may_show: set[str] = set()
    is_same = False
    for history in _possible_histories(row, said):
        again = _plan_again(row, said, history, limits)
        payload = {"model": card.name, "messages": again.messages, "max_tokens": reply}
        payload |= {k: options[k] for k in ("temperature", "top_p") if options.get(k) is not None}
        may_show = {str(message["id"]) for message in history}
        made = again
        is_same = ids == made.shown and plan["fingerprint"] == _fingerprint(payload)
        if is_same:
            break
    shown = ids[: -len(own)]
    verdict.check(
        "superseded_excluded",
        holds=may_show.issuperset(shown) and len(set(ids)) == len(ids),
        otherwise=f"the plan of turn {turn} shows {len(set(shown) - may_show)} messages that "
        "are not its history, or one twice",
    )
    used = sum(block["tokens"] for block in plan["blocks"])
    verdict.check(
        "plan_within_budget",
        holds=used == plan["budget"]["used"] == made.used <= budget == plan["budget"]["tokens"],
        otherwise=f"the plan of turn {turn} uses {used} of {plan['budget']['tokens']} tokens, "
        f"planned again {made.used} of {budget}",
    )
    verdict.check(
        "plan_deterministic",
        holds=is_same,
        otherwise=f"turn {turn} planned again shows {len(made.shown)} messages, stored are "
        f"{len(ids)}; the fingerprint is another one",
    )
    verdict.check(
        "plan_deterministic",
        holds=is_current,
        otherwise=f"turn {turn} was told {plan['instructions']}, which was not current by then",
    )
    _check_share(turn, limits, made.used - made.fixed, verdict)


def _check_share(turn: UUID, limits: Limits, used: int, verdict: Verdict) -> None:
    """The history keeps to its section."""
    verdict.check(
        "plan_within_budget",
        holds=limits.of_history is None or used <= limits.of_history,
        otherwise=f"the history in the plan of turn {turn} has {used} tokens, its section may have "
        f"{limits.of_history}",
    )


def _head(row: Mapping[str, Any], said: Said, policy_text: str) -> tuple[tuple[str, ...], bool]:
    """The texts that the plan says it was headed by, and whether they were current by then.

    What was set about when the plan was made may have been seen or not.
    """
    named = {(one["kind"], one["scope"]): one["version"] for one in row["plan"]["instructions"]}
    texts: list[str] = []
    is_current = True
    for kind, scope in HEAD:
        versions = [
            one for one in said.instructions if (one["kind"], one["scope"]) == (kind, scope)
        ]
        current = _current(versions, row["planned_at"])
        version = named.pop((kind, scope), None)
        shown = next((one for one in versions if str(one["version"]) == version), None)
        text = shown["text"] if shown is not None else ""
        is_current = is_current and text in current and bool(text) == (version is not None)
        if not text and kind == "system_policy":
            text = policy_text
            named.pop((kind, "settings"), None)
        texts += [text] if text else []
    return tuple(texts), is_current and not named


def _current(versions: Sequence[Mapping[str, Any]], planned_at: datetime) -> set[str]:
    """Texts of one kind and scope that were current about then; empty where there was none."""
    limit = timedelta(seconds=DELETION_S)
    before = [one["text"] for one in versions if one["created_at"] < planned_at - limit]
    about = {one["text"] for one in versions if abs(one["created_at"] - planned_at) <= limit}
    return {before[-1] if before else "", *about}


def _possible_histories(
    row: Mapping[str, Any], said: Said
) -> Iterator[Sequence[Mapping[str, Any]]]:
    """What a turn may have been shown beside its own messages, newest first.

    An end is never changed, so the rows of today are those of that moment, but for deletions. What
    was deleted about when the plan was made may have been seen or not, but what was deleted
    earlier was gone earlier: first with all of it, at last with none.
    """
    path = _path(row, said)
    limit = timedelta(seconds=DELETION_S)
    first, last = row["planned_at"] - limit, row["planned_at"] + limit
    deleted = {message["deleted_at"] for message in path} - {None}
    for moment in (first, *sorted(at for at in deleted if first < at <= last)):
        yield [m for m in path if m["deleted_at"] is None or m["deleted_at"] > moment]


def _path(row: Mapping[str, Any], said: Said) -> list[Mapping[str, Any]]:
    """What the turns before this one said, each found through the turn that it follows.

    A regenerated or continued answer follows a question that another turn wrote: it comes once.
    Nothing that the turn shows itself is history, and nothing at or after its own question.
    """
    on_path: set[UUID] = set()
    turn_id = row["parent_turn_id"]
    while turn_id is not None and turn_id in said.turns:
        turn = said.turns[turn_id]
        on_path |= {turn["user_message_id"], turn["assistant_message_id"]}
        turn_id = turn["parent_turn_id"]
    on_path -= {row["user_message_id"], *(row["continues"] or ())}
    (question,) = [m for m in said.messages if m["id"] == row["user_message_id"]]
    return [
        message
        for message in said.messages
        if message["id"] in on_path
        and message["tenant_id"] == row["tenant_id"]
        and message["seq"] < question["seq"]
        and (message["role"] == "user" or (message["status"] in SHOWN_ANSWERS and message["text"]))
    ]


def _plan_again(
    row: Mapping[str, Any],
    said: Said,
    history: Sequence[Mapping[str, Any]],
    limits: Limits,
) -> Replanned:
    card = limits.card
    by_id = {message["id"]: message for message in said.messages}
    own = [by_id[row["user_message_id"]], *(by_id[one] for one in row["continues"] or ())]
    texts = [{**message, "status": "completed"} for message in own]  # shown without any mark
    fixed = sum(_cost(message, card) for message in texts) + _cost_of_head(limits)
    room = limits.budget - fixed
    if limits.of_history is not None:
        room = min(room, limits.of_history)
    made = Replanned(used=fixed, fixed=fixed)
    kept: list[Mapping[str, Any]] = []
    for group in _groups(history, card):
        tokens_of_group = sum(_cost(message, card) for message in group)
        if made.used - fixed + tokens_of_group > room:
            break
        made.used += tokens_of_group
        kept += group
    made.shown = [str(m["id"]) for m in [*reversed(kept), *own] if m["id"] is not None]
    head = BETWEEN_INSTRUCTIONS.join(limits.head)
    system = [{"role": "system", "content": head}] if head else []
    made.messages = [*system, *map(_rendered, [*reversed(kept), *texts])]
    return made


def _cost_of_head(limits: Limits) -> int:
    """One system message: its first text opens it, and each other one is joined to it."""
    if not limits.head:
        return 0
    first, *others = limits.head
    joined = (BETWEEN_INSTRUCTIONS + text for text in others)
    tokenizer = limits.card.tokenizer
    texts_cost = sum(_count(text, tokenizer) for text in (first, *joined))
    return texts_cost + limits.card.per_message_overhead


def _groups(
    newest_first: Sequence[Mapping[str, Any]], card: ModelCard
) -> list[list[Mapping[str, Any]]]:
    """Messages that come or stay away together, newest first in and between groups."""
    if not card.alternate_roles:
        return [[message] for message in newest_first]
    found: list[list[Mapping[str, Any]]] = []
    open_group: list[Mapping[str, Any]] = []
    for message in newest_first:
        if message["role"] == "user" and not open_group:
            open_group.append(_mark("assistant", NO_ANSWER))
        elif message["role"] == "assistant" and open_group:
            open_group.append(_mark("user", NO_QUESTION))
        open_group.append(message)
        if message["role"] == "user":
            found.append(open_group)
            open_group = []
    if open_group:
        found.append([*open_group, _mark("user", NO_QUESTION)])
    return found


def _mark(role: str, text: str) -> dict[str, Any]:
    return {"id": None, "role": role, "status": "", "text": text}


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
