"""Reads a turn's plan and the texts of its blocks, for whoever may read its conversation."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pydantic import ValidationError
from starlette.requests import Request

from schemas.prompt_plan import PromptPlanV1
from services.frontend_gateway.core import proofs
from services.frontend_gateway.core.problems import Problem
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http.context import Context
from services.frontend_gateway.ports import Caller, PlanView


class PlanReading:
    """What routes about plans share."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def visible(self, request: Request) -> tuple[Caller, TurnView]:
        """Who asks, and the turn that the path names.

        Raises:
            Problem: ``not-found``, the same for unknown and foreign; or no right to read.
        """
        caller, _ = await self._context.doorkeeper.admit(request, "read")
        turn = await self._context.visible_turn(caller, request.path_params["turn_id"])
        return caller, turn

    async def steps(self, turn: TurnView, step: int | None) -> list[PlanView]:
        """The plans of a turn, or that of one step.

        Raises:
            Problem: ``not-found``, with the reason why there is none.
        """
        plans = await self._context.store.plans(turn.tenant_id, turn.id)
        if not plans:
            raise Problem("not-found", _why_no_plan(turn), turn_id=str(turn.id))
        found = [plan for plan in plans if step in (None, plan.step_no)]
        if not found:
            detail = f"This turn has no plan of a step {step}; its steps count from 1."
            raise Problem("not-found", detail, turn_id=str(turn.id))
        return found

    async def document(self, turn: TurnView, step: int | None) -> Mapping[str, Any]:
        """The plan of a step, of the last one where none is named.

        Raises:
            Problem: ``not-found`` where there is none that can be judged.
        """
        document = (await self.steps(turn, step))[-1].plan
        try:
            PromptPlanV1.model_validate(document)
        except ValidationError:
            detail = "The plan was stored in a form from before prompt_plan.v1. Read it as it is."
            raise Problem("not-found", detail, turn_id=str(turn.id)) from None
        return document

    async def texts(self, turn: TurnView, document: Mapping[str, Any]) -> dict[str, str]:
        """Texts of a plan's blocks that are still stored, by block id."""
        messages, named = proofs.stored_texts(document)
        found = await self._context.store.message_texts(turn.tenant_id, messages)
        texts = {str(id_): text for id_, text in found.items()}
        policy = self._context.policy
        scopes = {"tenant": turn.tenant_id, "conversation": turn.conversation_id}
        wanted: dict[tuple[UUID, str, int], str] = {}
        for block_id, kind, scope, version in named:
            if scope == "settings":
                if version == policy.version:
                    texts[block_id] = policy.text
            elif version.isdecimal():
                wanted[scopes[scope], kind, int(version)] = block_id
        for row in await self._context.store.instructions(turn.tenant_id, list(wanted)):
            texts[wanted[row.scope_id, row.kind, row.version]] = row.text
        return texts


def _why_no_plan(turn: TurnView) -> str:
    if turn.has_ended:
        return "This turn has no plan: it ended before the model was to be called."
    return "This turn has no plan yet. It is made when the turn starts; ask again in a moment."
