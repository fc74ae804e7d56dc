"""A turn that its client cancelled ends in time, and keeps what was shown of its answer."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import psycopg

from tests.rig.ledger import Act
from tests.rig.verdict import Verdict

ENDED = """
select t.ended_at, coalesce(m.text, '') as text, m.deleted_at is not null as is_deleted
  from ingestion.turns t
  left join (select tenant_id, id, text, deleted_at from ingestion.messages
              union all
             select tenant_id, id, text, deleted_at from ingestion.archived_messages) m
    on m.tenant_id = t.tenant_id and m.id = t.assistant_message_id
 where t.id = %s
"""


def check_cancels(
    connection: psycopg.Connection[Any],
    acts: Iterable[Act],
    verdict: Verdict,
    *,
    within_s: float,
    is_disturbed: Callable[[datetime], bool],
) -> None:
    """Every cancel that was accepted.

    A turn that was purged meanwhile has no row to be judged by.

    Args:
        within_s: From the answer that the turn will stop until it has ended.
        is_disturbed: Whether faults may delay the end of a turn that was cancelled then.
    """
    for act in acts:
        if act.kind != "cancel" or not act.is_done or act.done_at is None:
            continue
        if is_disturbed(act.done_at):
            continue
        row = connection.execute(ENDED, [act.target]).fetchone()
        if row is None:
            continue
        took_s = None
        if row["ended_at"] is not None:
            took_s = (row["ended_at"] - act.done_at).total_seconds()
        verdict.check(
            "cancelled_in_time",
            holds=took_s is not None and took_s <= within_s,
            otherwise=f"turn {act.target} ended {took_s} s after its cancel was accepted",
        )
        verdict.check(
            "stream_equals_store",
            holds=row["is_deleted"] or row["text"].startswith(act.shown_before),
            otherwise=f"turn {act.target} was cancelled when {len(act.shown_before)} characters "
            f"had been shown, and is stored with {len(row['text'])} others",
        )
