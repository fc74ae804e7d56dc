"""What a policy promises of a message that comes while another turn of its branch is open."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg

from services.ingestion.settings import IngestionSettings
from tests.rig.ledger import Ledger
from tests.rig.verdict import Verdict

PROMISE = "policy_kept"

QUEUE_DEPTH: int = IngestionSettings.model_fields["queue_depth"].default
MOST_AHEAD: Mapping[str, int] = {"reject": 0, "branch": 0, "queue": QUEUE_DEPTH}
"""Open turns of its branch that a turn may have had before it when it was accepted."""

TURNS = """
select t.id, t.policy, t.queued_at_position as ahead,
       (select count(*) from ingestion.turns a
         where (a.tenant_id, a.branch_id) = (t.tenant_id, t.branch_id) and a.seq < t.seq
           and a.cancel_reason is null
           and coalesce(a.ended_at, 'infinity') > t.created_at + make_interval(secs => %(overlap)s)
       ) as spared
  from ingestion.turns t
 where t.tenant_id = any(%(tenants)s) and t.policy <> 'serialize' and t.kind = 'message'
"""
STORED = "select id, conversation_id, policy from ingestion.turns where tenant_id = %s"


def check_turns(
    connection: psycopg.Connection[Any],
    tenants: Sequence[UUID],
    overlap_s: float,
    verdict: Verdict,
) -> None:
    """Every message under a policy of its own: how many were ahead of it, and who was told to stop.

    Args:
        overlap_s: See ``Evidence.overlap_s``.
    """
    asked = {"tenants": list(tenants), "overlap": overlap_s}
    for turn in connection.execute(TURNS, asked).fetchall():
        verdict.check(
            PROMISE,
            holds=turn["ahead"] <= MOST_AHEAD.get(turn["policy"], turn["ahead"]),
            otherwise=f"turn {turn['id']} was accepted under {turn['policy']} behind "
            f"{turn['ahead']} others",
        )
        verdict.check(
            PROMISE,
            holds=turn["policy"] != "replace" or turn["spared"] == 0,
            otherwise=f"{turn['spared']} turns before {turn['id']} went on, which replaces them",
        )


def check_ledger(connection: psycopg.Connection[Any], ledger: Ledger, verdict: Verdict) -> None:
    """The policy asked for is that of the turn, and a refusal names a turn that is in the way."""
    if not any(post.policy for post in ledger.posts):
        return
    turns = {row["id"]: row for row in connection.execute(STORED, [ledger.tenant_id]).fetchall()}
    kept = {row["conversation_id"] for row in turns.values()}
    for post in ledger.posts:
        if post.conversation_id not in kept:
            continue  # it was purged, with all its turns
        if post.policy is not None and post.turn_id in turns:
            stored = turns[post.turn_id]["policy"]
            verdict.check(
                PROMISE,
                holds=stored == post.policy,
                otherwise=f"turn {post.turn_id} was asked for under {post.policy}, not {stored}",
            )
        for reply in post.replies:
            if reply.body.get("code") != "turn-in-progress":
                continue
            named = turns.get(UUID(reply.body.get("turn_id") or str(UUID(int=0))))
            verdict.check(
                PROMISE,
                holds=named is not None and named["conversation_id"] == post.conversation_id,
                otherwise=f"key {post.key} was refused for turn {reply.body.get('turn_id')}, which "
                "is none of its conversation",
            )
