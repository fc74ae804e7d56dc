"""Routes of operators: the deployment by ids, states, counts and times, and three acts."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from libs.operating import Refusal
from services.frontend_gateway.core.cursors import check_names, uuid_of
from services.frontend_gateway.core.problems import FieldError, Problem, not_found
from services.frontend_gateway.http.bodies import read_model
from services.frontend_gateway.http.context import Context, id_in_path, json_response
from services.frontend_gateway.http.openapi_ops import PARAMETERS, PREFIX
from services.frontend_gateway.http.ops_models import OpsEndBody, OpsReapBody, OpsRedriveBody
from services.frontend_gateway.operators import Document, OperatorActs, OperatorReads

MAX_QUERY_CHARACTERS = 255  # the longest idempotency key
MAX_REASON_CHARACTERS = 40


class OperatorRoutes:
    """``/v1/ops/…``, for keys with the scope admin."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """All of them."""
        turn, letter = f"{PREFIX}/turns/{{turn_id}}", f"{PREFIX}/dead-letters/{{dead_letter_id}}"
        return [
            Route(f"{PREFIX}/overview", self.overview, methods=["GET"]),
            Route(f"{PREFIX}/services", self.services, methods=["GET"]),
            Route(f"{PREFIX}/outbox", self.outbox, methods=["GET"]),
            Route(f"{PREFIX}/dead-letters", self.dead_letters, methods=["GET"]),
            Route(f"{PREFIX}/leases", self.leases, methods=["GET"]),
            Route(f"{PREFIX}/acts", self.acts, methods=["GET"]),
            Route(f"{PREFIX}/turns", self.turns, methods=["GET"]),
            Route(f"{PREFIX}/search", self.search, methods=["GET"]),
            Route(turn, self.story, methods=["GET"]),
            Route(f"{turn}/end", self.end, methods=["POST"]),
            Route(f"{turn}/reap", self.reap, methods=["POST"]),
            Route(letter, self.dead_letter, methods=["GET"]),
            Route(f"{letter}/redrive", self.redrive, methods=["POST"]),
        ]

    async def overview(self, request: Request) -> Response:
        """The figures of the whole deployment, each with its age."""
        return json_response(await (await self._reads(request)).overview())

    async def services(self, request: Request) -> Response:
        """Every process that says that it runs."""
        return _list(await (await self._reads(request)).services())

    async def outbox(self, request: Request) -> Response:
        """Events that wait for the broker, and those that it will never take."""
        reads = await self._reads(request)
        return _list(await reads.outbox(), dead=await reads.outbox_dead())

    async def dead_letters(self, request: Request) -> Response:
        """Records that could not be handled, the newest first."""
        return _list(await (await self._reads(request)).dead_letters())

    async def dead_letter(self, request: Request) -> Response:
        """Where a record stood and why it was set aside."""
        reads = await self._reads(request)
        found = await reads.dead_letter(_letter_id(request))
        if found is None:
            raise not_found()
        return json_response({"object": "dead_letter", "dead_letter": found})

    async def leases(self, request: Request) -> Response:
        """Workers of the model gateway, and what waits or runs there."""
        reads = await self._reads(request)
        return _list(await reads.leases(), work=await reads.work())

    async def acts(self, request: Request) -> Response:
        """What operators did, the newest first."""
        return _list(await (await self._reads(request)).acts())

    async def turns(self, request: Request) -> Response:
        """Open turns, or ended ones of the last day."""
        reads = await self._reads(request, "status", "reason")
        status, reason = request.query_params.get("status"), request.query_params.get("reason")
        if status is not None and status not in PARAMETERS["status"]["schema"]["enum"]:
            raise _wrong("status", "is no state of a turn")
        if reason is not None and not _is_name(reason):
            raise _wrong("reason", "is no reason")
        return _list(await reads.turns(status, reason))

    async def search(self, request: Request) -> Response:
        """What an id or an idempotency key means."""
        reads = await self._reads(request, "q")
        text = request.query_params.get("q", "").strip()
        if not 1 <= len(text) <= MAX_QUERY_CHARACTERS or "\x00" in text:
            raise _wrong("q", f"must have 1 to {MAX_QUERY_CHARACTERS} characters")
        return json_response(await reads.search(text))

    async def story(self, request: Request) -> Response:
        """Everything about one turn, over all services."""
        reads = await self._reads(request)
        found = await reads.story(id_in_path(request.path_params["turn_id"], "turn_id"))
        if found is None:
            raise not_found()
        return json_response(found)

    async def end(self, request: Request) -> Response:
        """End a turn without an answer, or say what that would do."""
        acts = await self._acts(request)
        turn = await self._known_turn(request)
        body = await read_model(request, OpsEndBody)
        return _done(await acts.end_turn(turn, body.reason, dry_run=body.dry_run))

    async def reap(self, request: Request) -> Response:
        """Let the reaper end a turn now, or say what that would do."""
        acts = await self._acts(request)
        turn = await self._known_turn(request)
        body = await read_model(request, OpsReapBody)
        try:
            return _done(await acts.reap_turn(turn, dry_run=body.dry_run))
        except Refusal as refusal:
            raise _impossible(refusal) from None

    async def redrive(self, request: Request) -> Response:
        """Let its service handle a dead letter again, or say what that would do."""
        acts = await self._acts(request)
        letter = _letter_id(request)
        body = await read_model(request, OpsRedriveBody)
        try:
            done = await acts.redrive(body.service, letter, dry_run=body.dry_run)
        except Refusal as refusal:
            raise _impossible(refusal) from None
        if done is None:
            raise not_found()
        return json_response(done)

    async def _reads(self, request: Request, *names: str) -> OperatorReads:
        await self._context.doorkeeper.admit(request, "admin")
        check_names(request.query_params, names)
        return self._context.operators.reads

    async def _acts(self, request: Request) -> OperatorActs:
        caller, _ = await self._context.doorkeeper.admit(request, "admin")
        check_names(request.query_params, ())
        return self._context.operators.acting_as(f"key:{caller.key_id}")

    async def _known_turn(self, request: Request) -> UUID:
        turn = id_in_path(request.path_params["turn_id"], "turn_id")
        if await self._context.operators.reads.story(turn) is None:
            raise not_found()
        return turn


def _letter_id(request: Request) -> UUID:
    found = uuid_of(request.path_params["dead_letter_id"])
    if found is None:
        raise not_found()
    return found


def _is_name(text: str) -> bool:
    letters = text.replace("_", "")
    return 1 <= len(text) <= MAX_REASON_CHARACTERS and letters.isascii() and letters.islower()


def _list(rows: Sequence[Document], **beside: Any) -> Response:
    return json_response({"object": "list", "data": rows, **beside})


def _done(done: Document | None) -> Response:
    if done is None:
        raise Problem("turn-already-terminal", "The turn has ended already; its end is final.")
    return json_response(done)


def _impossible(refusal: Refusal) -> Problem:
    return Problem("not-possible", f"This cannot be done: {refusal}.")


def _wrong(name: str, why: str) -> Problem:
    detail = f"The parameter {name} {why}."
    return Problem("validation-error", detail, errors=(FieldError(name, why),))
