"""Accepts, repeats or refuses a batch of requests, given the locked rows."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from libs import ids
from schemas.requests import Policy
from schemas.turns import TurnKind
from services.ingestion.core import spots
from services.ingestion.core.decisions import (
    Acceptance,
    Change,
    Decision,
    Deletion,
    Fork,
    Leaving,
    Mark,
    NewConversation,
    NewTurn,
    Outcome,
    Tally,
    Turning,
)
from services.ingestion.core.policy import MAX_OPEN_TURNS
from services.ingestion.core.requests import Asked, Problem, Request
from services.ingestion.core.spots import Rules, Spot
from services.ingestion.core.standing import (
    ConversationKey,
    ConversationRow,
    Locked,
    OpenRow,
    Standing,
    Target,
    TurnRow,
)

DEFAULT_POLICY: Policy = "serialize"

ASKED_TO_STOP = "user"
REPLACED = "replaced"
CONVERSATION_DELETED = "conversation_deleted"


def decide(requests: Iterable[Request], locked: Locked, rules: Rules) -> Acceptance:
    """Decide a batch in order; a later request sees what an earlier one of the batch changed.

    The rows must have been read after their conversations were locked, or two batches could take
    the same seq. Creating twice and posting twice are repeats; a key with another body is a
    conflict; an unknown, a deleted and somebody else's conversation look the same.
    """
    batch = _Batch(locked, rules)
    decisions = tuple(batch.decide(request) for request in requests)
    standings = batch.standings.items()
    return Acceptance(
        decisions,
        tuple(batch.conversations),
        tuple(batch.turns),
        tuple(tally for key, standing in standings for tally in _tallies(key, standing)),
        forks=tuple(batch.forks),
        marks=tuple(batch.marks),
        deletions=tuple(batch.deletions),
        turnings=tuple(batch.turnings),
        changes=tuple(change for key, standing in standings for change in _changes(key, standing)),
        leavings=tuple(left for key, standing in standings for left in _leavings(key, standing)),
    )


class _Batch:
    def __init__(self, locked: Locked, rules: Rules) -> None:
        self.conversations: list[NewConversation] = []
        self.turns: list[NewTurn] = []
        self.forks: list[Fork] = []
        self.marks: list[Mark] = []
        self.deletions: list[Deletion] = []
        self.turnings: list[Turning] = []
        self._rules = rules
        self._targets = locked.targets
        self._purged = locked.purged
        self.standings: dict[ConversationKey, Standing] = {
            key: Standing.of(row, locked.open_turns.get(key, ()))
            for key, row in locked.conversations.items()
        }
        for (conversation, key), turn in locked.turns.items():
            self.standings[conversation].turns[key] = turn

    def decide(self, request: Request) -> Decision:
        key = (request.tenant_id, request.conversation_id)
        standing = self.standings.get(key)
        if standing is not None and standing.row.principal_id != request.principal_id:
            return _not_found(request)
        if request.creates and standing is None:
            return self._create(request, is_purged=key in self._purged)
        if standing is None or (standing.is_deleted and request.wish != "restore"):
            return _not_found(request)
        target = self._targets.get(request.id)
        if target is not None:
            standing.lasts.setdefault(target.branch_id, target.branch_last_turn_id)
        return self._carry_out(request, standing, target)

    def _carry_out(self, request: Request, standing: Standing, target: Target | None) -> Decision:
        match request.wish:
            case "create":
                return _created_before(request, standing)
            case "cancel":
                return self._cancel(request, standing, target)
            case "delete_message":
                return self._delete_message(request, standing, target)
            case "delete" | "restore":
                return self._turn(request, standing)
            case "update":
                return _update(request, standing)
            case _:
                return self._ask(request, standing, target)

    def _create(self, request: Request, *, is_purged: bool) -> Decision:
        if is_purged:
            return _not_found(request)
        if request.fault is not None:
            return Decision(request, "rejected", problem=request.fault)
        policy = request.policy or DEFAULT_POLICY
        row = ConversationRow(
            principal_id=request.principal_id,
            policy=policy,
            model=request.model,
            fingerprint=request.fingerprint,
            next_seq=1,
            last_turn_id=None,
            branch_id=request.conversation_id,  # the main branch has the conversation's id
        )
        standing = Standing.of(row)
        self.standings[request.tenant_id, request.conversation_id] = standing
        self.conversations.append(NewConversation(request, policy))
        if request.asked is None:
            return Decision(request, "accepted")
        return self._accept(request, request.asked, standing, Spot(row.branch_id, None), None)

    def _ask(self, request: Request, standing: Standing, target: Target | None) -> Decision:
        asked = request.asked
        if asked is None:  # read_request gives every wish for a turn what it asks for
            return Decision(request, "rejected", problem=request.fault)
        known = standing.turns.get(asked.key)
        if known is not None:
            if known.fingerprint != request.fingerprint:
                return _conflict(request)
            return Decision(request, "replayed", known.id)
        spot = request.fault or self._spot(request, asked, standing, target)
        if isinstance(spot, Problem):
            outcome: Outcome = "not_found" if spot.code == "not-found" else "rejected"
            return Decision(request, outcome, problem=spot)
        return self._accept(request, asked, standing, spot, target)

    def _spot(
        self, request: Request, asked: Asked, standing: Standing, target: Target | None
    ) -> Spot | Problem:
        policy = request.policy or standing.policy
        if request.wish == "edit":
            problem = spots.editable(request, standing, target)
        elif request.wish == "message":
            problem = None
        else:
            problem = spots.answerable(request, standing, target)
            if problem is None and request.wish == "continue" and target is not None:
                model = request.model or target.model
                problem = spots.continuable(standing, target, model=model, rules=self._rules)
        if problem is None and len(standing.open) >= MAX_OPEN_TURNS:
            detail = f"{MAX_OPEN_TURNS} turns of this conversation are open; wait for one to end"
            problem = Problem("quota-exceeded", detail)
        if problem is not None:
            return problem
        if request.wish == "message":
            return spots.of_message(asked, policy, standing, target, self._rules)
        if target is None:
            return spots.gone()
        if request.wish == "edit" and target.message is not None:
            return spots.of_edit(asked, policy, standing, target, target.message)
        if request.wish == "regenerate":
            return spots.of_regenerate(asked, policy, standing, target)
        return spots.of_continue(asked, policy, standing, target)

    def _accept(
        self,
        request: Request,
        asked: Asked,
        standing: Standing,
        spot: Spot,
        target: Target | None,
    ) -> Decision:
        turn = _new_turn(request, asked, standing, spot, target)
        self.turns.append(turn)
        self._mark(request, standing, spot.cancels, REPLACED)
        if spot.grows_from is not None:
            standing.branch_count += 1
            self.forks.append(
                Fork(
                    request.tenant_id,
                    request.conversation_id,
                    spot.branch_id,
                    spot.grows_from,
                    spot.below,
                    asked.turn_id,
                )
            )
        if spot.is_turned_to:
            standing.turn_to(spot.branch_id)
        standing.next_seq = turn.seq + 2
        standing.lasts[spot.branch_id] = asked.turn_id
        standing.open[asked.turn_id] = turn.as_open()
        standing.turns[asked.key] = TurnRow(asked.turn_id, request.fingerprint)
        standing.new_messages[turn.answer_id] = (asked.turn_id, "assistant")
        if request.message is not None:
            standing.new_messages[turn.user_message_id] = (asked.turn_id, "user")
        for needed in (turn.user_message_id, *turn.continues):
            standing.used.setdefault(needed, asked.turn_id)
        return Decision(request, "accepted", asked.turn_id)

    def _mark(
        self, request: Request, standing: Standing, turns: Sequence[UUID], reason: str
    ) -> None:
        """Tell turns to stop; who was told before keeps the first reason."""
        for turn in turns:
            row = standing.open[turn]
            if not row.is_cancelled:
                standing.open[turn] = OpenRow(
                    turn, row.branch_id, row.sibling_seq, row.parent_turn_id, is_cancelled=True
                )
                self.marks.append(Mark(turn, reason, request))

    def _cancel(self, request: Request, standing: Standing, target: Target | None) -> Decision:
        turn = request.turn_id
        if turn is not None and turn in standing.open:
            self._mark(request, standing, [turn], ASKED_TO_STOP)
            return Decision(request, "accepted", turn)
        if target is None:
            return Decision(request, "not_found", problem=spots.gone())
        problem = Problem("turn-already-terminal", "the turn has ended before", turn)
        return Decision(request, "rejected", problem=problem)

    def _delete_message(
        self, request: Request, standing: Standing, target: Target | None
    ) -> Decision:
        if target is None or target.message is None:
            made = None
            if request.message_id is not None:
                made = standing.new_messages.get(request.message_id)
            if made is None:
                return Decision(request, "not_found", problem=spots.gone())
            return Decision(request, "rejected", problem=spots.in_progress(made[0]))
        message = target.message
        if message.is_deleted or message.id in standing.deleted:
            return Decision(request, "not_found", problem=spots.gone())
        used_by = target.turn_id if target.turn_id in standing.open else message.used_by
        used_by = used_by or standing.used.get(message.id)
        if used_by is not None:
            return Decision(request, "rejected", problem=spots.in_progress(used_by))
        standing.deleted.add(message.id)
        self.deletions.append(Deletion(message.id, target.turn_id, message.role, request))
        return Decision(request, "accepted")

    def _turn(self, request: Request, standing: Standing) -> Decision:
        """Delete a conversation or bring it back."""
        deletes = request.wish == "delete"
        if not deletes and not standing.is_deleted:
            return Decision(request, "accepted")
        if not deletes and not standing.is_restorable:
            detail = "the time in which a deleted conversation can be restored is over"
            problem = Problem("restore-expired", detail)
            return Decision(request, "rejected", problem=problem)
        if deletes:
            self._mark(request, standing, list(standing.open), CONVERSATION_DELETED)
        standing.is_deleted = standing.is_restorable = deletes
        standing.deletion = "delete" if deletes else "restore"
        self.turnings.append(Turning(request, is_deleted=deletes))
        return Decision(request, "accepted")


def _new_turn(
    request: Request, asked: Asked, standing: Standing, spot: Spot, target: Target | None
) -> NewTurn:
    """A turn that says something takes two numbers, one that only answers takes one."""
    kind: TurnKind = "message"
    seq = base_seq = standing.next_seq
    question_id: UUID = ids.message_id(asked.turn_id, "user")
    model = request.model or standing.row.model
    supersedes: UUID | None = None
    continues: tuple[UUID, ...] = ()
    if request.wish == "edit" and target is not None:
        kind, supersedes = "edit", request.message_id
        model = request.model or target.model
    elif request.message is None and target is not None and target.question is not None:
        kind = "regenerate"
        seq, base_seq = standing.next_seq - 1, target.question.seq
        question_id, model = target.question.id, request.model or target.model
        if request.wish == "continue":
            kind, continues = "continue", (*target.continues, target.answer_id)
    return NewTurn(
        request=request,
        asked=asked,
        kind=kind,
        branch_id=spot.branch_id,
        parent_turn_id=spot.parent_turn_id,
        policy=request.policy or standing.policy,
        model=model,
        seq=seq,
        base_seq=base_seq,
        position=spot.position,
        is_bounded=spot.is_bounded,
        user_message_id=question_id,
        supersedes=supersedes,
        continues=continues,
    )


def _created_before(request: Request, standing: Standing) -> Decision:
    if standing.row.fingerprint != request.fingerprint:
        return _conflict(request)
    return Decision(request, "replayed", None if request.asked is None else request.asked.turn_id)


def _update(request: Request, standing: Standing) -> Decision:
    if request.title is not None:
        standing.title = request.title
    if request.policy is not None:
        standing.policy = standing.new_policy = request.policy
    return Decision(request, "accepted")


def _tallies(key: ConversationKey, standing: Standing) -> Iterable[Tally]:
    last = standing.last_turn_id
    is_moved = standing.next_seq != standing.row.next_seq or last != standing.row.last_turn_id
    if is_moved and last is not None:
        yield Tally(*key, standing.next_seq, last)


def _changes(key: ConversationKey, standing: Standing) -> Iterable[Change]:
    row = standing.row
    change = Change(
        *key,
        title=standing.title,
        policy=standing.new_policy,
        branch_id=standing.active if standing.active != row.branch_id else None,
        forks=standing.branch_count - row.branch_count,
        deletion=standing.deletion,
    )
    if change != Change(*key, None, None, None, 0, None):
        yield change


def _leavings(key: ConversationKey, standing: Standing) -> Iterable[Leaving]:
    for branch in standing.left:
        last = standing.lasts[branch]
        if branch != standing.active and last is not None:
            yield Leaving(*key, branch, last)


def _not_found(request: Request) -> Decision:
    return Decision(
        request, "not_found", problem=Problem("not-found", "there is no such conversation")
    )


def _conflict(request: Request) -> Decision:
    detail = "this idempotency key was used for another request; make a new key"
    return Decision(request, "conflict", problem=Problem("idempotency-key-reused", detail))
