"""What the command line asks the gateway over HTTP, and how it holds on to a stream."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import httpx

from libs.errors import Retryable
from services.ops.failures import CommandFailed, ExitCode
from services.ops.sse import EventParser, StreamEvent

CONNECT_S = 5.0
ANSWER_S = 20.0  # above the 10 s in which the gateway waits for an outcome
SILENCE_S = 40.0  # of a stream; a heartbeat comes every 15 s
AWAY_S = 60.0  # how long a gateway may be gone before we give up
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 3.0
PAGE = 100
_PROBLEM_CODES: Mapping[int, ExitCode] = {
    401: ExitCode.USAGE,
    409: ExitCode.CONFLICT,
    502: ExitCode.NOT_READY,
    503: ExitCode.NOT_READY,
    504: ExitCode.NOT_READY,
}
_ONCE_MORE = frozenset({429, 502, 503, 504})

Document = dict[str, Any]


class GatewayAway(Retryable):
    """The gateway does not answer."""

    code = "gateway.away"


class _NothingLeft(Exception):
    """The turn has ended, and the client has all of it."""


class Gateway:
    """One gateway, spoken to with one API key; made by ``opened``."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url
        self._was_there = False

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, key: str) -> AsyncIterator["Gateway"]:
        """Connections to the gateway at ``url``, closed at the end."""
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        headers = {"Authorization": f"Bearer {key}", "User-Agent": "turnwire-cli"}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, trust_env=False
        ) as client:
            yield cls(client, url)

    async def create_conversation(self, key: str) -> Document:
        """A new conversation; the same ``key`` gives the same one."""
        return await self._ask("POST", "/v1/conversations", key=key, body={})

    async def post(
        self, conversation_id: str, content: str, key: str, *, options: Document | None = None
    ) -> Document:
        """Ask for an answer; the same ``key`` gives the same turn.

        Args:
            options: How the answer is made, such as ``{"temperature": 0}``.
        """
        path = f"/v1/conversations/{conversation_id}/messages"
        body = {"content": content, **({"options": options} if options else {})}
        return await self._ask("POST", path, key=key, body=body)

    async def conversation(self, conversation_id: str) -> Document:
        """One conversation."""
        return await self._ask("GET", f"/v1/conversations/{conversation_id}")

    async def messages(self, conversation_id: str) -> list[Document]:
        """All messages of a conversation, oldest first."""
        found: list[Document] = []
        query = f"limit={PAGE}&order=asc"
        while True:
            path = f"/v1/conversations/{conversation_id}/messages?{query}"
            page = await self._ask("GET", path)
            found += page["data"]
            if not page["has_more"] or not page["data"]:
                return found
            query = f"limit={PAGE}&order=asc&after={page['last_id']}"

    async def get(self, path: str) -> Document:
        """Any document that the gateway tells about itself or about a turn."""
        return await self._ask("GET", path)

    async def ask(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None
    ) -> Document:
        """Any request that may be sent twice and is answered with a document."""
        return await self._ask(method, path, body=None if body is None else dict(body))

    async def turn(self, turn_id: str) -> Document:
        """A turn's record."""
        return await self._ask("GET", f"/v1/turns/{turn_id}")

    async def plan(self, turn_id: str) -> Document:
        """A turn's plans, one a step."""
        return await self._ask("GET", f"/v1/turns/{turn_id}/plan")

    async def events(
        self, turn_id: str, *, note: Callable[[str], None], after: str = ""
    ) -> AsyncIterator[StreamEvent]:
        """The stream of a turn up to its last entry, over as many connections as it takes.

        Args:
            note: Told one line when the connection is lost.
            after: Id of the last entry that is already known.

        Raises:
            GatewayAway: It was gone for longer than ``AWAY_S``.
        """
        last, alive_at, pause_s = after, monotonic(), FIRST_PAUSE_S
        is_told = False
        while True:
            try:
                async for event in self._connection(turn_id, last):
                    last, alive_at, pause_s = event.id, monotonic(), FIRST_PAUSE_S
                    is_told = False
                    yield event
                    if event.event == "done":
                        return
            except _NothingLeft:
                return
            except (httpx.TransportError, GatewayAway) as error:
                if monotonic() - alive_at > AWAY_S:
                    raise self._away(error) from None
                if not is_told:
                    note("the connection was lost; reading on where it stopped")
                is_told = True
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
            if monotonic() - alive_at > AWAY_S:
                raise self._away(None)

    async def _connection(self, turn_id: str, last: str) -> AsyncIterator[StreamEvent]:
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        async with self._client.stream(
            "GET", f"/v1/turns/{turn_id}/events", headers=headers, timeout=timeout
        ) as response:
            if response.status_code in _ONCE_MORE:
                msg = f"the gateway answered {response.status_code}"
                raise GatewayAway(msg)
            if response.status_code == httpx.codes.NO_CONTENT:
                raise _NothingLeft
            if not response.is_success:
                await response.aread()
                raise problem_of(response)
            parser = EventParser()
            async for chunk in response.aiter_raw():
                for event in parser.feed(chunk):
                    yield event

    async def _ask(
        self, method: str, path: str, *, key: str | None = None, body: Document | None = None
    ) -> Document:
        """One request, repeated while the gateway is away; writes carry an idempotency key."""
        headers = {} if key is None else {"Idempotency-Key": key}
        began, pause_s = monotonic(), FIRST_PAUSE_S
        while True:
            failure: httpx.TransportError | None = None
            try:
                response = await self._client.request(method, path, headers=headers, json=body)
            except httpx.TransportError as error:
                if isinstance(error, httpx.ConnectError) and not self._was_there:
                    raise self._away(error) from None  # nobody ever answered: waiting hides it
                failure = error
            else:
                self._was_there = True
                if response.status_code not in _ONCE_MORE:
                    return _document_of(response)
            if monotonic() - began > AWAY_S:
                if failure is not None:
                    raise self._away(failure)
                raise problem_of(response)
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    def _away(self, error: Exception | None) -> GatewayAway:
        why = f" ({type(error).__name__})" if error is not None else ""
        return GatewayAway(
            f"No gateway answers at {self._url}{why}. Start one with `turnwire up`, or say where "
            "it is with --url or TURNWIRE_URL."
        )


def _document_of(response: httpx.Response) -> Document:
    if not response.is_success:
        raise problem_of(response)
    document: Document = response.json()
    return document


def problem_of(response: httpx.Response) -> CommandFailed:
    """The problem that an answer tells: what happened, why, what to do, and the request's id."""
    try:
        problem = response.json()
    except json.JSONDecodeError:
        problem = {}
    told = [
        str(problem[name]).rstrip(".") + "." for name in ("title", "detail") if problem.get(name)
    ]
    text = " ".join(told) or f"The gateway answered {response.status_code} without a reason."
    request_id = problem.get("request_id") or response.headers.get("x-request-id")
    if request_id:
        text += f" Request {request_id}."
    code = _PROBLEM_CODES.get(response.status_code, ExitCode.FAILED)
    return CommandFailed(text, exit_code=code)
