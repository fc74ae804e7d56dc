"""Broken houses: one statement is changed on its way to the server, nothing in the product is.

A simulation that passes them sees nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from libs.postgres import load_queries

Rewrite = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change.

    Attributes:
        package: Whose ``queries.sql`` holds the statement.
        name: The statement.
        changes: Texts that are taken out, and what stands there instead.
    """

    package: str
    name: str
    changes: Mapping[str, str]


MUTANTS: Mapping[str, Mutant] = {
    "no_inbox": Mutant("libs.inbox", "seen", {"x.consumer =": "false and x.consumer ="}),
    "keys_are_not_remembered": Mutant(
        "services.ingestion", "turns_by_key", {"and x.key = wanted.key": "and false"}
    ),
    "outbox_is_not_swept": Mutant(
        "libs.outbox", "pending", {"o.created_at <": "false and o.created_at <"}
    ),
    "the_queue_is_not_seen": Mutant(
        "services.ingestion", "open_turns_of", {"where o.": "where false and o."}
    ),
    "no_fence_on_the_final_write": Mutant(
        "services.llm_gateway", "finish", {" and w.attempt = f.attempt and w.state = 'running'": ""}
    ),
    "dead_workers_keep_their_work": Mutant(
        "services.llm_gateway",
        "abandoned",
        {"k.worker_id is null or k.lease_until < turnwire.clock()": "false"},
    ),
    "history_has_no_boundary": Mutant(
        "services.context_assembly",
        "history",
        {
            "%(before_seqs)s::bigint[]": "array_fill(9223372036854775807, "
            "array[cardinality(%(before_seqs)s::bigint[])])"
        },
    ),
    "branches_show_what_they_part_from": Mutant(
        "services.ingestion", "fork_branches", {"least(u.x, n.cap)": "u.x"}
    ),
    "deleted_messages_stay": Mutant(
        "services.ingestion", "delete_messages", {"m.deleted_at is null": "false"}
    ),
    "snapshots_lack_their_end": Mutant(
        "services.frontend_gateway", "answers", {", text from": ", left(text, -1) as text from"}
    ),
}


def unchanged(text: str) -> str:
    """The house as it is."""
    return text


def rewrite_of(mutant: Mutant) -> Rewrite:
    """How a mutant changes what the house sends.

    Raises:
        ValueError: The statement no longer has the text: the mutant must be written again.
    """
    original = load_queries(mutant.package)[mutant.name]
    changed = changed_text(mutant, original)
    return lambda text: changed if text == original else text


def changed_text(mutant: Mutant, original: str) -> str:
    """The text with every change made; see ``rewrite_of``."""
    changed = original
    for old, new in mutant.changes.items():
        if old not in changed:
            msg = f"{mutant.package} {mutant.name} has no {old!r} that could be changed"
            raise ValueError(msg)
        changed = changed.replace(old, new)
    return changed
