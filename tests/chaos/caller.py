"""One client of the load: what it does with its turn, and what it notes of it."""

import asyncio
import itertools
import random
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit
from uuid import UUID

import aiohttp
import orjson

from tests.rig.asking import (
    ANSWERS,
    GONE,
    REFUSALS,
    is_refused,
    looks,
    slug_of,
    wanted,
    way,
    wish,
)
from tests.rig.house import ApiKey
from tests.rig.ledger import (
    CANARY,
    Act,
    Ledger,
    Post,
    Reply,
    StreamEvent,
    StreamLog,
    canary_of,
    marked,
)

STORM = 20
TIMEOUT = aiohttp.ClientTimeout(total=20, connect=3)
STREAM_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=3, sock_read=40)
RESPONSE_FAULTS = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)
RETRIED = frozenset({0, 409, 429, 500, 502, 503, 504})
PROPER = frozenset({200, 201, 202, 204, 404, 409, 410})
"""Statuses of a request that was answered; 409 says that its twin is being decided, or
that it does not go together with what else was done."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0
POLL_EVERY_S = 0.5
NARROW_BYTES = 4_096
"""Receive buffer of a slow or dead reader, so that the gateway and not the kernel has to wait."""

LONGEST_LINE = 1 << 20
"""Bytes of one event's data: a snapshot holds a whole answer."""

LOTS = 10
"""Every message names one of so many lots, so that a fault can strike a tenth of them."""

TERMINAL = frozenset({"completed", "partial", "failed", "cancelled"})
AT_LENGTH = "at-length"
"""Asks the provider for an answer that is more than the buffers on the way can hold."""

UNHURRIED = "unhurried"
"""Asks it for a short answer that takes some seconds."""

WORDS = ("quay", "öre", "tide", "salt", "夜の港", "ember", "north", "🙂", "linen", "Straße", "rope")


@dataclass(slots=True)
class LoadTurn:
    """One turn as its client saw it; times in seconds since the run's start, None if it never was.

    Attributes:
        due_s: When the schedule wanted it, whatever else was going on.
        may_be_gone: Its client deletes something, so that its stream may be refused.
    """

    habit: str
    post: Post
    due_s: float
    accepted_s: float | None = None
    ended_s: float | None = None
    status: str | None = None
    may_be_gone: bool = False

    @property
    def is_accepted(self) -> bool:
        """Whether it was promised to be durable."""
        return self.accepted_s is not None


class Desk(Protocol):
    """Where callers find their gateways and hand in what they noted.

    Attributes:
        statuses: Answers by HTTP status; 0 is a broken connection.
        stare_s: Shortest and longest look of a dead reader.
        pace: What the moments are multiplied with at which something is done to a turn.
    """

    statuses: Counter[int]
    stare_s: tuple[float, float]
    pace: float

    def now_s(self) -> float:
        """Seconds since the run's start."""
        ...

    def note(self, started_s: float, *, ok: bool, kind: str) -> None:
        """Count one try."""
        ...

    def url(self, place: int) -> str:
        """The gateway at that place of the list of this moment."""
        ...

    def session(self, *, narrow: bool = False) -> aiohttp.ClientSession:
        """Connections for ordinary readers, or narrow ones."""
        ...

    async def stare(self, for_s: float) -> None:
        """Do nothing for a while."""
        ...


class Complaint(Exception):
    """An answer that no client should get."""


class Caller:
    """One tenant's key, its ledger, and all that can be done with them."""

    def __init__(self, desk: Desk, key: ApiKey, ledger: Ledger) -> None:
        self._desk = desk
        self._headers = {"Authorization": f"Bearer {key.key}"}
        self.ledger = ledger

    def note(self, conversation: UUID, dice: random.Random, *, manner: str = "") -> Post:
        """Open a page of the ledger for a message of random words.

        Args:
            manner: How it asks to be answered, such as ``AT_LENGTH``.
        """
        words = " ".join(dice.choices(WORDS, k=dice.randint(5, 60)))
        text = f"lot-{dice.randrange(LOTS)} {manner + ' ' if manner else ''}{words}"
        post = Post(conversation, new_key(dice), marked(text, self.ledger.tenant_id))
        self.ledger.posts.append(post)
        return post

    async def conversation(self, dice: random.Random) -> UUID:
        """A new conversation, asked for until there is one."""
        key = {"Idempotency-Key": new_key(dice)}
        for retry in retries(dice):
            reply = await self.request(
                "POST", "/v1/conversations", kind="create", json={}, headers=key, place=retry.no
            )
            if reply.status not in RETRIED:
                if reply.status not in (200, 201, 202):
                    raise Complaint(told(reply))
                return UUID(reply.body["id"])
            await asyncio.sleep(retry.pause_s(reply))
        msg = "retries have no end of their own"
        raise AssertionError(msg)

    async def request(
        self,
        method: str,
        path: str,
        *,
        kind: str,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        place: int = 0,
    ) -> Reply:
        """One request, one try; status 0 where no answer came."""
        desk, started_s = self._desk, self._desk.now_s()
        try:
            async with desk.session().request(
                method,
                desk.url(place) + path,
                json=json,
                headers={**self._headers, **(headers or {})},
                timeout=TIMEOUT,
            ) as response:
                reply = await _reply(response)
        except RESPONSE_FAULTS:
            reply = Reply(0, {}, {})
        desk.statuses[reply.status] += 1
        is_promised = slug_of(reply) in REFUSALS.get(kind, ())
        desk.note(started_s, ok=reply.status in PROPER or is_promised, kind=kind)
        return reply

    async def ask(self, method: str, path: str, body: Any) -> Reply:
        """One request, one try, to see what is shown after all is done."""
        return await self.request(method, path, kind="look", json=body)

    # One turn by each habit

    async def play(self, turn: LoadTurn, dice: random.Random) -> None:
        """Send the turn's message and see its end."""
        habits = {
            "json": self._json,
            "sse": self._sse,
            "resuming": self._resuming,
            "slow": self._slow,
            "dead": self._dead,
            "duplicate": self._duplicate,
            "storm": self._storm,
        }
        await habits[turn.habit](turn, dice)

    async def _json(self, turn: LoadTurn, dice: random.Random) -> None:
        await self.send(turn, dice)
        await self.poll(turn, dice)
        if dice.random() < 0.3:
            await self.read_messages(turn)

    async def _sse(self, turn: LoadTurn, dice: random.Random) -> None:
        first = dice.randrange(2)
        for retry in retries(dice):
            reply = await self._send_and_read(turn, first + retry.no)
            if reply.is_accepted:
                break
            await asyncio.sleep(retry.pause_s(reply))
        log = log_of(turn)
        log.reconnects += log.done is None
        await self.follow(turn, dice, place=first + 1)

    async def _resuming(self, turn: LoadTurn, dice: random.Random) -> None:
        await self.send(turn, dice)
        log = log_of(turn)
        for cut in range(dice.randint(3, 5)):
            if log.done is None:
                await self.read(turn, log, place=cut, at_most=dice.randint(1, 6))
                log.reconnects += log.done is None
        await self.follow(turn, dice, place=dice.randrange(2))

    async def _slow(self, turn: LoadTurn, dice: random.Random) -> None:
        await self.send(turn, dice)
        await self.follow(turn, dice, place=dice.randrange(2), pause_s=dice.uniform(0.02, 0.1))

    async def _dead(self, turn: LoadTurn, dice: random.Random) -> None:
        await self.send(turn, dice)
        await self._stare(turn.post, dice.randrange(2), for_s=dice.uniform(*self._desk.stare_s))
        await self.follow(turn, dice, place=dice.randrange(2))

    async def _duplicate(self, turn: LoadTurn, dice: random.Random) -> None:
        if dice.random() < 0.5:
            await asyncio.gather(self.send(turn, dice), self.send(turn, dice))
        else:
            # The client loses patience, whatever became of its request.
            lost = asyncio.create_task(self._post(turn.post, dice.randrange(2)))
            await asyncio.wait([lost], timeout=dice.uniform(0.001, 0.05))
            lost.cancel()
            (reply,) = await asyncio.gather(lost, return_exceptions=True)
            turn.post.replies.append(reply if isinstance(reply, Reply) else Reply(0, {}, {}))
            await self.send(turn, dice)
        await self.poll(turn, dice)
        await self.send(turn, dice)  # and once more when all is over

    async def _storm(self, turn: LoadTurn, dice: random.Random) -> None:
        await asyncio.gather(*(self.send(turn, dice) for _ in range(STORM)))
        await self.follow(turn, dice, place=dice.randrange(2))

    # The parts of it

    async def _post(self, post: Post, place: int) -> Reply:
        method, path, body = wanted(post)
        kind = "post" if wish(post) == "message" else wish(post)
        key = {"Idempotency-Key": post.key}
        return await self.request(method, path, kind=kind, json=body, headers=key, place=place)

    async def send(self, turn: LoadTurn, dice: random.Random) -> None:
        """Post until it is accepted, or refused for good as what it asks for may be.

        The same key each time, another gateway after a failure.
        """
        first = dice.randrange(2)
        for retry in retries(dice):
            reply = await self._post(turn.post, first + retry.no)
            self._take(turn, reply)
            if reply.is_accepted or is_refused(turn.post, reply):
                return
            await asyncio.sleep(retry.pause_s(reply))

    def _take(self, turn: LoadTurn, reply: Reply) -> None:
        turn.post.replies.append(reply)
        if reply.is_accepted:
            turn.accepted_s = turn.accepted_s or self._desk.now_s()
        elif is_refused(turn.post, reply):
            if slug_of(reply) == "turn-in-progress" and "turn_id" not in reply.body:
                raise Complaint("it was refused for a turn in progress that has no name")
        elif reply.status not in RETRIED:
            raise Complaint(f"its message was answered {told(reply)}")

    async def _send_and_read(self, turn: LoadTurn, place: int) -> Reply:
        """Post and read the stream in the same response, as far as it comes."""
        desk, post, started_s = self._desk, turn.post, self._desk.now_s()
        reply, ok = Reply(0, {}, {}), False
        try:
            async with desk.session().post(
                f"{desk.url(place)}/v1/conversations/{post.conversation_id}/messages",
                json={"content": post.text},
                headers={
                    **self._headers,
                    "Idempotency-Key": post.key,
                    "Accept": "text/event-stream",
                },
                timeout=STREAM_TIMEOUT,
            ) as response:
                reply = await _reply(response)
                desk.statuses[reply.status] += 1
                self._take(turn, reply)
                if reply.is_accepted:
                    await self._events_into(turn, log_of(turn), response)
                ok = reply.status in PROPER
        except RESPONSE_FAULTS:
            if not reply.status:
                desk.statuses[0] += 1
                post.replies.append(reply)
        desk.note(started_s, ok=ok, kind="stream")
        return reply

    async def follow(
        self, turn: LoadTurn, dice: random.Random, *, place: int, pause_s: float = 0.0
    ) -> None:
        """Read the stream to its end, coming back as often as it breaks."""
        log = log_of(turn)
        for retry in retries(dice):
            if log.done is not None or log.gone is not None:
                return
            reply = await self.read(turn, log, place=place + retry.no, pause_s=pause_s)
            if log.done is None:
                log.reconnects += 1
                await asyncio.sleep(retry.pause_s(reply))

    async def read(
        self,
        turn: LoadTurn,
        log: StreamLog,
        *,
        place: int,
        at_most: int | None = None,
        pause_s: float = 0.0,
    ) -> Reply:
        """One connection: events into the log until it ends, breaks, or brought ``at_most``."""
        desk, started_s = self._desk, self._desk.now_s()
        headers = {**self._headers, "Accept": "text/event-stream"}
        if log.last_id is not None:
            headers["Last-Event-ID"] = log.last_id
        reply, ok = Reply(0, {}, {}), False
        try:
            async with desk.session(narrow=pause_s > 0).get(
                f"{desk.url(place)}/v1/turns/{log.turn_id}/events",
                headers=headers,
                timeout=STREAM_TIMEOUT,
            ) as response:
                reply = Reply(response.status, {}, _lower(response.headers))
                if response.status == 200:
                    await self._events_into(turn, log, response, at_most=at_most, pause_s=pause_s)
                elif response.status in GONE and turn.may_be_gone:
                    log.gone = response.status
                elif response.status not in RETRIED:
                    reply = await _reply(response)
                ok = reply.status in PROPER
        except RESPONSE_FAULTS:
            pass
        desk.statuses[reply.status] += 1
        desk.note(started_s, ok=ok or pause_s > 0, kind="stream")  # slow ones may be thrown out
        if log.gone is None and reply.status not in RETRIED and reply.status != 200:
            raise Complaint(f"its stream after {log.last_id} was answered {told(reply)}")
        return reply

    async def _events_into(
        self,
        turn: LoadTurn,
        log: StreamLog,
        response: aiohttp.ClientResponse,
        *,
        at_most: int | None = None,
        pause_s: float = 0.0,
    ) -> None:
        seen, frames = 0, _Frames()
        while line := await response.content.readline(max_line_length=LONGEST_LINE):
            event = frames.take(line)
            if event is None:
                continue
            log.events.append(event)
            seen += 1
            if event.event == "done":
                turn.ended_s, turn.status = self._desk.now_s(), event.json["status"]
                return
            if seen == at_most:
                response.close()
                return
            if pause_s:
                await asyncio.sleep(pause_s)

    async def poll(self, turn: LoadTurn, dice: random.Random) -> None:
        """Ask for the turn until it has ended."""
        place = dice.randrange(2)
        tries = retries(dice)
        while True:
            place += 1
            reply = await self.request(
                "GET", f"/v1/turns/{turn.post.turn_id}", kind="poll", place=place
            )
            if reply.status in RETRIED:
                await asyncio.sleep(next(tries).pause_s(reply))
                continue
            if reply.status != 200:
                raise Complaint(f"an accepted turn was answered {told(reply)}")
            if reply.body["status"] in TERMINAL:
                turn.ended_s, turn.status = self._desk.now_s(), reply.body["status"]
                return
            await asyncio.sleep(POLL_EVERY_S * dice.uniform(0.5, 1.5))

    async def read_messages(self, turn: LoadTurn) -> None:
        """One page of the conversation: no other tenant's canary in it."""
        path = f"/v1/conversations/{turn.post.conversation_id}/messages"
        reply = await self.request("GET", path, kind="read")
        if reply.status in RETRIED:
            return
        if reply.status != 200:
            raise Complaint(f"its conversation was answered {told(reply)}")
        seen = set(CANARY.findall(orjson.dumps(reply.body).decode()))
        if not seen <= {canary_of(self.ledger.tenant_id)}:
            raise Complaint("its conversation holds another tenant's canary")

    async def act(self, act: Act, dice: random.Random) -> None:
        """Do it until it is done or refused for good, then look whether it shows.

        Raises:
            Complaint: What nobody else has done anything to was not found, or the answer is none
                of those that are promised.
        """
        self.ledger.acts.append(act)
        act.shown_before = self.ledger.shown_of(act.target)
        method, path = way(act)
        first = dice.randrange(2)
        for retry in retries(dice):
            reply = await self.request(method, path, kind=act.kind, place=first + retry.no)
            act.replies.append(reply)
            is_missing = reply.status in GONE and len(act.replies) == 1
            if is_missing or (reply.status not in RETRIED | ANSWERS[act.kind]):
                raise Complaint(f"{act.kind} of {act.target} was answered {told(reply)}")
            if reply.status in ANSWERS[act.kind]:
                break
            await asyncio.sleep(retry.pause_s(reply))
        if act.is_done:
            act.done_at = datetime.now(UTC)
            for look in looks(act, self.ledger):
                if look.is_shown_by(await self.request(look.method, look.path, kind="look")):
                    act.shown_after.append(look.where)

    async def _stare(self, post: Post, place: int, *, for_s: float) -> None:
        """Open the stream and read nothing of it."""
        url = urlsplit(self._desk.url(place))
        head = (
            f"GET /v1/turns/{post.turn_id}/events HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Authorization: {self._headers['Authorization']}\r\nAccept: text/event-stream\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        with narrow_socket(_ADDRESS) as own:
            own.setblocking(False)
            try:
                async with asyncio.timeout(TIMEOUT.connect):
                    await loop.sock_connect(own, (url.hostname, url.port))
                    await loop.sock_sendall(own, head.encode())
            except OSError:
                return  # nobody there to stare at
            await self._desk.stare(for_s)


def new_key(dice: random.Random) -> str:
    """A key of the seed."""
    return f"{dice.getrandbits(96):024x}"


class Retry(NamedTuple):
    """One try of several."""

    no: int
    dice: random.Random

    def pause_s(self, reply: Reply) -> float:
        """Seconds to the next try: as the answer asks, within reason, else longer each time."""
        asked = reply.headers.get("retry-after", "")
        wanted_s = float(asked) if asked.isdecimal() else FIRST_PAUSE_S * 2 ** min(self.no, 8)
        return min(wanted_s, LONGEST_PAUSE_S) * self.dice.uniform(0.5, 1.0)


def retries(dice: random.Random) -> Iterator[Retry]:
    """Tries without an end: the turn's patience ends them."""
    return (Retry(no, dice) for no in itertools.count())


class _Frames:
    """Lines in, events out."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def take(self, raw: bytes) -> StreamEvent | None:
        """The event that this line completes."""
        line = raw.decode().rstrip("\r\n")
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        return StreamEvent(fields.get("id", ""), fields["event"], fields["data"].encode())


async def _reply(response: aiohttp.ClientResponse) -> Reply:
    """The answer; of a stream only what its head says."""
    headers = _lower(response.headers)
    kind = headers.get("content-type", "")
    body: dict[str, Any] = {}
    if "json" in kind:
        body = await response.json(content_type=None) or {}  # the answer to a HEAD has none
    elif "event-stream" in kind:
        body = {"turn_id": headers.get("location", "").rpartition("/")[2]}
    return Reply(response.status, body, headers)


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def told(reply: Reply) -> str:
    """An unexpected answer in a few words."""
    return f"{reply.status} {reply.body.get('type', '')} {reply.body.get('detail', '')}".rstrip()


def log_of(turn: LoadTurn) -> StreamLog:
    """The stream's page in the ledger, opened by the first who reads."""
    turn_id = turn.post.turn_id
    assert turn_id is not None, "a stream is read after its turn was accepted"
    turn.post.stream = turn.post.stream or StreamLog(turn_id)
    return turn.post.stream


def narrow_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    own = socket.socket(family, kind, protocol)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)
    return own


_ADDRESS = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))
