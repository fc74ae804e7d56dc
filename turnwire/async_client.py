"""The asyncio client: asks again where that is safe, and reads streams to their end."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from time import monotonic
from typing import Any, Self, TypeAlias, TypeVar
from uuid import UUID

import httpx

from turnwire import calls
from turnwire.calls import Ask
from turnwire.errors import TurnwireError, Unavailable
from turnwire.models import (
    AcceptedTurn,
    Answer,
    Branch,
    Conversation,
    Message,
    Policy,
    Turn,
    TurnPlan,
)
from turnwire.patience import Patience, Trying, is_worth_repeating, lost, problem_of
from turnwire.streams import Following, StreamEvent, Watching

_PLAIN = Ask()

T = TypeVar("T")
Follower: TypeAlias = Following | Watching
Id: TypeAlias = UUID | str

USER_AGENT = "turnwire-python"


class AsyncAnswerStream:
    """The running answer of one turn; iterate it for its events, then ask for the ``result``.

    A lost connection is opened again behind the newest event, so every event comes once.
    """

    def __init__(self, http: httpx.AsyncClient, patience: Patience, following: Following) -> None:
        self._http = http
        self._patience = patience
        self._following = following

    @property
    def text(self) -> str:
        """What has been shown so far."""
        return self._following.answer.text

    @property
    def last_id(self) -> str:
        """Id of the newest event: where ``after=`` goes on."""
        return self._following.answer.last_id

    @property
    def status(self) -> str:
        """The turn's state as told last."""
        return self._following.answer.status

    @property
    def queue_position(self) -> int | None:
        """Turns before this one; None once it runs."""
        return self._following.answer.queue_position

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        """The events up to the last one, ``done``.

        Raises:
            TurnwireError: The stream cannot be had, or its text is damaged.
        """
        async for event in _events(self._http, self._patience, self._following):
            yield event

    async def result(self) -> Answer:
        """Read what is left, and give the answer in its final state."""
        async for _ in self:
            pass
        return self._following.result()


class AsyncClient:
    """One Turnwire, spoken to with one API key.

    Every request may be repeated: what starts work carries an idempotency key, which is made here
    if the caller gives none. So a request without an answer, or with "later" as its answer, is sent
    again until ``Patience.away_s`` is over.

    Args:
        url: Of the gateway, such as ``http://127.0.0.1:8080``.
        key: The API key; scopes ``chat`` and ``read`` are enough for all but instructions.
        transport: For tests and special networks; httpx's own if left out.

    Example::

        async with AsyncClient("http://127.0.0.1:8080", key) as turnwire:
            conversation = await turnwire.create_conversation()
            answer = await turnwire.ask(conversation.id, "When does the ferry leave?")
            print(answer.text)
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        patience: Patience | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._patience = patience or Patience()
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {key}", "User-Agent": USER_AGENT},
            timeout=self._patience.of_answers,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    # Conversations

    async def create_conversation(
        self,
        *,
        title: str | None = None,
        policy: Policy | None = None,
        model: str | None = None,
        key: str | None = None,
    ) -> Conversation:
        """Make a conversation; the same ``key`` gives the same one."""
        return await self._send(calls.create_conversation(title, policy, model, key))

    async def conversation(self, conversation_id: Id) -> Conversation:
        """One conversation."""
        return await self._send(calls.conversation(conversation_id))

    async def conversations(self, *, query: str | None = None) -> AsyncIterator[Conversation]:
        """All conversations, newest first.

        Args:
            query: Part of their titles; case does not matter.
        """
        after: str | None = None
        while True:
            page = await self._send(calls.conversations(query, after))
            for item in page.items:
                yield item
            if not page.has_more or not page.items:
                return
            after = page.last_id

    async def update_conversation(
        self, conversation_id: Id, *, title: str | None = None, policy: Policy | None = None
    ) -> Conversation:
        """Rename a conversation, or change what later messages do while a turn runs."""
        return await self._send(calls.update_conversation(conversation_id, title, policy))

    async def delete_conversation(self, conversation_id: Id) -> None:
        """Delete a conversation: gone at once, restorable for some minutes, then for ever."""
        await self._send(calls.delete_conversation(conversation_id))

    async def restore_conversation(self, conversation_id: Id) -> Conversation:
        """Take a deletion back; ``restore-expired`` once it is too late."""
        return await self._send(calls.restore_conversation(conversation_id))

    async def messages(
        self, conversation_id: Id, *, branch: Id | None = None
    ) -> AsyncIterator[Message]:
        """All messages of a branch, oldest first.

        Args:
            branch: None: the active one.
        """
        after: str | None = None
        while True:
            page = await self._send(calls.messages(conversation_id, branch, after))
            for item in page.items:
                yield item
            if not page.has_more or not page.items:
                return
            after = page.last_id

    async def branches(self, conversation_id: Id) -> list[Branch]:
        """The branches of a conversation."""
        return list((await self._send(calls.branches(conversation_id))).items)

    async def watch(self, conversation_id: Id) -> AsyncIterator[StreamEvent]:
        """What happens in a conversation, told to a second view of it, until it is deleted.

        Every connection begins with ``state``; compare it with what you know.
        """
        watching = Watching(UUID(str(conversation_id)), self._patience, now_s=monotonic())
        async for event in _events(self._http, self._patience, watching):
            yield event

    # Turns

    async def post(
        self, conversation_id: Id, content: str, *, parent: Id | None = None, ask: Ask = _PLAIN
    ) -> AcceptedTurn:
        """Post a message; returns once the turn is durable, before its answer.

        Args:
            parent: The turn that the message follows; None: the newest.
        """
        return await self._send(calls.post(conversation_id, content, parent, ask))

    async def ask(
        self, conversation_id: Id, content: str, *, parent: Id | None = None, ask: Ask = _PLAIN
    ) -> Answer:
        """Post a message and read its answer to the end, whatever the end is."""
        turn = await self.post(conversation_id, content, parent=parent, ask=ask)
        return await self.follow(turn.turn_id).result()

    async def edit(
        self, conversation_id: Id, message_id: Id, content: str, *, ask: Ask = _PLAIN
    ) -> AcceptedTurn:
        """Say a user message again: a new turn on a new branch; the old one stays readable."""
        return await self._send(calls.edit(conversation_id, message_id, content, ask))

    async def delete_message(self, conversation_id: Id, message_id: Id) -> None:
        """Delete a message: gone at once from lists, plans and streams."""
        await self._send(calls.delete_message(conversation_id, message_id))

    async def regenerate(self, turn_id: Id, *, ask: Ask = _PLAIN) -> AcceptedTurn:
        """Ask for another answer to the same user message."""
        return await self._send(calls.regenerate(turn_id, ask))

    async def continue_turn(self, turn_id: Id, *, ask: Ask = _PLAIN) -> AcceptedTurn:
        """Go on with an answer that was cut; only with models that can."""
        return await self._send(calls.continue_(turn_id, ask))

    async def cancel(self, turn_id: Id) -> Turn:
        """Ask for a turn's end; it comes within two seconds, and what was shown stays."""
        return await self._send(calls.cancel(turn_id))

    async def turn(self, turn_id: Id) -> Turn:
        """A turn's record."""
        return await self._send(calls.turn(turn_id))

    def follow(self, turn_id: Id, *, after: str = "") -> AsyncAnswerStream:
        """The stream of a turn.

        Args:
            after: Id of the last event that is known already; only what follows is told.
        """
        following = Following(UUID(str(turn_id)), self._patience, now_s=monotonic(), after=after)
        return AsyncAnswerStream(self._http, self._patience, following)

    # Evidence

    async def plan(self, turn_id: Id, *, step: int | None = None) -> TurnPlan:
        """What the model was shown, and what was left out and why."""
        return await self._send(calls.plan(turn_id, step))

    async def diff(
        self, turn_id: Id, *, against: Id | None = None, step: int | None = None
    ) -> dict[str, Any]:
        """How a turn's plan differs from another one's.

        Args:
            against: Another turn; None: the one before it on its branch.
        """
        return await self._send(calls.diff(turn_id, against, step))

    async def explain(
        self,
        turn_id: Id,
        *,
        text: str | None = None,
        message_id: Id | None = None,
        step: int | None = None,
    ) -> dict[str, Any]:
        """Whether the model was shown a text or a message, and where; else why not."""
        return await self._send(calls.explain(turn_id, text, message_id, step))

    async def replay(self, turn_id: Id, *, step: int | None = None) -> dict[str, Any]:
        """Whether the stored rows still give the bytes that were sent."""
        return await self._send(calls.replay(turn_id, step))

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A document that this client has no types for; it must be safe to ask twice."""
        return await self._send(calls.document(method, path, query=query, body=body))

    async def _send(self, call: calls.Call[T]) -> T:
        trying = Trying(self._patience, monotonic())
        is_repeat = False
        while True:
            error: TurnwireError | None
            try:
                response = await self._http.request(
                    call.method,
                    call.path,
                    headers=call.headers,
                    params=call.query,
                    json=call.body,
                )
            except httpx.TransportError as failure:
                error = lost(failure, key=call.key)
            else:
                error = problem_of(response, key=call.key)
                if error is None:
                    return call.read(response)
                if call.was_done(error, is_repeat=is_repeat):
                    return call.read(response) if call.then is None else await self._send(call.then)
            if not is_worth_repeating(error):
                raise error
            is_repeat = is_repeat or isinstance(error, Unavailable)
            await asyncio.sleep(trying.pause_after(error, monotonic()))


async def _events(
    http: httpx.AsyncClient, patience: Patience, follower: Follower
) -> AsyncIterator[StreamEvent]:
    """What connections bring, one after the other, until the follower has all."""
    while not follower.is_over:
        headers = follower.headers()
        try:
            async with http.stream(
                "GET", follower.path, headers=headers, timeout=patience.of_streams
            ) as response:
                if not response.is_success or response.status_code == httpx.codes.NO_CONTENT:
                    await response.aread()
                if follower.opened(response):
                    async for chunk in response.aiter_bytes():
                        for event in follower.feed(chunk, now_s=monotonic()):
                            yield event
                        if not follower.is_reading:
                            break
        except httpx.TransportError as error:
            follower.broke_off(error)
        if not follower.is_over:
            await asyncio.sleep(follower.pause(now_s=monotonic()))
