"""What surrounds every request: host check, request id, headers, time taken, errors as problems."""

import re
from collections.abc import Callable, Collection
from typing import Protocol
from uuid import UUID

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libs.clock import Clock
from libs.errors import ChatError, StoreUnavailable
from services.frontend_gateway.core import problems
from services.frontend_gateway.core.problems import Problem
from services.frontend_gateway.door import unavailable

REQUEST_ID_HEADER = "X-Request-ID"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
CLIENT_CLOSED = 499  # nobody reads it; keeps the figure of real errors clean

_COMMON_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class RequestTimes(Protocol):
    """Takes the duration of each request."""

    def __call__(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request; ``route`` is a template, never a path with ids."""
        ...


class Edge:
    """The outermost application.

    Args:
        route_of: The template of the route that answered, for the metric's label.
        allowed_hosts: Host names without port; ``*`` allows all.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        clock: Clock,
        allowed_hosts: Collection[str],
        route_of: Callable[[Scope], str],
        observe: RequestTimes,
    ) -> None:
        self._app = app
        self._clock = clock
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)
        self._route_of = route_of
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass the life cycle's messages on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock.monotonic()
        request_id, is_ours = self._request_id(scope)
        scope.setdefault("state", {}).update(request_id=request_id, is_ours=is_ours)
        status = 0
        added = [(b"x-request-id", request_id.encode()), *_COMMON_HEADERS]

        def observe(told: int) -> None:
            taken_s = self._clock.monotonic() - began
            self._observe(scope["method"], self._route_of(scope), told, taken_s)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                observe(status)  # of a stream: to its first byte
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            if self._is_allowed(scope):
                await self._app(scope, receive, send_with_headers)
            else:
                response = problem_response(Request(scope), _wrong_host(), base="")
                await response(scope, receive, send_with_headers)
        finally:
            if not status:
                observe(CLIENT_CLOSED)

    def _request_id(self, scope: Scope) -> tuple[str, bool]:
        """The id by which logs and answers name this request, and whether it was made here."""
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                text = value.decode("latin-1")
                if _REQUEST_ID.match(text):
                    return str(text), False
        return str(self._clock.new_id()), True

    def _is_allowed(self, scope: Scope) -> bool:
        if "*" in self._allowed_hosts:
            return True
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return False
        return re.sub(r":\d+\Z", "", hosts[0]).lower() in self._allowed_hosts


def _wrong_host() -> Problem:
    detail = "The header Host names a server that this one does not answer for."
    return Problem("misdirected-request", detail)


def request_id_of(request: Request) -> str:
    """The id by which logs and answers name this request."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def taken_id(request: Request) -> UUID | None:
    """The request's id for the one event that it becomes, so that whoever is told it finds that.

    None where the client chose it, since two requests may have one, and for a second event.
    """
    state = request.scope.get("state", {})
    return UUID(request_id_of(request)) if state.pop("is_ours", False) else None


def problem_response(request: Request, problem: Problem, *, base: str | None = None) -> Response:
    """The answer that tells a problem.

    Args:
        base: What the problem's type begins with, where the request's own host may not stand.
    """
    body = problems.document(
        problem,
        base_url=base_url(request) if base is None else base,
        instance=request.url.path,
        request_id=request_id_of(request),
    )
    return Response(
        orjson.dumps(body),
        status_code=problem.kind.status,
        headers={**problems.headers(problem), "Cache-Control": "no-store"},
        media_type="application/problem+json",
    )


def base_url(request: HTTPConnection) -> str:
    """Scheme and host under which the client knows this server."""
    public: str | None = request.app.state.public_url if "app" in request.scope else None
    return public or asked_url(request)


def asked_url(request: HTTPConnection) -> str:
    """Scheme and host by which this server itself was asked: of a proxy, if there is one."""
    return f"{request.url.scheme}://{request.headers.get('host', 'localhost')}"


async def on_problem(request: Request, error: Exception) -> Response:
    """A ``Problem`` raised before the response began."""
    if not isinstance(error, Problem):
        raise error
    return problem_response(request, error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What routing raises: no such path, no such method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:  # noqa: PLR2004 -- RFC 9110
        headers = {"Allow": ", ".join(_methods_of(request))}
        detail = f"This path does not know {request.method}. The header Allow lists what it knows."
        return problem_response(request, Problem("method-not-allowed", detail, headers=headers))
    if status == 404:  # noqa: PLR2004 -- RFC 9110
        detail = "There is no such path. /openapi.json lists all."
        return problem_response(request, Problem("not-found", detail))
    return problem_response(request, _our_mistake())


def _methods_of(request: Request) -> list[str]:
    """What a path knows: several routes may share it, and the router tells of the first alone."""
    path = request.scope["path"]
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.path_regex.match(path):
            found |= route.methods or set()
    return sorted(found)


async def on_chat_error(request: Request, error: Exception) -> Response:
    """A part that is away; anything else of our own is a mistake of ours."""
    if isinstance(error, StoreUnavailable):
        detail = "The database does not answer. Repeat the request; the same key is safe."
        return problem_response(request, unavailable(detail))
    return problem_response(request, _our_mistake())


async def on_mistake(request: Request, error: Exception) -> Response:
    """Anything that nobody expected; the server's log has the rest under the request id."""
    del error
    return problem_response(request, _our_mistake())


async def on_disconnect(request: Request, error: Exception) -> Response:
    """The client left while it was sending; nobody reads this."""
    del request, error
    return Response(status_code=CLIENT_CLOSED)


def _our_mistake() -> Problem:
    detail = "Something went wrong here that should not. Repeat the request; the same key is safe."
    return Problem("internal-error", detail, retry_after_s=1)


EXCEPTION_HANDLERS = {
    Problem: on_problem,
    HTTPException: on_http_exception,
    ChatError: on_chat_error,
    ClientDisconnect: on_disconnect,
    Exception: on_mistake,
}
