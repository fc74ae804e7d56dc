"""Routes of one turn, without its stream."""

from starlette.requests import Request
from starlette.responses import Response

from services.frontend_gateway.core.answers import iso
from services.frontend_gateway.core.problems import Problem
from services.frontend_gateway.core.turns import TurnView, described
from services.frontend_gateway.http.context import Context, json_response


class TurnRoutes:
    """``/v1/turns/{turn_id}``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def one(self, request: Request) -> Response:
        """The turn's record: state, reason, usage, times."""
        return json_response(described(await self._visible(request)))

    async def plan(self, request: Request) -> Response:
        """What the model was shown, as stored before the call."""
        turn = await self._visible(request)
        plans = await self._context.store.plans(turn.tenant_id, turn.id)
        if not plans:
            raise Problem("not-found", _why_no_plan(turn), turn_id=str(turn.id))
        steps = [
            {
                "step_id": str(plan.step_id),
                "step_no": plan.step_no,
                "created_at": iso(plan.created_at),
                "plan": plan.plan,
            }
            for plan in plans
        ]
        body = {
            "object": "plan",
            "turn_id": str(turn.id),
            "conversation_id": str(turn.conversation_id),
            "steps": steps,
        }
        return json_response(body)

    async def _visible(self, request: Request) -> TurnView:
        caller, _ = await self._context.doorkeeper.admit(request, "read")
        return await self._context.visible_turn(caller, request.path_params["turn_id"])


def _why_no_plan(turn: TurnView) -> str:
    if turn.has_ended:
        return "This turn has no plan: it ended before the model was to be called."
    return "This turn has no plan yet. It is made when the turn starts; ask again in a moment."
