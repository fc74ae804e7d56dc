"""Route of one turn's record, without its stream."""

from starlette.requests import Request
from starlette.responses import Response

from services.frontend_gateway.core.turns import described
from services.frontend_gateway.http.context import Context, json_response


class TurnRoutes:
    """``/v1/turns/{turn_id}``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def one(self, request: Request) -> Response:
        """The turn's record: state, reason, usage, times."""
        caller, _ = await self._context.doorkeeper.admit(request, "read")
        turn = await self._context.visible_turn(caller, request.path_params["turn_id"])
        return json_response(described(turn))
