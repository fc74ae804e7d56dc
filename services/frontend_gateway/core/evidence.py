"""What is known of messages beside a plan, the paths of branches, and parts of stored plans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from services.frontend_gateway.core.cursors import uuid_of

Document = Mapping[str, Any]
"""A stored plan, ``prompt_plan.v1``."""


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What the rows say of a message, without its text.

    Attributes:
        superseded_by: The newest message that was said instead of it.
    """

    id: UUID
    conversation_id: UUID
    branch_id: UUID
    turn_id: UUID
    seq: int
    role: str
    status: str
    is_deleted: bool = False
    superseded_by: UUID | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text was found."""

    message_id: UUID
    seq: int
    branch_id: UUID


@dataclass(frozen=True, slots=True)
class BranchView:
    """A branch as listed.

    Attributes:
        fork_seq: Below this number it shows what its parent shows; None of the main branch.
    """

    id: UUID
    kind: str
    parent_branch_id: UUID | None
    fork_seq: int | None
    is_active: bool
    first_turn_id: UUID | None
    last_turn_id: UUID | None
    created_at: datetime


class Branches:
    """Which messages stand on the path of which branch."""

    def __init__(self, branches: Sequence[BranchView]) -> None:
        self._by_id = {branch.id: branch for branch in branches}

    def shows(self, branch_id: UUID, *, of: UUID, seq: int) -> bool:
        """Whether message ``seq`` of branch ``of`` stands on the path of ``branch_id``."""
        below: int | None = None
        current: UUID | None = branch_id
        for _ in range(len(self._by_id) + 1):  # the parents of a branch form no circle
            if current == of:
                return below is None or seq < below
            branch = None if current is None else self._by_id.get(current)
            if branch is None or branch.fork_seq is None:
                return False
            below = branch.fork_seq if below is None else min(below, branch.fork_seq)
            current = branch.parent_branch_id
        return False


def shown_messages(document: Document) -> list[UUID]:
    """Ids of the stored messages that a plan shows, in their order."""
    found = (uuid_of(str(id_)) for id_ in document.get("message_ids", ()))
    return [id_ for id_ in found if id_ is not None]


def exclusions(document: Document) -> dict[UUID, str]:
    """Reason of each message that a plan names as left out."""
    told: dict[UUID, str] = {}
    for gone in document.get("excluded", ()):
        id_ = uuid_of(str(gone["id"]))
        if id_ is not None:
            told[id_] = str(gone["reason"])
    return told


def is_trimmed(document: Document, seq: int) -> bool:
    """Whether a plan says that nothing with this number or a lower one was shown."""
    upto = document.get("excluded_up_to_seq")
    return upto is not None and seq <= int(upto)


def section_budget(document: Document, section: str) -> dict[str, Any] | None:
    """What a section of a plan could use and used, in tokens."""
    for part in document.get("budget", {}).get("sections", ()):
        if part["section"] == section:
            return {name: part[name] for name in ("before", "used", "after")}
    return None
