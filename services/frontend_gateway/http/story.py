"""Routes of the plan inspector: when what happened, what was left out, and single texts."""

import contextlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from libs.errors import StoreUnavailable
from schemas.prompt_plan import PlanBlock, TextMissing, checksum, text_of
from services.frontend_gateway.core.answers import iso
from services.frontend_gateway.core.cursors import below_of, check_names, page, step_of, uuid_of
from services.frontend_gateway.core.evidence import MessageFacts
from services.frontend_gateway.core.left_out import HistoryFacts, boundary, left_out, named_messages
from services.frontend_gateway.core.problems import FieldError, Problem, not_found
from services.frontend_gateway.core.timeline import AttemptView, Hop, StepView, hops
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http.context import Context, json_response
from services.frontend_gateway.http.plans import PlanReading
from services.frontend_gateway.http.ui import Pages
from services.frontend_gateway.ports import HistoryEnd

MAX_COUNTED = 50_000
"""Messages that are counted to say how many were left out: about a fifth of a second of reading.
What is above is told as this number."""

MAX_EXCERPTS = 50
"""Rows of a screen, and room to scroll; keeps the address short."""

EXCERPT_CHARACTERS = 160
"""What a row of the widest page can show."""

MAX_BLOCK_ID = 300
"""Characters of the longest name of a block, with room to spare; see ``prompt_plan.v1``."""


class StoryRoutes:
    """``/v1/turns/{turn_id}/timeline``, and what stands beside a plan: left-out, text, excerpts."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._plans = PlanReading(context)

    async def timeline(self, request: Request) -> Response:
        """Every hop of the turn with its duration, its states, steps and attempts."""
        _, turn = await self._plans.visible(request)
        check_names(request.query_params, ())
        store = self._context.store
        transitions = await store.transitions(turn.tenant_id, turn.id)
        steps = await store.steps(turn.tenant_id, turn.id)
        attempts = await store.attempts(turn.tenant_id, [step.step_id for step in steps])
        passed = hops(turn, steps, attempts)
        number_of = {step.step_id: step.step_no for step in steps}
        body = {
            "object": "timeline",
            "turn_id": str(turn.id),
            "conversation_id": str(turn.conversation_id),
            "status": turn.status,
            "reason": turn.reason,
            "now": iso(self._context.clock.now()),
            "total_ms": round(sum(hop.duration_ms or 0 for hop in passed), 3),
            "hops": [_hop(hop) for hop in passed],
            "transitions": [
                {"status": one.status, "reason": one.reason, "at": iso(one.at)}
                for one in transitions
            ],
            "steps": [_step(step) for step in steps],
            "attempts": [_attempt(one, number_of[one.step_id]) for one in attempts],
        }
        return json_response(body)

    async def left_out(self, request: Request) -> Response:
        """Messages that the plan left out, newest first, page by page."""
        _, turn = await self._plans.visible(request)
        query = request.query_params
        check_names(query, ("step", "below", "limit"))
        asked = {"limit": query["limit"]} if "limit" in query else {}
        limit = page(asked, default_order="desc").limit
        below = below_of(query)
        document = await self._plans.document(turn, step_of(query))
        named = named_messages(document)
        facts = await self._context.store.message_facts(turn.tenant_id, named)
        edge = boundary(document)
        rows: list[HistoryFacts] = []
        total = None
        if edge is not None:
            end = HistoryEnd(turn.conversation_id, turn.stands_on, min(edge, below or edge))
            rows = list(
                await self._context.store.history_facts(
                    turn.tenant_id, end, str(document["tokenizer"]), limit + 1
                )
            )
        found = left_out(document, rows, facts, below=below, limit=limit)
        if below is None:
            total = await self._total(turn, document, facts, edge)
        body = {
            "object": "left_out",
            "turn_id": str(turn.id),
            "step_no": document["step_no"],
            "total": total,
            "data": list(found.rows),
            "next_below": found.next_below,
        }
        return json_response(body)

    async def text(self, request: Request) -> Response:
        """The text of one block, or of one message that was left out."""
        _, turn = await self._plans.visible(request)
        check_names(request.query_params, ("step", "id"))
        wanted = request.query_params.get("id", "")
        if not wanted or len(wanted) > MAX_BLOCK_ID:
            error = FieldError("id", "names the block or the message")
            raise Problem("validation-error", "Name a block or a message in id.", errors=(error,))
        document = await self._plans.document(turn, step_of(request.query_params))
        block = next((one for one in document["blocks"] if one["id"] == wanted), None)
        if block is not None:
            told = await self._text_of_block(turn, {**document, "blocks": [block]})
        else:
            told = await self._text_of_message(turn, wanted)
        return json_response({"object": "plan_text", "turn_id": str(turn.id), "id": wanted, **told})

    async def excerpts(self, request: Request) -> Response:
        """How the texts of blocks and messages begin; nothing of those that are gone."""
        _, turn = await self._plans.visible(request)
        check_names(request.query_params, ("step", "ids"))
        wanted = list(dict.fromkeys(request.query_params.getlist("ids")))
        if not 1 <= len(wanted) <= MAX_EXCERPTS or any(len(one) > MAX_BLOCK_ID for one in wanted):
            error = FieldError("ids", f"names 1 to {MAX_EXCERPTS} blocks or messages")
            detail = f"Name 1 to {MAX_EXCERPTS} blocks or messages in ids."
            raise Problem("validation-error", detail, errors=(error,))
        document = await self._plans.document(turn, step_of(request.query_params))
        found = await self._others(turn, document, frozenset(wanted))
        messages = [id_ for one in wanted if (id_ := uuid_of(one)) is not None]
        texts = await self._context.store.excerpts(
            turn.tenant_id, turn.conversation_id, messages, EXCERPT_CHARACTERS
        )
        found |= {str(id_): text for id_, text in texts.items()}
        data = [{"id": one, "excerpt": found[one]} for one in wanted if one in found]
        return json_response({"object": "plan_excerpts", "turn_id": str(turn.id), "data": data})

    async def _others(
        self, turn: TurnView, document: Any, wanted: frozenset[str]
    ) -> dict[str, str]:
        """Beginnings of wanted blocks that are no messages."""
        blocks = [
            PlanBlock.model_validate(one)
            for one in document["blocks"]
            if one["id"] in wanted and uuid_of(str(one["id"])) is None
        ]
        if not blocks:
            return {}
        texts = await self._plans.texts(turn, {**document, "blocks": []})
        found: dict[str, str] = {}
        for block in blocks:
            with contextlib.suppress(TextMissing):
                text = text_of(block, nonce=document["nonce"], texts=texts)
                found[block.id] = text[:EXCERPT_CHARACTERS]
        return found

    async def _total(
        self,
        turn: TurnView,
        document: Mapping[str, Any],
        facts: Mapping[UUID, MessageFacts],
        edge: int | None,
    ) -> int:
        """Everything that was left out: below the boundary, and named above it."""
        end = HistoryEnd(turn.conversation_id, turn.stands_on, edge or 0)
        store = self._context.store
        count = await store.history_count(turn.tenant_id, end, MAX_COUNTED) if edge else 0
        return count + sum(
            1
            for gone in document["excluded"]
            if _stands_alone(uuid_of(str(gone["id"])), facts, edge)
        )

    async def _text_of_block(self, turn: TurnView, document: Any) -> dict[str, Any]:
        block = PlanBlock.model_validate(document["blocks"][0])
        named = [one for one in document["instructions"] if one["id"] == block.id]
        texts = await self._plans.texts(turn, {**document, "instructions": named})
        try:
            text = text_of(block, nonce=document["nonce"], texts=texts)
        except TextMissing:
            return await self._gone(turn, uuid_of(block.id))
        same = None if block.checksum is None else checksum(text) == block.checksum
        return {"text": text, "missing": None, "is_as_sent": same}

    async def _text_of_message(self, turn: TurnView, wanted: str) -> dict[str, Any]:
        id_ = uuid_of(wanted)
        store = self._context.store
        known = None if id_ is None else (await store.message_facts(turn.tenant_id, [id_])).get(id_)
        if id_ is None or known is None or known.conversation_id != turn.conversation_id:
            raise not_found()
        text = (await store.message_texts(turn.tenant_id, [id_])).get(id_)
        if text is None:
            return await self._gone(turn, id_)
        return {"text": text, "missing": None, "is_as_sent": None}

    async def _gone(self, turn: TurnView, id_: UUID | None) -> dict[str, Any]:
        known = None
        if id_ is not None:
            found = await self._context.store.message_facts(turn.tenant_id, [id_])
            known = found.get(id_)
        missing = "deleted" if known is not None and known.is_deleted else "missing"
        return {"text": None, "missing": missing, "is_as_sent": None}


def _stands_alone(id_: UUID | None, facts: Mapping[UUID, MessageFacts], edge: int | None) -> bool:
    """Whether a named exclusion is not among the messages below the boundary."""
    known = None if id_ is None else facts.get(id_)
    return known is None or known.is_deleted or edge is None or known.seq >= edge


class TurnPage:
    """``/ui/turns/{turn_id}``: the page for who may see the turn, else a plain one that says no."""

    def __init__(self, context: Context, pages: Pages) -> None:
        self._context = context
        self._pages = pages

    async def show(self, request: Request) -> Response:
        """The inspector; 404 for unknown and foreign turns, the sign-in page without a session."""
        turn_id = request.path_params["turn_id"]
        try:
            caller, _ = await self._context.doorkeeper.admit(request, "read")
            await self._context.visible_turn(caller, turn_id)
        except StoreUnavailable:
            pass  # the page itself says so, and asks again
        except Problem as problem:
            if problem.kind.status == 401:  # noqa: PLR2004 -- RFC 9110
                return RedirectResponse(_sign_in(request), status_code=303)
            return self._pages.page("turn-missing.html", request, status=404)
        return self._pages.page("turn.html", request)


def _sign_in(request: Request) -> str:
    """The sign-in page; it leads back here only to an id, never to anything else of the path."""
    known = uuid_of(request.path_params["turn_id"])
    return "/ui/login" if known is None else f"/ui/login?next=/ui/turns/{known}"


def _hop(hop: Hop) -> dict[str, Any]:
    return {
        "name": hop.name,
        "at": iso(hop.at),
        "duration_ms": hop.duration_ms,
        "step_no": hop.step_no,
        "attempt": hop.attempt,
    }


def _step(step: StepView) -> dict[str, Any]:
    return {
        "step_id": str(step.step_id),
        "step_no": step.step_no,
        "state": step.state,
        "reason": step.reason,
        "invariant": step.invariant,
        "model": step.model,
        "created_at": iso(step.created_at),
        "ended_at": None if step.ended_at is None else iso(step.ended_at),
    }


def _attempt(one: AttemptView, step_no: int) -> dict[str, Any]:
    return {
        "step_no": step_no,
        "attempt": one.attempt,
        "model": one.model,
        "outcome": one.outcome,
        "reason": one.reason,
        "failure": one.failure,
        "requests": one.requests,
        "first_token_ms": one.first_token_ms,
        "duration_ms": one.duration_ms,
        "began_at": None if one.began_at is None else iso(one.began_at),
        "ended_at": None if one.ended_at is None else iso(one.ended_at),
        "input_tokens": one.input_tokens,
        "output_tokens": one.output_tokens,
    }
