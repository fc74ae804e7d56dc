"""Routes that read plans as evidence: what was shown, changed, absent, and sent."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from services.frontend_gateway.core import proofs
from services.frontend_gateway.core.answers import iso
from services.frontend_gateway.core.cursors import check_names, step_of
from services.frontend_gateway.core.differences import differences
from services.frontend_gateway.core.evidence import (
    Branches,
    MessageFacts,
    Place,
    shown_messages,
)
from services.frontend_gateway.core.problems import FieldError, Problem, not_found
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http.bodies import read_model
from services.frontend_gateway.http.context import Context, json_response
from services.frontend_gateway.http.models import MAX_EXPLAINED_BYTES, ExplainBody
from services.frontend_gateway.http.plans import PlanReading
from services.frontend_gateway.ports import Caller


class EvidenceRoutes:
    """``/v1/turns/{turn_id}/plan`` and what is concluded from it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._plans = PlanReading(context)

    async def plan(self, request: Request) -> Response:
        """What the model was shown, as stored before the call."""
        _, turn = await self._plans.visible(request)
        check_names(request.query_params, ("step",))
        steps = await self._plans.steps(turn, step_of(request.query_params))
        body = {
            "object": "plan",
            "turn_id": str(turn.id),
            "conversation_id": str(turn.conversation_id),
            "steps": [
                {
                    "step_id": str(plan.step_id),
                    "step_no": plan.step_no,
                    "created_at": iso(plan.created_at),
                    "plan": plan.plan,
                    "invariant": plan.invariant,
                }
                for plan in steps
            ],
        }
        return json_response(body)

    async def diff(self, request: Request) -> Response:
        """Which pattern the difference to an earlier turn's plan shows."""
        caller, turn = await self._plans.visible(request)
        query = request.query_params
        check_names(query, ("against", "step"))
        against = await self._against(caller, turn, query.get("against"))
        after = await self._plans.document(turn, step_of(query))
        before = await self._plans.document(against, None)
        asked = list(dict.fromkeys(shown_messages(before) + shown_messages(after)))
        facts = await self._context.store.message_facts(turn.tenant_id, asked)
        path = await self._branches(caller, turn)

        def is_on_path(known: MessageFacts) -> bool:
            return path.shows(turn.stands_on, of=known.branch_id, seq=known.seq)

        found = differences(
            before, after, facts, conversation=turn.conversation_id, is_on_path=is_on_path
        )
        body = {
            "object": "plan_diff",
            "turn_id": str(turn.id),
            "against": str(against.id),
            "pattern": found.pattern,
            "patterns": list(found.patterns),
            "is_healthy": found.is_healthy,
            "line": found.line,
            "added": [str(id_) for id_ in found.added],
            "vanished": [{"id": str(id_), "reason": why} for id_, why in found.vanished],
            "twice": [str(id_) for id_ in found.twice],
            "foreign": [str(id_) for id_ in found.foreign],
            "swapped": [str(id_) for id_ in found.swapped],
            "stale": list(found.stale),
        }
        return json_response(body)

    async def explain(self, request: Request) -> Response:
        """Whether the model was shown a text or a message, where, or why not."""
        caller, turn = await self._plans.visible(request)
        body = await read_model(request, ExplainBody)
        if (body.text is None) == (body.message_id is None):
            error = FieldError("", "name either text or message_id")
            raise Problem("validation-error", "Name either text or message_id.", errors=(error,))
        if body.text is not None:
            _check_needle(body.text)
        document = await self._plans.document(turn, body.step)
        if body.message_id is not None:
            told = await self._explain_message(caller, turn, document, body.message_id)
        else:
            told = await self._explain_text(caller, turn, document, body.text or "")
        return json_response({"object": "explanation", "turn_id": str(turn.id), **told})

    async def replay(self, request: Request) -> Response:
        """Make the payload again from stored rows, and compare it with what was sent."""
        _, turn = await self._plans.visible(request)
        check_names(request.query_params, ("step",))
        document = await self._plans.document(turn, step_of(request.query_params))
        texts = await self._plans.texts(turn, document)
        facts = await self._context.store.message_facts(turn.tenant_id, shown_messages(document))
        found = proofs.replayed(document, texts, facts)
        body = {
            "object": "replay",
            "turn_id": str(turn.id),
            "step_no": document["step_no"],
            "fingerprint_sent": found.fingerprint_sent,
            "fingerprint_now": found.fingerprint_now,
            "equal": found.is_equal,
            "changed": [{"id": id_, "why": why} for id_, why in found.changed],
        }
        return json_response(body)

    async def _against(self, caller: Caller, turn: TurnView, named: str | None) -> TurnView:
        if named is not None:
            against = await self._context.visible_turn(caller, named)
            if against.conversation_id != turn.conversation_id:
                error = FieldError("against", "is a turn of another conversation")
                detail = "Plans of different conversations share no message. Name one of this one."
                raise Problem("validation-error", detail, errors=(error,))
            return against
        if turn.parent_turn_id is None:
            detail = "This turn follows no other one. Name the turn to compare with in against."
            raise Problem("not-found", detail, turn_id=str(turn.id))
        return await self._context.visible_turn(caller, str(turn.parent_turn_id))

    async def _branches(self, caller: Caller, turn: TurnView) -> Branches:
        rows = await self._context.store.branches(
            caller.tenant_id, caller.principal_id, turn.conversation_id
        )
        return Branches(rows)

    async def _explain_message(
        self, caller: Caller, turn: TurnView, document: Mapping[str, Any], message: UUID
    ) -> dict[str, Any]:
        shown = proofs.blocks_of(document, message)
        if shown:
            return proofs.present(document, shown)
        known = (await self._context.store.message_facts(turn.tenant_id, [message])).get(message)
        if known is None or known.conversation_id != turn.conversation_id:
            raise not_found()
        path = await self._branches(caller, turn)
        return proofs.absent(document, [proofs.candidate_of(known, path, turn.stands_on)])

    async def _explain_text(
        self, caller: Caller, turn: TurnView, document: Mapping[str, Any], needle: str
    ) -> dict[str, Any]:
        texts = await self._plans.texts(turn, document)
        shown = proofs.blocks_with(document, texts, needle)
        if shown:
            return proofs.present(document, shown)
        places: Sequence[Place] = ()
        for wording in proofs.wordings(document, texts, needle):
            places = await self._context.store.find_text(
                caller.tenant_id, caller.principal_id, turn.conversation_id, wording
            )
            if places:
                break
        path = await self._branches(caller, turn)
        return proofs.absent(document, proofs.candidates_at(places, path, turn.stands_on))


def _check_needle(text: str) -> None:
    size_bytes = len(text.encode())
    if size_bytes > MAX_EXPLAINED_BYTES:
        detail = (
            f"The text has {size_bytes} bytes in UTF-8, allowed are {MAX_EXPLAINED_BYTES}. "
            "A sentence of it is enough to find it."
        )
        raise Problem("payload-too-large", detail)
    if not text.strip():
        error = FieldError("/text", "has no visible character")
        raise Problem("validation-error", "There is no text to look for.", errors=(error,))
