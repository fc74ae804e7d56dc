"""Gives a fresh conversation a past, so that a run's few turns are planned over a long history."""

import random
from typing import Any
from uuid import UUID

from libs import tokens
from libs.ids import message_id
from tests.rig.ledger import canary_of

WORDS = ("harbour", "löffel", "sieve", "夜の港", "ember", "quay", "tide\n", "🙂", "north", "salt")
EXCHANGES = (*(0,) * 9, 2, 30, 70)
"""How many turns the past has; the longer ones take more than one page to read."""

ENDS = ("completed",) * 8 + ("partial", "failed", "cancelled")
UNCOUNTED = 0.1
"""Share of the messages whose tokens nobody has counted yet."""

TURNS = """
insert into ingestion.turns (tenant_id, id, conversation_id, branch_id, principal_id, request_id,
  key, fingerprint, policy, status, seq, base_seq, queued_at_position, user_message_id,
  assistant_message_id, parent_turn_id, nul_removed, created_at, started_at, deadline_at, ended_at)
select c.tenant_id, t.id, c.id, c.id, c.principal_id, t.id, 'past ' || t.no, 'f', 'serialize',
       t.status, 2 * t.no - 1, 2 * t.no - 1, 0, t.asked, t.answered,
       (%(turns)s::uuid[])[t.no - 1], 0,
       turnwire.clock(), turnwire.clock(), turnwire.clock(), turnwire.clock()
  from ingestion.conversations c,
       unnest(%(turns)s::uuid[], %(statuses)s::text[], %(asked)s::uuid[], %(answered)s::uuid[])
       with ordinality as t (id, status, asked, answered, no)
 where c.id = %(conversation)s
"""
MESSAGES = """
insert into ingestion.messages (tenant_id, id, conversation_id, branch_id, turn_id, role, seq,
                                status, text, length, said_at, created_at)
select c.tenant_id, m.id, c.id, c.id, m.turn, m.role, m.no, m.status, m.text,
       coalesce(octet_length(m.text), 0), turnwire.clock(), turnwire.clock()
  from ingestion.conversations c,
       unnest(%(ids)s::uuid[], %(of_turns)s::uuid[], %(roles)s::text[], %(states)s::text[],
              %(texts)s::text[]) with ordinality as m (id, turn, role, status, text, no)
 where c.id = %(conversation)s
"""
TOKENS = """
insert into ingestion.message_tokens (tenant_id, message_id, tokenizer, tokens)
select m.tenant_id, m.id, 'o200k_base', k.tokens
  from unnest(%(ids)s::uuid[], %(tokens)s::int[]) as k (id, tokens)
  join ingestion.messages m on m.id = k.id
 where k.tokens is not null and m.conversation_id = %(conversation)s
"""
ADVANCE = """
update ingestion.conversations
   set next_seq = %(next_seq)s, last_turn_id = (%(turns)s::uuid[])[%(count)s]
 where id = %(conversation)s
"""


def plant(connection: Any, conversation: UUID, tenant: UUID, dice: random.Random) -> int:
    """Write ended turns into a conversation that has none; how many."""
    count = dice.choice(EXCHANGES)
    if not count:
        return 0
    longest = dice.choice((4, 60))
    turns = [UUID(bytes=dice.randbytes(16), version=4) for _ in range(count)]
    statuses = [dice.choice(ENDS) for _ in turns]
    ids, texts, states = [], [], []
    for turn, status in zip(turns, statuses, strict=True):
        ids += [message_id(turn, "user"), message_id(turn, "assistant")]
        texts += [
            f"{canary_of(tenant)} {_said(dice, longest)}",
            None if status == "failed" else _said(dice, longest),
        ]
        states += ["completed", status]
    values = {
        "conversation": conversation,
        "turns": turns,
        "statuses": statuses,
        "asked": ids[::2],
        "answered": ids[1::2],
        "ids": ids,
        "of_turns": [turn for turn in turns for _ in range(2)],
        "roles": ["user", "assistant"] * count,
        "states": states,
        "texts": texts,
        "tokens": [
            None if text is None or dice.random() < UNCOUNTED else tokens.count(text, "o200k_base")
            for text in texts
        ],
        "next_seq": 2 * count + 1,
        "count": count,
    }
    for statement in (TURNS, MESSAGES, TOKENS, ADVANCE):
        connection.execute(statement, values)
    return count


def _said(dice: random.Random, longest: int) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(dice.randint(1, longest)))
