"""Clients as they should be: they keep their key, come back to a cut stream, and keep a ledger."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import orjson

from tests.rig.asking import ANSWERS, GONE, looks, wanted, way, wish
from tests.rig.deletions import look_again
from tests.rig.ledger import Act, Ledger, Post, Reply, StreamEvent, StreamLog
from tests.sim.house import Running, SimHouse
from tests.sim.process import wall_time

RETRIED = frozenset({0, 429, 500, 502, 503, 504})
REFUSED = frozenset({404, 409})
"""What was asked for does not go together with what else was done to the conversation."""

CANCELLING_S = 1.5
"""For so long after a client has cancelled, faults that strike a cancelled turn may strike."""

PAUSE_S = 0.5
PATIENCE_S = 20.0
"""Longest wait for one answer, or for the next bytes of a stream."""

ATTEMPTS = 80


class Exchange:
    """One HTTP exchange with one gateway, over the application's own interface."""

    def __init__(self, running: Running, scope: dict[str, Any], body: bytes) -> None:
        self._body: bytes | None = body
        self._came: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self._left = asyncio.Event()
        task = running.process.spawn(running.asgi(scope, self._receive, self._send))
        task.add_done_callback(lambda _task: self._came.put_nowait(None))

    def leave(self) -> None:
        """Close the connection."""
        self._left.set()

    async def next(self) -> Mapping[str, Any] | None:
        """The next message of the answer; None where the connection ended or nothing came."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._came.get()
        except TimeoutError:
            return None

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        self._came.put_nowait(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._came.put_nowait(None)


class SimClient:
    """One API key's client."""

    def __init__(self, house: SimHouse, *, key: str, tenant_id: UUID) -> None:
        self._house = house
        self._random = house.world.random
        self._key = key
        self.ledger = Ledger(tenant_id)

    async def conversation(self) -> UUID:
        """A new conversation, asked for until there is one."""
        key = self._new_key()
        for _ in range(ATTEMPTS):
            reply = await self._request("POST", "/v1/conversations", {}, {"idempotency-key": key})
            if reply.status not in RETRIED:
                assert reply.status in (200, 201, 202), (reply.status, reply.body)
                return UUID(reply.body["id"])
            await asyncio.sleep(PAUSE_S)
        msg = "no conversation was made"
        raise AssertionError(msg)

    def note(self, conversation: UUID, text: str) -> Post:
        """Open a page of the ledger."""
        post = Post(conversation, self._new_key(), text)
        self.ledger.posts.append(post)
        return post

    async def send(self, post: Post) -> None:
        """Post until it is accepted or refused for good, with the same key every time."""
        method, path, body = wanted(post)
        is_plain = post.kind == "message" and post.policy is None
        with self._house.world.during(wish(post)):
            for _ in range(ATTEMPTS):
                reply = await self._request(method, path, body, {"idempotency-key": post.key})
                post.replies.append(reply)
                if reply.is_accepted or (reply.status in REFUSED and not is_plain):
                    return
                assert reply.status in RETRIED, (reply.status, reply.body)
                await asyncio.sleep(PAUSE_S)
        msg = f"no acceptance of {post.key}"
        raise AssertionError(msg)

    async def act(self, act: Act) -> None:
        """Do it until it is done or refused for good, and look whether it shows."""
        self.ledger.acts.append(act)
        method, path = way(act)
        if act.kind == "cancel":
            act.shown_before = self.ledger.shown_of(act.target)
            self._house.world.cancel_for(CANCELLING_S)
        with self._house.world.during(act.kind):
            for _ in range(ATTEMPTS):
                reply = await self._request(method, path, None, {})
                act.replies.append(reply)
                if reply.status not in RETRIED:
                    assert reply.status in ANSWERS[act.kind], (act.kind, reply.status, reply.body)
                    break
                await asyncio.sleep(PAUSE_S)
        if act.is_done:
            act.done_at = wall_time(asyncio.get_running_loop().time())
            act.shown_after += await self._shown(act)

    async def _shown(self, act: Act) -> list[str]:
        """Where something is still shown that this client has just deleted."""
        found = []
        for look in looks(act, self.ledger):
            if look.is_shown_by(await self._request(look.method, look.path, None, {})):
                found.append(look.where)
        return found

    async def instruct(self, conversation: UUID | None, kind: str, text: str) -> bool:
        """Set what the model is told in all conversations of the tenant, or in one; one try.

        Whether it was set: it may be too long for the section of a model, or come too late.
        """
        scope = "" if conversation is None else f"/conversations/{conversation}"
        reply = await self._request("PUT", f"/v1{scope}/instructions", {kind: text}, {})
        assert reply.status in RETRIED | {200, 404, 422}, (reply.status, reply.body)
        return reply.status == 200

    async def look_again(self) -> None:
        """Whether anything shows, once all is done, what this client has deleted."""
        await look_again(self._ask, self.ledger)

    async def _ask(self, method: str, path: str, json: Any) -> Reply:
        return await self._request(method, path, json, {})

    async def may_see(self, turn_id: UUID) -> bool:
        """Whether anything is shown of a turn that belongs to somebody else."""
        for path in (f"/v1/turns/{turn_id}", f"/v1/turns/{turn_id}/plan"):
            reply = await self._request("GET", path, None, {})
            if reply.status != 404 and reply.status not in RETRIED:
                return True
        return False

    async def follow(self, post: Post, *, leaves_after: int | None = None) -> None:
        """Read the stream to its end; ``leaves_after`` so many events once, and come back."""
        assert post.turn_id is not None
        log = post.stream = post.stream or StreamLog(post.turn_id)
        for _ in range(ATTEMPTS):
            if log.done is not None or log.gone is not None:
                return
            await self._read(log, leaves_after)
            leaves_after = None
            if log.done is None and log.gone is None:
                if log.last_id is not None:
                    self._house.world.use("client", "resume")
                log.reconnects += 1
                await asyncio.sleep(self._random.uniform(0, PAUSE_S))
        msg = f"no terminal event of {log.turn_id} in {ATTEMPTS} connections"
        raise AssertionError(msg)

    async def _read(self, log: StreamLog, at_most: int | None) -> None:
        headers = {"accept": "text/event-stream"}
        if log.last_id is not None:
            headers["last-event-id"] = log.last_id
        async with self._exchange("GET", f"/v1/turns/{log.turn_id}/events", b"", headers) as one:
            if one is None or (head := await one.next()) is None:
                return
            if head["status"] in RETRIED or head["status"] == 204:
                return
            if head["status"] in GONE:
                log.gone = head["status"]
                return
            assert head["status"] == 200, head
            buffer, seen = b"", 0
            while (message := await one.next()) is not None:
                buffer += message.get("body", b"")
                *whole, buffer = buffer.split(b"\n\n")
                for raw in whole:
                    event = _event(raw.decode())
                    if event is None:
                        continue
                    log.events.append(event)
                    seen += 1
                    if event.event == "done" or seen == at_most:
                        return

    async def _request(
        self, method: str, path: str, json: Any, headers: Mapping[str, str]
    ) -> Reply:
        async with self._exchange(
            method, path, orjson.dumps(json), {**headers, "content-type": "application/json"}
        ) as one:
            if one is None or (head := await one.next()) is None:
                return Reply(0, {}, {})
            body = b""
            while (message := await one.next()) is not None:
                body += message.get("body", b"")
                if not message.get("more_body"):
                    return _reply(head, body)
            return Reply(0, {}, {})

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[Exchange | None]:
        gateways = self._house.gateways()
        if not gateways:
            await asyncio.sleep(PAUSE_S)
            yield None
            return
        running = self._random.choice(gateways)
        path, _, query = path.partition("?")
        sent = {"host": "localhost", "authorization": f"Bearer {self._key}", **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        exchange = Exchange(running, scope, body)
        try:
            yield exchange
        finally:
            exchange.leave()

    def _new_key(self) -> str:
        return self._random.randbytes(12).hex()


def _reply(head: Mapping[str, Any], body: bytes) -> Reply:
    headers = {name.decode().lower(): value.decode() for name, value in head["headers"]}
    decoded = orjson.loads(body) if "json" in headers.get("content-type", "") else {}
    return Reply(head["status"], decoded, headers)


def _event(raw: str) -> StreamEvent | None:
    fields: dict[str, str] = {}
    for line in raw.split("\n"):
        name, _, value = line.partition(":")
        fields[name] = value.removeprefix(" ")
    if "data" not in fields:
        return None
    return StreamEvent(fields.get("id", ""), fields["event"], fields["data"].encode())
