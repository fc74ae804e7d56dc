"""The inbox: which events have had their effect, told by the transaction that had it.

Both functions return a statement for the caller's own pipelined transaction, so that a repeat is
recognised and recorded without a round trip of its own.
"""

from collections.abc import Sequence
from uuid import UUID

from libs.postgres import Statement, load_queries

_SQL = load_queries("libs.inbox")


def seen_statement(consumer: str, event_ids: Sequence[UUID]) -> Statement:
    """Rows ``event_id`` of those events whose effect is already committed.

    Read after the conversations are locked: only then can no other batch be about to record one.
    """
    return _SQL["seen"], {"consumer": consumer, "event_ids": list(event_ids)}


def record_statement(consumer: str, event_ids: Sequence[UUID]) -> Statement:
    """Record events as done, in the transaction of their effects.

    A second record of one event violates the primary key: the whole batch is then run again from
    its reads and meets the first one's row.
    """
    return _SQL["record"], {"consumer": consumer, "event_ids": list(event_ids)}


def purge_statement(keep_s: float, *, max_rows: int) -> Statement:
    """Drop records older than ``keep_s`` seconds, ``max_rows`` at most; rows tell how many."""
    return _SQL["purge"], {"keep_s": keep_s, "max_rows": max_rows}
