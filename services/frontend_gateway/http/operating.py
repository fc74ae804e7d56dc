"""Routes for operators of a tenant: instructions, and what is kept of payloads."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from libs.catalogue import UNLISTED
from libs.tokens import count
from schemas.prompt_plan import SYSTEM_JOINT, Section
from services.frontend_gateway.core.answers import iso
from services.frontend_gateway.core.cursors import check_names, step_of, uuid_of
from services.frontend_gateway.core.evidence import shown_messages
from services.frontend_gateway.core.problems import Problem, not_found
from services.frontend_gateway.core.turns import TurnView
from services.frontend_gateway.http.bodies import MAX_TEXT_BYTES, read_model
from services.frontend_gateway.http.context import Context, json_response
from services.frontend_gateway.http.edge import request_id_of
from services.frontend_gateway.http.models import (
    CaptureFlagBody,
    CapturePostureBody,
    ConversationInstructionsBody,
    InstructionsBody,
)
from services.frontend_gateway.ports import Caller, InstructionsChange, InstructionView, Reader

SYSTEM_POLICY = "system_policy"
WORKSPACE = "workspace"
_SECTIONS: Mapping[str, Section] = {SYSTEM_POLICY: "system", WORKSPACE: "workspace"}

FRAMES_TOKENS = 128
"""Kept free in the section of the system policy: for the sentence that explains frames around data,
and the fixed answers to them."""


class InstructionRoutes:
    """``/v1/instructions`` and ``/v1/conversations/{conversation_id}/instructions``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def of_tenant(self, request: Request) -> Response:
        """The tenant's texts, each with its version."""
        caller, _ = await self._context.doorkeeper.admit(request, "read")
        return await self._answer(caller, caller.tenant_id, (SYSTEM_POLICY, WORKSPACE))

    async def of_conversation(self, request: Request) -> Response:
        """The conversation's own text; the tenant's come before it."""
        caller, _ = await self._context.doorkeeper.admit(request, "read")
        scope = await self._conversation(request, caller)
        return await self._answer(caller, scope, (WORKSPACE,))

    async def set_of_tenant(self, request: Request) -> Response:
        """Set texts of the tenant; what is left out stays, an empty text takes it back."""
        caller, _ = await self._context.doorkeeper.admit(request, "admin")
        body = await read_model(request, InstructionsBody)
        texts = {SYSTEM_POLICY: body.system_policy, WORKSPACE: body.workspace}
        await self._set(caller, caller.tenant_id, texts)
        return await self._answer(caller, caller.tenant_id, tuple(texts))

    async def set_of_conversation(self, request: Request) -> Response:
        """Set the text of one conversation."""
        caller, _ = await self._context.doorkeeper.admit(request, "admin")
        scope = await self._conversation(request, caller)
        body = await read_model(request, ConversationInstructionsBody)
        await self._set(caller, scope, {WORKSPACE: body.workspace})
        return await self._answer(caller, scope, (WORKSPACE,))

    async def _conversation(self, request: Request, caller: Caller) -> UUID:
        text = request.path_params["conversation_id"]
        return (await self._context.visible_conversation(caller, text)).id

    async def _set(self, caller: Caller, scope: UUID, texts: Mapping[str, str | None]) -> None:
        wanted = [(kind, text) for kind, text in texts.items() if text is not None]
        for kind, text in wanted:
            if len(text.encode()) > MAX_TEXT_BYTES:
                detail = f"The text of {kind} has more than {MAX_TEXT_BYTES} bytes. Shorten it."
                raise Problem("payload-too-large", detail)
            self._check_size(kind, text, "")  # before anybody has to wait for its counting
        if not wanted:
            return
        async with self._context.store.changing_instructions(caller.tenant_id) as change:
            for kind, text in wanted:
                for beside in await _beside(change, caller, scope, kind):
                    self._check_size(kind, text, beside)
            rows = [(self._context.clock.new_id(), scope, kind, text) for kind, text in wanted]
            await change.set(rows, actor=str(caller.principal_id))

    def _check_size(self, kind: str, text: str, beside: str) -> None:
        """Refuse what the section of some model has no room for.

        Args:
            beside: What shares the section with the text.
        """
        catalogue = self._context.catalogue
        for name in sorted({*catalogue.names, catalogue.default.name, UNLISTED}):
            ceiling = catalogue.sections(name)[_SECTIONS[kind]].ceiling
            if ceiling is None or not text:
                continue
            card = catalogue.model(name)
            tokens = card.per_message_overhead + (FRAMES_TOKENS if kind == SYSTEM_POLICY else 0)
            tokens += sum(
                count(SYSTEM_JOINT + one, card.tokenizer) for one in (text, beside) if one
            )
            if tokens > ceiling:
                detail = (
                    f"The text of {kind} takes {tokens} tokens with what stands beside it; model "
                    f"{name} allows {ceiling}. Shorten it, or raise the section's ceiling."
                )
                raise Problem("context-too-large", detail)

    async def _rows(
        self, caller: Caller, scope: UUID, kinds: tuple[str, ...]
    ) -> dict[str, InstructionView]:
        rows = await self._context.store.instructions(
            caller.tenant_id, [(scope, kind, None) for kind in kinds]
        )
        return {row.kind: row for row in rows}

    async def _answer(self, caller: Caller, scope: UUID, kinds: tuple[str, ...]) -> Response:
        rows = await self._rows(caller, scope, kinds)
        told: dict[str, Any] = {kind: _instruction(rows.get(kind)) for kind in kinds}
        return json_response({"object": "instructions", **told})


async def _beside(change: InstructionsChange, caller: Caller, scope: UUID, kind: str) -> list[str]:
    """Texts with one of which a new one shares its section."""
    if kind != WORKSPACE:
        return []
    if scope == caller.tenant_id:
        rows = await change.longest(kind)
    else:
        rows = await change.instructions([(caller.tenant_id, kind, None)])
    return [row.text for row in rows]


def _instruction(row: InstructionView | None) -> dict[str, Any] | None:
    if row is None:
        return None
    set_at = None if row.set_at is None else iso(row.set_at)
    return {"text": row.text, "version": row.version, "set_at": set_at}


class CaptureRoutes:
    """Which payloads are kept for a while, and reading one."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def set_posture(self, request: Request) -> Response:
        """Decide for the tenant; ``none`` also deletes what was kept."""
        caller, _ = await self._context.doorkeeper.admit(request, "admin")
        body = await read_model(request, CapturePostureBody)
        await self._context.store.set_capture_posture(
            caller.tenant_id,
            body.posture,
            body.sampled_per_mille,
            actor=str(caller.principal_id),
        )
        return json_response({"object": "capture_posture", **body.model_dump()})

    async def flag(self, request: Request) -> Response:
        """Keep the payloads of one conversation, or no longer."""
        caller, _ = await self._context.doorkeeper.admit(request, "admin")
        text = request.path_params["conversation_id"]
        conversation = await self._context.visible_conversation(caller, text)
        body = await read_model(request, CaptureFlagBody)
        await self._context.store.flag_conversation(
            caller.tenant_id,
            conversation.id,
            is_flagged=body.enabled,
            actor=str(caller.principal_id),
        )
        return json_response({"object": "capture_flag", "enabled": body.enabled})

    async def read(self, request: Request) -> Response:
        """A payload as it was sent; that it was read is written down."""
        context = self._context
        caller, _ = await context.doorkeeper.admit(request, "captures")
        check_names(request.query_params, ("step",))
        step = step_of(request.query_params)
        turn = await context.visible_turn(caller, request.path_params["turn_id"])
        reader = Reader(
            principal_id=caller.principal_id,
            key_id=caller.key_id,
            request_id=uuid_of(request_id_of(request)) or context.clock.new_id(),
            read_id=context.clock.new_id(),
        )
        found = await context.store.read_capture(caller.tenant_id, turn.id, step, reader)
        if found is None or await self._holds_deleted(turn, found.step_no):
            raise not_found()
        body = {
            "object": "capture",
            "turn_id": str(turn.id),
            "step_no": found.step_no,
            "cause": found.cause,
            "captured_at": iso(found.captured_at),
            "payload": found.payload.decode("utf-8", "replace"),
        }
        return json_response(body)

    async def _holds_deleted(self, turn: TurnView, step_no: int) -> bool:
        """Whether a message was deleted that the payload shows.

        The payload itself is deleted by whoever hears of that, a moment later.
        """
        plans = await self._context.store.plans(turn.tenant_id, turn.id)
        shown = [id_ for one in plans if one.step_no == step_no for id_ in shown_messages(one.plan)]
        facts = await self._context.store.message_facts(turn.tenant_id, shown)
        return any(known.is_deleted for known in facts.values())
