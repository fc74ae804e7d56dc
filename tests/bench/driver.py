"""Clients in a closed loop: each asks again as soon as its answer has ended and was verified."""

import asyncio
import hashlib
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar
from urllib.parse import urlsplit
from uuid import UUID

import orjson

from tests.bench.wire import Answer, BadAnswer, Caller
from tests.rig.ledger import Ledger, Post, Reply, StreamEvent, StreamLog
from tests.rig.provider import fast_text

TURNS_PER_CONVERSATION = 20
"""Then a client takes a fresh conversation, so that the history of a turn is 0 to 38 messages."""

CHECKED_EVERY = 4
"""Every answer is verified when it arrives; the ledger for the database keeps one of so many."""

ANSWER_HEADER = "Accept: text/event-stream\r\n"
FIRST_DELTA = b"event: content_delta"
PROVIDER_DELTA = b'"content":"t0 "'
EXPECTED = fast_text()


@dataclass(slots=True)
class Samples:
    """What one window of measuring brought; times in milliseconds."""

    seconds: float = 0.0
    turns: int = 0
    first_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        """Turns a second."""
        return self.turns / self.seconds if self.seconds else 0.0

    def note(self, answer: Answer) -> None:
        """Count one verified answer."""
        self.turns += 1
        first_at = answer.first_at or answer.ended_at  # a whole answer at once has no delta
        self.first_ms.append((first_at - answer.sent_at) * 1000)
        self.whole_ms.append((answer.ended_at - answer.sent_at) * 1000)


class TurnwireClient:
    """One client of the HTTP interface; it posts and reads the stream in the same response."""

    def __init__(self, base_url: str, key: str, ledger: Ledger, name: str) -> None:
        address = urlsplit(base_url)
        assert address.hostname is not None
        assert address.port is not None
        self.authorization = f"Bearer {key}"
        self._caller = Caller(address.hostname, address.port, {"Authorization": self.authorization})
        self._ledger = ledger
        self._name = name
        self._asked = 0
        self._fresh: list[UUID] = []
        self._used = 0
        self._current: UUID | None = None

    async def prepare(self, conversations: int) -> None:
        """Make conversations before the clock runs."""
        while len(self._fresh) < conversations:
            self._fresh.append(await self.conversation())

    async def conversation(self) -> UUID:
        """A new conversation."""
        answer = await self._caller.post(
            "/v1/conversations", {}, headers=f"Idempotency-Key: {uuid.uuid4().hex}\r\n"
        )
        if answer.status not in (200, 201, 202):
            raise BadAnswer(f"no conversation: {answer.status} {answer.body!r}")
        return UUID(answer.json["id"])

    async def next_turn(self) -> Answer:
        """A turn in the client's own conversation, or in a fresh one when that has had enough."""
        if self._current is None or self._used == TURNS_PER_CONVERSATION:
            self._current = self._fresh.pop() if self._fresh else await self.conversation()
            self._used = 0
        self._used += 1
        return await self.turn(self._current)

    async def turn(
        self, conversation: UUID, text: str | None = None, *, expected: str = EXPECTED
    ) -> Answer:
        """Ask, read the answer to its end, and verify it."""
        self._asked += 1
        said = text or f"Question {self._asked} of {self._name}: when does the next ferry leave?"
        post = Post(conversation, uuid.uuid4().hex, said)
        answer = await self._caller.post(
            f"/v1/conversations/{conversation}/messages",
            {"content": said},
            headers=f"{ANSWER_HEADER}Idempotency-Key: {post.key}\r\n",
            mark=FIRST_DELTA,
        )
        events = _events(answer)
        _verify(events, expected)
        if self._asked % CHECKED_EVERY == 0:
            turn_id = events[0].json["turn_id"]
            post.replies.append(Reply(answer.status, {"turn_id": turn_id}, {}))
            post.stream = StreamLog(UUID(turn_id), events)
            self._ledger.posts.append(post)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._caller.close()


class ProviderClient:
    """One client that calls the provider itself, as a front end without a backend would."""

    BODY: ClassVar[dict[str, object]] = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "When does the next ferry leave?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    def __init__(self, base_url: str) -> None:
        address = urlsplit(base_url)
        assert address.hostname is not None
        assert address.port is not None
        self._path = f"{address.path}/chat/completions"
        self._caller = Caller(address.hostname, address.port, {"Authorization": "Bearer scripted"})

    async def next_turn(self) -> Answer:
        """One call, read to its end and verified."""
        answer = await self._caller.post(self._path, self.BODY, mark=PROVIDER_DELTA)
        text = "".join(
            choice["delta"].get("content") or ""
            for line in answer.body.split(b"\n\n")
            if line.startswith(b"data: {")
            for choice in orjson.loads(line[6:])["choices"]
        )
        if answer.status != 200 or text != EXPECTED:
            raise BadAnswer(f"the provider answered {answer.status} {text!r}")
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._caller.close()


Turn = Callable[[], Coroutine[Any, Any, Answer]]


async def closed_loop(turns: Sequence[Turn], *, seconds: float) -> Samples:
    """Let every client ask without a pause; what ends after the time is not counted."""
    samples = Samples()
    began = perf_counter()
    ends = began + seconds

    async def client(turn: Turn) -> None:
        while perf_counter() < ends:
            answer = await turn()
            if answer.ended_at <= ends:
                samples.note(answer)

    await asyncio.gather(*(client(turn) for turn in turns))
    samples.seconds = seconds
    return samples


def turn_of(answer: Answer) -> UUID:
    """The turn whose stream this is."""
    return UUID(_events(answer)[0].json["turn_id"])


def _events(answer: Answer) -> list[StreamEvent]:
    if answer.status != 200:
        raise BadAnswer(f"the turn was answered {answer.status} {answer.body!r}")
    events: list[StreamEvent] = []
    for block in answer.body.decode().split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
        if "data" in fields:
            events.append(
                StreamEvent(fields.get("id", ""), fields["event"], fields["data"].encode())
            )
    return events


def _verify(events: Sequence[StreamEvent], expected: str) -> None:
    text = ""
    for event in events:
        if event.event == "content_delta":
            text += event.json["text"]
        elif event.event == "snapshot":  # a turn that ended before its stream began
            text = event.json["text"]
    ends = [event.json for event in events if event.event == "done"]
    if text != expected:
        raise BadAnswer(f"the streamed text is {text!r}, the last event {events[-1:]}")
    if len(ends) != 1 or events[-1].event != "done":
        raise BadAnswer(f"the stream has {len(ends)} ends")
    length, sha256 = len(expected.encode()), hashlib.sha256(expected.encode()).hexdigest()
    done = ends[0]
    if (done["status"], done["length"], done["sha256"]) != ("completed", length, sha256):
        raise BadAnswer(f"the stream ended with {done}")
