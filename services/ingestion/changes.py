"""Writes of accepted requests that change what is there: branches, marks, deletions, titles.

A batch of plain messages has none of them and sends no statement for them.
"""

from collections.abc import Sequence

from libs.postgres import Statement
from services.ingestion.core.decisions import Acceptance, Fork
from services.ingestion.statements import SQL, columns


def branch_writes(acceptance: Acceptance) -> list[Statement]:
    """The branches that turns of the batch stand on, and the last turns of those left behind."""
    writes: list[Statement] = []
    for forks in _generations(acceptance.forks):
        rows = [
            (
                fork.tenant_id,
                fork.conversation_id,
                fork.branch_id,
                fork.grows_from,
                fork.below,
                fork.turn_id,
            )
            for fork in forks
        ]
        names = ("tenants", "conversations", "ids", "parents", "caps", "turns")
        writes.append((SQL["fork_branches"], columns(rows, *names)))
    if acceptance.leavings:
        left = [
            (one.tenant_id, one.conversation_id, one.branch_id, one.last_turn_id)
            for one in acceptance.leavings
        ]
        behind = columns(left, "tenants", "conversations", "ids", "last_turns")
        writes.append((SQL["leave_branches"], behind))
    return writes


def change_writes(acceptance: Acceptance, *, restore_s: float) -> list[Statement]:
    """Marks of turns that are to stop, deleted messages, and what changes of conversations.

    Args:
        restore_s: How long a deleted conversation can come back.
    """
    writes: list[Statement] = []
    if acceptance.marks:
        marks = [(mark.turn_id, mark.reason) for mark in acceptance.marks]
        writes.append((SQL["mark_cancelled"], columns(marks, "turns", "reasons")))
    if acceptance.deletions:
        deleted = [(one.request.tenant_id, one.message_id) for one in acceptance.deletions]
        writes.append((SQL["delete_messages"], columns(deleted, "tenants", "ids")))
    if acceptance.changes:
        rows = [
            (
                change.tenant_id,
                change.conversation_id,
                change.title,
                change.policy,
                change.branch_id,
                change.forks,
                change.deletion,
            )
            for change in acceptance.changes
        ]
        names = ("tenants", "ids", "titles", "policies", "branches", "forks", "deletions")
        changed = columns(rows, *names)
        writes.append((SQL["change_conversations"], {**changed, "restore_s": restore_s}))
    return writes


def _generations(forks: Sequence[Fork]) -> list[list[Fork]]:
    """Forks in lists of which none grows from another of the same list: one statement each."""
    generations: list[list[Fork]] = []
    for fork in forks:
        if not generations or any(fork.grows_from == one.branch_id for one in generations[-1]):
            generations.append([])
        generations[-1].append(fork)
    return generations
