"""Where a requested turn goes: on which branch, after which turn, behind how many others."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from libs import ids
from schemas.requests import Policy
from schemas.turns import MAX_CONTINUED
from services.ingestion.core.policy import (
    Branches,
    Full,
    Refused,
    Replaces,
    Starts,
    Waits,
    place,
)
from services.ingestion.core.requests import Asked, Problem, Request
from services.ingestion.core.standing import MessageRow, Standing, Target
from services.ingestion.core.turn import TurnState

MAX_BRANCHES = 200
"""Branches of one conversation; a history has as many ranges as its branch has forebears."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What does not stand in rows.

    Attributes:
        queue_depth: How many turns of a branch may wait under policy ``queue``.
        can_continue: Whether a model (None: the default one) goes on from a text of its own.
    """

    queue_depth: int
    can_continue: Callable[[str | None], bool]


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a turn goes.

    Attributes:
        position: 0 starts now, else its place in the queue.
        is_bounded: Whether it gives up waiting after a while.
        grows_from: The branch that its new branch forks from; None where the branch exists.
        below: The new branch shows of that one what stands below this number.
        is_turned_to: Whether the conversation goes on there.
        cancels: Turns that are told to stop.
    """

    branch_id: UUID
    parent_turn_id: UUID | None
    position: int = 0
    is_bounded: bool = False
    grows_from: UUID | None = None
    below: int = 0
    is_turned_to: bool = True
    cancels: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a new branch parts from an old one, whose messages it shows below that number."""

    branch_id: UUID
    below: int
    parent_turn_id: UUID | None


def of_message(
    asked: Asked, policy: Policy, standing: Standing, target: Target | None, rules: Rules
) -> Spot | Problem:
    """The spot of a new message: where the conversation stands, or where its parent says.

    Args:
        target: The parent's row, where the request names a parent that exists.
    """
    branch: UUID | None = standing.active
    parent = asked.parent
    if parent is not None and parent != standing.last_turn_id:
        branch = standing.branch_ending_with(parent)
        if branch is None:
            return _after_earlier(asked, policy, standing, target)
    if branch is None:  # the active branch is never None; says so to the type checker
        return _stale(standing)
    return _placed(asked, policy, standing, branch, rules)


def _after_earlier(
    asked: Asked, policy: Policy, standing: Standing, target: Target | None
) -> Spot | Problem:
    """Others have followed the named parent: only a branch of its own can still go there."""
    parent = asked.parent
    if policy != "branch":
        return _stale(standing)
    if parent in standing.open:
        return in_progress(parent)
    if target is None or parent is None:
        return _stale(standing)
    origin = _Origin(target.branch_id, target.after, parent)
    return _forked(asked, origin, standing, is_turned_to=False)


def _placed(
    asked: Asked, policy: Policy, standing: Standing, branch: UUID, rules: Rules
) -> Spot | Problem:
    parent = standing.lasts[branch]
    open_turns = standing.open_of(branch)
    match place(policy, open_turns, queue_depth=rules.queue_depth):
        case Starts():
            return Spot(branch, parent)
        case Waits(position, is_bounded):
            return Spot(branch, parent, position, is_bounded)
        case Replaces(cancels):
            return Spot(branch, parent, len(open_turns), cancels=cancels)
        case Refused(running):
            return in_progress(running)
        case Full(waiting):
            detail = f"{waiting} turns wait already, and no more may; wait for one to end"
            return Problem("quota-exceeded", detail)
        case Branches(beside):
            row = standing.open[beside]
            origin = _Origin(row.branch_id, row.sibling_seq, row.parent_turn_id)
            return _forked(asked, origin, standing, is_turned_to=False)


def of_edit(
    asked: Asked, policy: Policy, standing: Standing, target: Target, message: MessageRow
) -> Spot | Problem:
    """The spot of a message said again: a branch that parts before the old one."""
    cancels = _cancels(policy, standing, message.branch_id)
    if isinstance(cancels, Problem):
        return cancels
    origin = _Origin(message.branch_id, message.seq, target.parent_turn_id)
    return _forked(asked, origin, standing, cancels=cancels)


def of_regenerate(
    asked: Asked, policy: Policy, standing: Standing, target: Target
) -> Spot | Problem:
    """The spot of another answer: a branch that parts behind the question."""
    question = target.question
    if question is None:
        return gone()
    cancels = _cancels(policy, standing, target.branch_id)
    if isinstance(cancels, Problem):
        return cancels
    origin = _Origin(question.branch_id, question.seq + 1, question.parent_turn_id)
    return _forked(asked, origin, standing, cancels=cancels)


def of_continue(asked: Asked, policy: Policy, standing: Standing, target: Target) -> Spot | Problem:
    """The spot of a continuation: behind the unfinished answer, where nothing follows it yet."""
    branch = target.branch_id
    cancels = _cancels(policy, standing, branch)
    if isinstance(cancels, Problem):
        return cancels
    if standing.lasts.get(branch) == target.turn_id and not standing.open_of(branch):
        return Spot(branch, target.turn_id)
    origin = _Origin(branch, target.after, target.turn_id)
    return _forked(asked, origin, standing, cancels=cancels)


def editable(request: Request, standing: Standing, target: Target | None) -> Problem | None:
    """Why the named message cannot be said again, or None."""
    role: str
    if target is None or target.message is None:
        made = None
        if request.message_id is not None:
            made = standing.new_messages.get(request.message_id)
        if made is None:
            return gone()
        turn_id, role = made
    else:
        if target.message.is_deleted or target.message.id in standing.deleted:
            return gone()
        turn_id, role = target.turn_id, target.message.role
    if role != "user":
        return Problem("not-editable", "only what a user said can be edited")
    return in_progress(turn_id) if turn_id in standing.open else None


def answerable(request: Request, standing: Standing, target: Target | None) -> Problem | None:
    """Why the named turn's question cannot be answered again, or None."""
    if request.turn_id is not None and request.turn_id in standing.open:
        return in_progress(request.turn_id)
    if target is None or target.question is None:
        return gone()
    is_deleted = target.is_answer_deleted or target.question.is_deleted
    if is_deleted or standing.deleted & {target.question.id, target.answer_id}:
        return gone()
    return None


def continuable(
    standing: Standing, target: Target, *, model: str | None, rules: Rules
) -> Problem | None:
    """Why an ended turn, whose question and answer are there, cannot be gone on from, or None."""
    if target.is_broken or standing.deleted & set(target.continues):
        return gone()
    detail = None
    if target.state not in (TurnState.PARTIAL, TurnState.CANCELLED) or target.length == 0:
        detail = "only an unfinished answer that has a text can be continued"
    elif len(target.continues) >= MAX_CONTINUED:
        detail = f"this answer was continued {MAX_CONTINUED} times; ask a new question instead"
    elif not rules.can_continue(model):
        detail = "the model is not declared able to continue; regenerate the answer instead"
    return None if detail is None else Problem("not-continuable", detail, target.turn_id)


def in_progress(turn: UUID | None) -> Problem:
    """A turn is in the way."""
    detail = "a turn that this concerns is still running; wait for its end, or cancel it"
    return Problem("turn-in-progress", detail, turn)


def gone() -> Problem:
    """What is named is not there, for whoever asks."""
    return Problem("not-found", "there is no such message or turn")


def _forked(
    asked: Asked,
    origin: _Origin,
    standing: Standing,
    *,
    is_turned_to: bool = True,
    cancels: tuple[UUID, ...] = (),
) -> Spot | Problem:
    if standing.branch_count >= MAX_BRANCHES:
        detail = f"this conversation has {MAX_BRANCHES} branches, and no more are kept"
        return Problem("quota-exceeded", detail)
    if origin.parent_turn_id in standing.open:
        # Its words would be missing from the prompt, and nothing would say so.
        return in_progress(origin.parent_turn_id)
    return Spot(
        branch_id=ids.branch_id(asked.turn_id),
        parent_turn_id=origin.parent_turn_id,
        grows_from=origin.branch_id,
        below=origin.below,
        is_turned_to=is_turned_to,
        cancels=cancels,
    )


def _cancels(policy: Policy, standing: Standing, branch: UUID) -> tuple[UUID, ...] | Problem:
    """What a turn that starts on a branch of its own does to those of the branch it leaves."""
    open_turns = standing.open_of(branch)
    if open_turns and policy == "reject":
        return in_progress(open_turns[0])
    return tuple(open_turns) if policy == "replace" else ()


def _stale(standing: Standing) -> Problem:
    detail = "the conversation has moved on since that turn; read it again"
    return Problem("stale-parent", detail, standing.last_turn_id)
