"""Routes that change turns and messages: cancel, make again, continue, edit, delete."""

from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from libs import ids
from services.frontend_gateway.core.asking import (
    Again,
    Said,
    answer_requested,
    cancel_requested,
    edit_requested,
    message_delete_requested,
)
from services.frontend_gateway.core.problems import Problem
from services.frontend_gateway.core.turns import described
from services.frontend_gateway.http.accepted import accepted_response, key_of, options_of, turn_of
from services.frontend_gateway.http.bodies import check_text, read_counted, read_model
from services.frontend_gateway.http.context import Context, id_in_path, json_response
from services.frontend_gateway.http.models import AnswerBody, EditBody

MESSAGE = "/v1/conversations/{conversation_id}/messages/{message_id}"
CANCEL = "/v1/turns/{turn_id}/cancel"
REGENERATE = "/v1/turns/{turn_id}/regenerate"
CONTINUE = "/v1/turns/{turn_id}/continue"


class ChangeRoutes:
    """What a user does to what was said."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def cancel(self, request: Request) -> Response:
        """Ask a turn to stop; 202 with its record once the wish is durable."""
        context = self._context
        caller, _ = await context.doorkeeper.admit(request, "chat")
        turn = await context.visible_turn(caller, request.path_params["turn_id"])
        if turn.has_ended:
            detail = "The turn has ended before; there is nothing to cancel."
            raise Problem("turn-already-terminal", detail, turn_id=str(turn.id))
        await context.ask(
            request,
            caller,
            about=(CANCEL, turn.id),
            make=lambda origin: cancel_requested(origin, turn.conversation_id, turn.id),
        )
        return json_response(described(await context.visible_turn(caller, str(turn.id))), 202)

    async def regenerate(self, request: Request) -> Response:
        """Ask for another answer to the question of a turn."""
        return await self._answer(request, "regenerate", REGENERATE)

    async def go_on(self, request: Request) -> Response:
        """Ask for the rest of an unfinished answer."""
        return await self._answer(request, "continue", CONTINUE)

    async def edit(self, request: Request) -> Response:
        """Say a message again in other words, on a branch of its own."""
        context = self._context
        caller, _ = await context.doorkeeper.admit(request, "chat")
        conversation = id_in_path(request.path_params["conversation_id"], "conversation_id")
        message = id_in_path(request.path_params["message_id"], "message_id")
        key = key_of(request, required=True) or ""
        body, nul_removed = await read_counted(request, EditBody)
        check_text(body.content, "/content")
        said = Said(
            content=body.content,
            policy=body.policy,
            model=body.model,
            options=options_of(body.options),
            time_zone=body.time_zone,
            nul_removed=nul_removed,
        )
        outcome = await context.ask(
            request,
            caller,
            about=(MESSAGE, ids.turn_id(caller.tenant_id, conversation, key)),
            make=lambda origin: edit_requested(origin, conversation, key, message, said),
        )
        return accepted_response(turn_of(outcome, caller, said.options), outcome)

    async def delete(self, request: Request) -> Response:
        """Delete a message: gone from lists, plans and streams at once."""
        context = self._context
        caller, _ = await context.doorkeeper.admit(request, "chat")
        conversation = id_in_path(request.path_params["conversation_id"], "conversation_id")
        message = id_in_path(request.path_params["message_id"], "message_id")
        await context.ask(
            request,
            caller,
            about=(MESSAGE, conversation),
            of_turn=False,
            make=lambda origin: message_delete_requested(origin, conversation, message),
        )
        return Response(status_code=204)

    async def _answer(
        self, request: Request, kind: Literal["regenerate", "continue"], route: str
    ) -> Response:
        context = self._context
        caller, _ = await context.doorkeeper.admit(request, "chat")
        turn = await context.visible_turn(caller, request.path_params["turn_id"])
        key = key_of(request, required=True) or ""
        body = await read_model(request, AnswerBody)
        options = options_of(body.options)
        again = Again(kind, turn.id, body.policy, body.model, options)
        conversation = turn.conversation_id
        outcome = await context.ask(
            request,
            caller,
            about=(route, ids.turn_id(caller.tenant_id, conversation, key)),
            make=lambda origin: answer_requested(origin, conversation, key, again),
        )
        return accepted_response(turn_of(outcome, caller, options), outcome)
