"""A client of the HTTP interface that behaves as ours should: it keeps its key, and resumes."""

import asyncio
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

import aiohttp

from tests.rig.deletions import look_again
from tests.rig.ledger import Act, Ledger, Post, Reply, StreamEvent, StreamLog, marked

ATTEMPTS = 60
"""Tries of one request at most; with the pause they outlast every restart of the lane."""

PAUSE_S = 0.25
TIMEOUT = aiohttp.ClientTimeout(total=20, connect=3)
STREAM_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=3, sock_read=40)
RETRIED = frozenset({0, 429, 500, 502, 503, 504})
RESPONSE_FAULTS = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)


class Client:
    """One API key's client, over one or more gateways; it starts with the first of them."""

    def __init__(
        self, session: aiohttp.ClientSession, gateways: Sequence[str], *, key: str, tenant_id: UUID
    ) -> None:
        self._session = session
        self._gateways = list(gateways)
        self._headers = {"Authorization": f"Bearer {key}"}
        self.ledger = Ledger(tenant_id)

    def _url(self, path: str, turn: int) -> str:
        return self._gateways[turn % len(self._gateways)] + path

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        headers: dict[str, str] | None = None,
        gateway: int = 0,
    ) -> Reply:
        """One request, one try; status 0 where no answer came."""
        try:
            async with self._session.request(
                method,
                self._url(path, gateway),
                json=json,
                headers={**self._headers, **(headers or {})},
                timeout=TIMEOUT,
            ) as response:
                is_json = "json" in response.headers.get("Content-Type", "")
                body = await response.json(content_type=None) if is_json else {}
                found = {name.lower(): value for name, value in response.headers.items()}
                return Reply(response.status, body, found)
        except RESPONSE_FAULTS:
            return Reply(0, {}, {})

    async def get(self, path: str) -> dict[str, Any]:
        """A read that is repeated until it succeeds, from any gateway."""
        for turn in range(ATTEMPTS):
            reply = await self.request("GET", path, gateway=turn)
            if reply.status not in RETRIED:
                assert reply.status == 200, (path, reply.status, reply.body)
                return reply.body
            await asyncio.sleep(PAUSE_S)
        msg = f"GET {path} got no answer in {ATTEMPTS} tries"
        raise AssertionError(msg)

    async def conversation(self) -> UUID:
        """A new conversation; the key makes the repeat of a lost answer safe."""
        key = {"Idempotency-Key": uuid.uuid4().hex}
        for turn in range(ATTEMPTS):
            reply = await self.request(
                "POST", "/v1/conversations", json={}, headers=key, gateway=turn
            )
            if reply.status not in RETRIED:
                assert reply.status in (200, 201, 202), (reply.status, reply.body)
                return UUID(reply.body["id"])
            await asyncio.sleep(PAUSE_S)
        msg = f"no conversation was created in {ATTEMPTS} tries"
        raise AssertionError(msg)

    def note(self, conversation: UUID, text: str, *, key: str | None = None) -> Post:
        """Open a page of the ledger for a message that is about to be sent, with the canary."""
        post = Post(conversation, key or uuid.uuid4().hex, marked(text, self.ledger.tenant_id))
        self.ledger.posts.append(post)
        return post

    async def send_once(self, post: Post, *, gateway: int = 0) -> Reply:
        """One try to post; its answer goes into the ledger."""
        reply = await self.request(
            "POST",
            f"/v1/conversations/{post.conversation_id}/messages",
            json={"content": post.text},
            headers={"Idempotency-Key": post.key},
            gateway=gateway,
        )
        post.replies.append(reply)
        return reply

    async def send(self, post: Post, *, gateway: int = 0) -> Post:
        """Post until it is accepted; the same key every time, another gateway after a failure."""
        for turn in range(ATTEMPTS):
            reply = await self.send_once(post, gateway=gateway + turn)
            if reply.is_accepted:
                return post
            assert reply.status in RETRIED, (reply.status, reply.body)
            await asyncio.sleep(PAUSE_S)
        msg = f"no acceptance in {ATTEMPTS} tries"
        raise AssertionError(msg)

    async def say(self, conversation: UUID, text: str, *, gateway: int = 0) -> Post:
        """Post a message and read its stream to the end."""
        post = await self.send(self.note(conversation, text), gateway=gateway)
        await self.follow(post, gateway=gateway)
        return post

    async def delete_message(self, conversation: UUID, message: UUID) -> Act:
        """Delete a message, as often as it takes, and look whether it still shows anywhere."""
        act = Act("delete_message", conversation, message)
        self.ledger.acts.append(act)
        path = f"/v1/conversations/{conversation}/messages/{message}"
        for turn in range(ATTEMPTS):
            act.replies.append(await self.request("DELETE", path, gateway=turn))
            if act.replies[-1].status not in RETRIED:
                assert act.is_done, (act.replies[-1].status, act.replies[-1].body)
                await self.look_again()
                return act
            await asyncio.sleep(PAUSE_S)
        msg = f"message {message} was not deleted in {ATTEMPTS} tries"
        raise AssertionError(msg)

    async def look_again(self) -> None:
        """Whether anything is shown, by any gateway, of what this client has deleted."""
        for gateway in range(len(self._gateways)):
            await look_again(partial(self._ask, gateway), self.ledger)

    async def _ask(self, gateway: int, method: str, path: str, json: Any) -> Reply:
        return await self.request(method, path, json=json, gateway=gateway)

    async def follow(self, post: Post, *, gateway: int = 0) -> StreamLog:
        """Read a turn's stream until its terminal event, coming back as often as it breaks."""
        turn_id = post.turn_id
        assert turn_id is not None
        log = post.stream = post.stream or StreamLog(turn_id)
        for turn in range(ATTEMPTS):
            if log.done is not None:
                return log
            await self.read(log, gateway=gateway + turn)
            if log.done is None:
                log.reconnects += 1
                await asyncio.sleep(PAUSE_S)
        assert log.done is not None, f"no terminal event of {turn_id} in {ATTEMPTS} connections"
        return log

    async def read(self, log: StreamLog, *, gateway: int = 0, at_most: int | None = None) -> None:
        """One connection: read events into the log until it ends, breaks, or had ``at_most``."""
        headers = {**self._headers, "Accept": "text/event-stream"}
        if log.last_id is not None:
            headers["Last-Event-ID"] = log.last_id
        url = self._url(f"/v1/turns/{log.turn_id}/events", gateway)
        try:
            async with self._session.get(url, headers=headers, timeout=STREAM_TIMEOUT) as response:
                if response.status in RETRIED or response.status == 204:
                    return
                assert response.status == 200, (response.status, await response.text())
                await _read_events(response, log, at_most)
        except RESPONSE_FAULTS:
            return


async def _read_events(
    response: aiohttp.ClientResponse, log: StreamLog, at_most: int | None
) -> None:
    seen = 0
    fields: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\r\n")
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            log.events.append(
                StreamEvent(fields.get("id", ""), fields["event"], fields["data"].encode())
            )
            seen += 1
            if fields["event"] == "done" or seen == at_most:
                return
        fields = {}
